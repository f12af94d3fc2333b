"""Predictions against runs on the simulated device; files that hold no weights at all."""

from __future__ import annotations

import dataclasses
import gc
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from holdfast import residency
from holdfast.base.config import Config
from holdfast.base.errors import BadInput, HoldfastError, NotFound
from holdfast.residency.carriers.plain import Plain
from holdfast.residency.carriers.simulated import Simulated
from holdfast.residency.managed.manage import manage, unmanage
from holdfast.residency.packing.pack import pack
from holdfast.residency.plan import Rates
from holdfast.residency.predict import rates
from holdfast.residency.predict.answer import BudgetChange, Fit, PrecisionChoice, format_duration
from holdfast.residency.predict.fit import fit
from holdfast.residency.predict.networks import find_networks
from holdfast.residency.predict.packable import Packing
from holdfast.residency.predict.profile import ProfiledStretch, profile
from holdfast.residency.predict.recognise import guess
from holdfast.residency.predict.shadow import randomize_inputs
from holdfast.residency.predict.shapes import ModuleCall
from tests.residency.test_profile import MODELS, network, perceptron

CPU = torch.device("cpu")


def device(**options: Any) -> Simulated:
    """Slow enough for bytes and flops to count more than the start of a copy."""
    speeds: dict[str, Any] = {"link_gb_s": 0.1, "compute_gflops": 100.0, "memory_gb_s": 2.0}
    chosen: dict[str, Any] = speeds | {"decode_gb_s": 2.0} | options
    return Simulated(**chosen)


def half_perceptron() -> tuple[nn.Module, ModuleCall]:
    torch.manual_seed(0)
    module = nn.Sequential(*(nn.Linear(512, 512) for _ in range(20)))
    for parameter in module.parameters():
        parameter.data = torch.randn(parameter.shape).mul_(0.02).to(torch.bfloat16)
    inputs = {"input": torch.empty(64, 512, dtype=torch.bfloat16, device="meta")}
    return module.requires_grad_(False), ModuleCall("forward", inputs)


CASES: dict[str, Callable[[], tuple[nn.Module, ModuleCall]]] = {
    "flux": lambda: network("tiny-flux", "transformer"),
    "unet": lambda: network("tiny-sdxl", "unet"),
    "wan": lambda: network("tiny-wan", "transformer"),
    "perceptron": perceptron,
    "half perceptron": half_perceptron,
}


def predict(
    module: nn.Module, call: ModuleCall, carrier: Simulated, budget: Any, **more: Any
) -> Fit:
    return fit(module, carrier, budget, inputs=call.inputs, entry=call.entry, **more)


def really(module: nn.Module, call: ModuleCall, budget: int, pack: bool | str) -> tuple[float, int]:
    """Milliseconds of a pass in the steady state, and the peak in bytes."""
    carrier = device()
    manage(module, budget, carrier, pack=pack)
    inputs = randomize_inputs(call.inputs, CPU)
    try:
        with torch.no_grad():
            for _ in range(7):  # the order is found, then timed, then followed
                getattr(module, call.entry)(**inputs)
            start = carrier.now_ms
            carrier.peak_bytes = 0  # the first passes keep what there is room for
            for _ in range(4):
                getattr(module, call.entry)(**inputs)
            return (carrier.now_ms - start) / 4, carrier.peak_bytes
    finally:
        unmanage(module)


QUICK = [
    ("wan", 0.3, False),
    *(("perceptron", share, False) for share in (0.3, 0.75)),
    *(("half perceptron", 0.6, packed) for packed in (False, True)),
]
LONG = [
    ("flux", 0.75, False),
    ("wan", 0.75, False),
    *(("perceptron", share, False) for share in (0.5, 1.3)),
    *(("half perceptron", share, packed) for share in (0.3, 1.3) for packed in (False, True)),
    ("flux", 0.3, False),
    ("unet", 0.5, False),
    ("flux", 0.5, False),
    ("flux", 1.3, False),
    ("wan", 0.5, False),
    ("wan", 1.3, False),
    ("unet", 0.3, False),
    ("unet", 0.75, False),
    ("unet", 1.3, False),
]


@pytest.mark.parametrize(
    ("case", "share", "packed"),
    [*QUICK, *(pytest.param(*case, marks=pytest.mark.slow) for case in LONG)],
)
def test_a_prediction_holds(case: str, share: float, packed: bool) -> None:
    module, call = CASES[case]()
    whole = predict(module, call, device(), None)
    budget = int(whole.activation_bytes or 0) + int(share * whole.weight_bytes)
    answer = predict(module, call, device(), budget, pack=packed)
    assert answer.fits
    step_ms, peak_bytes = really(module, call, budget, packed)
    assert answer.step_ms == pytest.approx(step_ms, rel=0.05)
    assert answer.peak_bytes is not None
    assert peak_bytes <= budget
    assert answer.peak_bytes <= budget
    assert answer.peak_bytes == pytest.approx(peak_bytes, rel=0.03)  # packed ones arrive beside
    assert answer.packed == packed


@pytest.mark.parametrize(
    "case",
    ["perceptron", *(pytest.param(case, marks=pytest.mark.slow) for case in ("flux", "unet"))],
)
def test_the_smallest_budget_that_streams_works(case: str) -> None:
    module, call = CASES[case]()
    answer = predict(module, call, device(), 1)
    assert not answer.fits
    assert answer.step_ms is None
    least = answer.smallest_bytes
    assert least is not None
    assert predict(module, call, device(), least + 4096).fits
    really(module, call, least + 4096, False)
    assert not predict(module, call, device(), int(least * 0.9)).fits


def test_more_room_is_never_slower() -> None:
    module, call = CASES["flux"]()
    whole = predict(module, call, device(), None)
    budget = int(whole.activation_bytes or 0) + whole.weight_bytes // 2
    answer = predict(module, call, device(), budget)
    assert answer.more is not None
    assert answer.less is not None
    assert answer.more.budget_bytes - budget == budget - answer.less.budget_bytes == 10**6
    assert answer.step_ms is not None
    assert (answer.more.step_ms or 0) <= answer.step_ms <= (answer.less.step_ms or 0)
    exact = predict(module, call, device(), answer.less.budget_bytes)
    assert answer.less.step_ms == pytest.approx(exact.step_ms, rel=0.05)


def test_what_is_kept_can_be_said() -> None:
    module, call = CASES["flux"]()
    whole = predict(module, call, device(), None)
    half = whole.weight_bytes // 2
    answer = predict(module, call, device(), None, keep_bytes=half)
    assert answer.kept_bytes is not None
    assert answer.kept_bytes <= half
    assert answer.streamed_bytes == pytest.approx(half, rel=0.1)


def test_half_precision_is_best_where_it_is_fastest() -> None:
    module, call = CASES["perceptron"]()
    whole = predict(module, call, device(), None)
    budget = whole.weight_bytes * 3 // 10
    answer = predict(module, call, device(), budget, pack=False)
    by_name = {choice.precision: choice for choice in answer.choices}
    assert answer.precision == "fp32"
    assert answer.best_precision == "bf16"
    assert (by_name["bf16"].step_ms or 0) < (answer.step_ms or 0)
    assert answer.why == (
        f"bf16 (fp32 would take about {format_duration(answer.step_ms or 0)}, "
        f"fp16 would take about {format_duration(by_name['fp16'].step_ms or 0)} and may overflow)"
    )
    in_half = predict(*halved(module, call), device(), budget, pack=False)
    assert by_name["bf16"].step_ms == pytest.approx(in_half.step_ms, rel=0.25)


def halved(module: nn.Module, call: ModuleCall) -> tuple[nn.Module, ModuleCall]:
    inputs = {name: tensor.to(torch.bfloat16) for name, tensor in call.inputs.items()}
    return module.to(torch.bfloat16), ModuleCall(call.entry, inputs)


def test_one_byte_weights_stream_half_as_many_bytes() -> None:
    module, call = CASES["half perceptron"]()
    plain = predict(module, call, device(), None, keep_bytes=0, pack=False)
    small = predict(module, call, device(), None, keep_bytes=0, pack=False, precision="fp8")
    assert small.precision == "fp8"
    assert small.streamed_bytes == pytest.approx((plain.streamed_bytes or 0) / 2, rel=0.01)


def test_packed_sizes_are_those_of_packing() -> None:
    values = torch.randn(300_000, generator=torch.Generator().manual_seed(1)) * 0.02
    raw = values.to(torch.bfloat16).view(torch.uint8)
    for schemes in (("flat",), ("flat", "ranked")):
        packed = pack(raw, "bf16", schemes=schemes)
        assert packed is not None
        part = ProfiledStretch("", raw.numel(), torch.bfloat16, False)
        predicted = Packing.of(schemes, torch.bfloat16).payload_bytes(part)
        assert predicted == pytest.approx(packed[0].nbytes, rel=0.01)
        sampled = Packing.of(schemes, torch.bfloat16, raw[:50_000]).payload_bytes(part)
        assert sampled == pytest.approx(packed[0].nbytes, rel=0.02)
    assert Packing.of(("flat",), torch.float32).payload_bytes(part) is None


def test_no_garbage_is_looked_for_while_an_answer_is_made() -> None:
    """In a process with large libraries that takes longer than the answer."""
    looking: list[bool] = []

    class Noting(nn.Linear):
        def forward(self, input: torch.Tensor) -> torch.Tensor:
            looking.append(gc.isenabled())
            if input.shape[0] == 2:
                raise ValueError("two is too few")
            return super().forward(input)

    predict(Noting(4, 4), ModuleCall("forward", {"input": torch.empty(3, 4)}), device(), None)
    assert gc.isenabled()
    with pytest.raises(BadInput):
        predict(Noting(4, 4), ModuleCall("forward", {"input": torch.empty(2, 4)}), device(), None)
    assert gc.isenabled()
    assert looking == [False, False]


# ---- files


@pytest.mark.parametrize("model", ["tiny-flux", "tiny-sdxl", "tiny-wan"])
@pytest.mark.slow
def test_a_whole_model_is_told_network_by_network(model: str) -> None:
    answer = fit(MODELS / model, device(), "40MB", (9, 64, 64))
    assert answer.fits
    assert answer.network in ("transformer", "unet")
    assert answer.parts[0].network == answer.network
    assert {part.network for part in answer.parts} >= {"text_encoder", "vae"}
    assert answer.peak_bytes == max(part.peak_bytes or 0 for part in answer.parts)
    assert all(part.step_ms is not None for part in answer.parts)
    assert json.loads(json.dumps(answer.to_dict()))["model"] == model


@pytest.mark.slow
def test_one_network_that_does_not_fit_is_named_in_the_table() -> None:
    answer = fit(MODELS / "tiny-sdxl", device(), "700KB", (64, 64))
    failing = [part.network for part in answer.parts if not part.fits]
    assert answer.fits == (not failing)
    assert failing
    lines = str(answer).splitlines()
    assert lines[1].endswith(f" is the least for {', '.join(map(str, failing))}")
    assert any(line.startswith(f"{failing[0]} ") for line in lines)


def sparse_flux(folder: Path) -> Path:
    """The header of FLUX.1 in bf16, and a hole where 24 GB of weights would be."""
    module = find_networks(config_of_flux(folder))[0].build()
    header: dict[str, Any] = {}
    end = 0
    for name, tensor in module.named_parameters():
        size = tensor.numel() * 2
        header[name] = {
            "dtype": "BF16",
            "shape": list(tensor.shape),
            "data_offsets": [end, end + size],
        }
        end += size
    text = json.dumps(header).encode()
    file = folder / "flux.safetensors"
    with file.open("wb") as opened:
        opened.write(len(text).to_bytes(8, "little") + text)
        opened.truncate(8 + len(text) + end)
    return file


def config_of_flux(folder: Path) -> Path:
    place = folder / "configured"
    place.mkdir(exist_ok=True)
    config = {"_class_name": "FluxTransformer2DModel", "guidance_embeds": True}
    (place / "config.json").write_text(json.dumps(config))
    return place


def read_bytes() -> int:
    """What this process asked the kernel to read."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("rchar")).split()[1])


@pytest.mark.slow
def test_24_gb_are_looked_at_through_their_header(tmp_path: Path) -> None:
    file = sparse_flux(tmp_path)
    assert file.stat().st_size > 23 * 10**9
    fit(file, device(), "8GB", (1024, 1024))  # modules are imported
    before = read_bytes()
    answer = fit(file, device(), "8GB", (1024, 1024))
    assert read_bytes() - before < 3 * 10**6
    assert answer.fits
    assert answer.precision == "bf16"
    assert answer.weight_bytes == pytest.approx(23.8e9, rel=0.001)
    assert answer.peak_bytes is not None
    assert 7 * 10**9 < answer.peak_bytes <= 8 * 10**9
    assert answer.assumptions[-1] == (
        "it is a FluxTransformer2DModel, judged by the names and shapes of its tensors"
    )
    named = fit(file, device(), "8GB", (1024, 1024), config=config_of_flux(tmp_path))
    assert named.step_ms == answer.step_ms


def test_a_file_of_unknown_tensors_is_told_by_its_sizes(tmp_path: Path) -> None:
    header = {"mystery": {"dtype": "F32", "shape": [1000, 1000], "data_offsets": [0, 4000000]}}
    text = json.dumps(header).encode()
    file = tmp_path / "mystery.safetensors"
    file.write_bytes(len(text).to_bytes(8, "little") + text + bytes(4_000_000))
    answer = fit(file, device(), "1MB")
    assert not answer.fits
    answer = fit(file, device(), "4MB")
    assert answer.way == "headers"
    assert (answer.weight_bytes, answer.streamed_bytes, answer.step_ms) == (4_000_000, 0, None)
    assert str(answer) == (
        "mystery on simulated, budget 4.0 MB, fp32\n"
        "fits: all 4.0 MB of weights stay\n"
        "step      0 ms at least, for the link alone\n"
        "assumed   the sizes of its weights alone: its class is unknown"
    )


def test_a_network_is_told_from_its_tensors() -> None:
    known = find_networks(MODELS / "tiny-flux" / "transformer")[0]
    found = guess(known.tensors())
    assert found is not None
    assert found[0] == known.class_name
    config = {n: tuple(v) if isinstance(v, list) else v for n, v in (known.config or {}).items()}
    assert found[1] == {name: config[name] for name in found[1]}


def test_a_relative_is_not_mistaken(tmp_path: Path) -> None:
    """A U-Net of another shape than SDXL has: only its sizes are known."""
    file = tmp_path / "relative.safetensors"
    shutil.copy(find_networks(MODELS / "tiny-sdxl" / "unet")[0].files[0], file)
    answer = fit(file, device(), "40MB", (64, 64))
    assert answer.way == "headers"
    assert answer.fits


def test_a_file_beside_its_configuration_is_known() -> None:
    file = find_networks(MODELS / "tiny-wan" / "transformer")[0].files[0]
    answer = fit(file, device(), "20MB", (9, 64, 64))
    assert answer.way == "simulated"
    folder = fit(MODELS / "tiny-wan" / "transformer", device(), "20MB", (9, 64, 64))
    assert answer.step_ms == folder.step_ms


@pytest.mark.slow
def test_a_folder_of_configurations_alone_will_do(tmp_path: Path) -> None:
    shutil.copytree(
        MODELS / "tiny-flux", tmp_path / "bare", ignore=shutil.ignore_patterns("*.safetensors")
    )
    answer = fit(tmp_path / "bare", device(), "40MB", (64, 64), precision="fp16")
    stored = fit(MODELS / "tiny-flux", device(), "40MB", (64, 64), precision="fp16")
    assert answer.step_ms == stored.step_ms
    assert answer.weight_bytes == stored.weight_bytes


# ---- texts and wrong input


def test_an_answer_is_readable() -> None:
    answer = Fit(
        model="FLUX.1-dev",
        network="transformer",
        device="cuda:0 (NVIDIA H200)",
        budget_bytes=8 * 10**9,
        size="1024x1024",
        precision="bf16",
        fits=True,
        smallest_bytes=10**9,
        weight_bytes=23_800_000_000,
        kept_bytes=6_300_000_000,
        streamed_bytes=17_200_000_000,
        link_bytes=12_100_000_000,
        ring_bytes=300_000_000,
        activation_bytes=500_000_000,
        reserve_bytes=800_000_000,
        peak_bytes=7_900_000_000,
        step_ms=246.0,
        floor_ms=241.0,
        resident_ms=175.0,
        packed=True,
        way="measured",
        more=BudgetChange(10 * 10**9, 215.0),
        less=BudgetChange(6 * 10**9, None),
        choices=(PrecisionChoice("bf16", True, 246.0, False),),
        best_precision="bf16",
        why="bf16 (fp8 would take about 0.182 s and lose quality)",
        assumptions=("bf16 weights pack like normally distributed ones",),
    )
    assert str(answer) == (
        "FLUX.1-dev on cuda:0 (NVIDIA H200), budget 8.0 GB, 1024x1024, bf16\n"
        "fits: streams 17.2 GB of 23.8 GB per step (packed to 12.1 GB)\n"
        "step      0.246 s  (floor 0.241 s, all in memory 0.175 s; measured)\n"
        "peak      7.9 GB  (weights 6.6 GB, activations 500 MB, reserve 800 MB)\n"
        "10.0 GB   0.215 s  (-13 %)\n"
        "6.0 GB    does not fit\n"
        "precision bf16 (fp8 would take about 0.182 s and lose quality)\n"
        "assumed   bf16 weights pack like normally distributed ones"
    )
    too_small = dataclasses.replace(
        answer, fits=False, step_ms=None, floor_ms=None, peak_bytes=None
    )
    assert str(too_small).splitlines()[1] == "does not fit: 1.0 GB is the least"


@pytest.mark.parametrize(
    ("arguments", "kind", "text"),
    [
        (
            {"model": 7},
            BadInput,
            "cannot look at a int\n  expected: a torch.nn.Module, or the path of a model",
        ),
        (
            {"model": "no/such/place"},
            BadInput,
            "cannot look at 'no/such/place': there is no such file or folder\n"
            "  expected: a diffusers folder, the folder of a network, or a .safetensors file",
        ),
        (
            {"precision": "int1"},
            BadInput,
            "unknown precision 'int1'\n  expected: auto, or one of fp32, bf16, fp16, fp8",
        ),
        ({"pack": "no"}, BadInput, "cannot use pack='no'\n  expected: \"auto\", True or False"),
        (
            {"device": "toaster"},
            NotFound,
            "cannot move weights to device 'toaster'\n"
            "  expected: one of cuda, xpu, npu, mlu, mps, cpu, simulated",
        ),
        (
            {"budget": "much"},
            BadInput,
            "cannot read 'much' as a size in bytes\n"
            '  expected: a size such as "2GB", "512MiB" or "80%"',
        ),
    ],
)
def test_wrong_input_is_told(arguments: dict[str, Any], kind: type, text: str) -> None:
    module, call = perceptron()
    given = {"model": module, "device": device(), "inputs": call.inputs} | arguments
    with pytest.raises(HoldfastError) as caught:
        fit(**given)
    assert type(caught.value) is kind
    assert str(caught.value) == text


def test_a_folder_with_nothing_in_it_is_told(tmp_path: Path) -> None:
    with pytest.raises(BadInput) as caught:
        fit(tmp_path, device())
    assert str(caught.value) == (
        f"cannot look at {str(tmp_path)!r}: there is no model in it\n"
        "  expected: a diffusers folder, the folder of a network, or a .safetensors file"
    )
    other = tmp_path / "weights.ckpt"
    other.write_bytes(b"")
    with pytest.raises(BadInput) as caught:
        fit(other, device())
    assert str(caught.value) == (
        f"cannot look at {str(other)!r}: it is not a .safetensors file\n"
        "  expected: a diffusers folder, the folder of a network, or a .safetensors file"
    )


def test_a_managed_module_is_told() -> None:
    module, call = perceptron()
    manage(module, None, device())
    try:
        with pytest.raises(BadInput) as caught:
            fit(module, device(), inputs=call.inputs)
    finally:
        unmanage(module)
    assert str(caught.value) == (
        "cannot look at Sequential: it is managed already\n"
        "  expected: a module that is not managed\n"
        "  try: managed.plan is its plan; residency.unmanage(module) ends that"
    )


def test_fit_is_a_name_of_the_layer() -> None:
    assert residency.fit is fit


# ---- real devices


@pytest.fixture
def quick_rates(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The link is not measured; counts how often it would be."""
    measured: list[str] = []

    def measure(self: Plain) -> Rates:
        measured.append(self.name)
        return Rates(7.0)

    monkeypatch.setattr(Plain, "rates", measure)
    return measured


def test_the_cpu_is_estimated_and_kept_on_disk(quick_rates: list[str]) -> None:
    module, call = perceptron()
    first = fit(module, "cpu", "1GB", inputs=call.inputs)
    assert first.way == "estimated"
    assert first.step_ms is not None
    assert first.step_ms > 0
    files = list((Config.load().cache_dir / "fit").iterdir())
    assert files
    again = fit(module, "cpu", "1GB", inputs=call.inputs)
    assert again.step_ms == first.step_ms


def test_facts_of_a_device_are_measured_once(quick_rates: list[str]) -> None:
    facts = rates.get_facts(Plain("cpu"))
    assert rates.get_facts(Plain("cpu")) == facts
    assert quick_rates == ["cpu"]


def test_a_broken_cache_is_made_anew(quick_rates: list[str]) -> None:
    rates.get_facts(Plain("cpu"))
    for file in (Config.load().cache_dir / "fit").iterdir():
        file.write_text("{")
    assert rates.get_facts(Plain("cpu")).rates.link_gb_s == 7.0
    assert quick_rates == ["cpu", "cpu"]


def test_a_cache_that_cannot_be_written_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quick_rates: list[str]
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("HOLDFAST_CACHE_DIR", str(tmp_path / "file"))
    assert rates.get_facts(Plain("cpu")).rates.link_gb_s == 7.0


def test_what_was_measured_is_not_measured_again(monkeypatch: pytest.MonkeyPatch) -> None:
    module, call = perceptron()
    found = profile(module, call)
    carrier = device()
    calls: list[str] = []
    real = rates.measure_times

    def counted(*arguments: Any) -> rates.Times:
        calls.append("measured")
        return real(*arguments)

    monkeypatch.setattr(rates, "measure_times", counted)
    monkeypatch.setattr(rates, "Simulated", type("Nobody", (), {}))
    monkeypatch.setattr(carrier, "device", torch.device("meta"))
    monkeypatch.setattr(
        rates, "_measure", lambda p, c: rates.Times((1.0,) * 12, 0.5, 7, "measured")
    )
    first = rates.time_layers(found, carrier)
    assert (calls, first.before_ms, first.activation_bytes) == (["measured"], 0.5, 7)
    assert rates.time_layers(found, carrier) == first
    assert calls == ["measured"]
