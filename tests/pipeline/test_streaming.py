"""Models larger than their budget, on the simulated device: the pictures are those of the CPU."""

from __future__ import annotations

import gc
import importlib
import json
import re
import signal
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch

from holdfast.base.errors import BadInput, Misuse, OutOfMemory
from holdfast.base.units import parse_bytes
from holdfast.cli.main import main
from holdfast.pipeline import Event, Pipeline, Result
from holdfast.pipeline.model import components
from holdfast.pipeline.model.sources import locate
from holdfast.residency.interrupt import (
    InterruptProcessingException,
    interrupt_current_processing,
)
from tests.pipeline import random_models

PROMPT = "a handwritten seven"
slow = pytest.mark.slow
QUICK: dict[str, dict[str, Any]] = {
    "tiny-flux": {"steps": 3, "seed": 1, "height": 64, "width": 64},
    "tiny-sdxl": {"steps": 3, "seed": 1, "height": 64, "width": 64},
    "tiny-wan": {"steps": 3, "seed": 1, "height": 32, "width": 32, "num_frames": 5},
}
WEIGHTS = {"tiny-flux": 20_492_300, "tiny-sdxl": 14_592_172, "tiny-wan": 13_401_148}


@cache
def on_the_cpu(model: str) -> np.ndarray:
    with Pipeline.load(model, device="cpu") as pipe:
        return pipe(PROMPT, **QUICK[model]).frames


def drawn(pipe: Pipeline, **more: Any) -> Result:
    return pipe(PROMPT, **(QUICK[pipe.source.model] | more))


def carrier_of(pipe: Pipeline) -> Any:
    return pipe.shared["simulated"].group.carrier


@pytest.mark.parametrize(
    ("model", "share"),
    [
        ("tiny-flux", 0.3),
        *(pytest.param(model, 0.3, marks=slow) for model in ("tiny-sdxl", "tiny-wan")),
        *(pytest.param(model, share, marks=slow) for model in QUICK for share in (0.6, 2.0)),
    ],
)
def test_a_picture_under_a_budget_is_that_of_the_cpu(model: str, share: float) -> None:
    budget = int(WEIGHTS[model] * share)
    with Pipeline.load(model, device="simulated", budget=budget) as pipe:
        results = [drawn(pipe) for _ in range(2)]  # the first finds the order
        for result in results:
            np.testing.assert_array_equal(result.frames, on_the_cpu(model))
            assert result.cost.peak_bytes["simulated"] <= budget
        assert carrier_of(pipe).peak_bytes <= budget
        denoiser = next(one for one in results[1].cost.residences if one.stage == "denoise")
        assert denoiser.streamed_bytes is not None
        assert (denoiser.streamed_bytes > 0) is (denoiser.weight_bytes > budget)


@pytest.mark.slow
@pytest.mark.parametrize("model", list(QUICK))
def test_a_budget_that_is_too_small_says_which_one_would_do(model: str) -> None:
    with Pipeline.load(model, device="simulated", budget="100KB") as pipe:
        group, tries = pipe.shared["simulated"].group, 0
        while (larger := _wanted(pipe)) is not None:
            assert larger > (group.budget_bytes or 0)
            group.set_budget(larger)
            tries += 1
        assert 1 <= tries <= 8
        assert (group.budget_bytes or 0) < 0.8 * WEIGHTS[model]
        for _ in range(2):
            np.testing.assert_array_equal(drawn(pipe).frames, on_the_cpu(model))
        assert carrier_of(pipe).peak_bytes <= (group.budget_bytes or 0)


def _wanted(pipe: Pipeline) -> int | None:
    """The budget that the error asks for; None if there is none."""
    try:
        for _ in range(2):
            drawn(pipe)
    except OutOfMemory as exc:
        size = re.search(r"budget of (?:at least )?([\d.]+ .?B)", str(exc))
        return parse_bytes(size[1]) if size is not None else 0
    return None


def test_the_whole_text_of_a_budget_that_is_too_small() -> None:
    with Pipeline.load("tiny-flux", device="simulated", budget="1MB") as pipe:
        with pytest.raises(OutOfMemory) as caught:
            drawn(pipe)
        assert str(caught.value) == (
            "cannot run AutoencoderKL inside of 1.0 MB: the device is full with one layer at a "
            "time\n"
            "  expected: room for what is computed and the largest layer: a budget of 1.573 MB or "
            "more\n"
            "  try: a larger budget, smaller pictures, or fewer of them at once"
        )
    with Pipeline.load("tiny-flux", device="simulated", budget="100KB") as pipe:
        with pytest.raises(OutOfMemory) as caught:
            drawn(pipe)
        assert str(caught.value) == (
            "cannot run CLIPTextModel inside of 100 KB: the device is full with one layer at a "
            "time\n"
            "  expected: room for what is computed and the largest layer: a budget of 177.7 KB or "
            "more\n"
            "  try: a larger budget, smaller pictures, or fewer of them at once"
        )
        assert pipe.shared["simulated"].group.held_bytes == 0


@pytest.mark.slow
def test_without_a_budget_everything_stays_and_is_counted() -> None:
    with Pipeline.load("tiny-flux", device="simulated") as pipe:
        result = drawn(pipe)
        assert pipe.why == "simulated: asked for"
        transformer = result.cost.residences[2]
        assert (transformer.network, transformer.streamed_bytes) == ("transformer", 0)
        assert result.cost.peak_bytes["simulated"] > transformer.weight_bytes
        np.testing.assert_array_equal(result.frames, on_the_cpu("tiny-flux"))


@pytest.mark.slow
def test_networks_that_stay_make_room_for_one_that_computes_much() -> None:
    """The weights of all but the text encoders fit, with those of the autoencoder's pass do not."""
    with Pipeline.load("tiny-flux", device="simulated", budget="19.5MB") as pipe:
        with pipe.recording() as recorded:
            result = drawn(pipe, height=128, width=128)
        evicted = [e for e in recorded["simulated"].entries if e.kind == "evict"]
        assert any("room for AutoencoderKL" in e.reason for e in evicted)
        assert result.cost.peak_bytes["simulated"] <= 19_500_000
    with Pipeline.load("tiny-flux", device="cpu") as pipe:
        np.testing.assert_array_equal(result.frames, drawn(pipe, height=128, width=128).frames)


def test_the_reason_says_budget_and_weights() -> None:
    prepared = Pipeline.prepare("tiny-flux", device="simulated", budget="6MB")
    assert prepared.placement.why == ("simulated: 6.0 MB budget for 20.5 MB of weights, streamed")
    prepared = Pipeline.prepare("tiny-flux", device="simulated", budget="40MB")
    assert prepared.placement.why == "simulated: 40.0 MB budget for 20.5 MB of weights"
    prepared = Pipeline.prepare("tiny-flux", device="text=simulated,denoise=simulated,decode=cpu")
    assert prepared.placement.why == "text on simulated, denoise on simulated, decode on cpu"


@pytest.mark.slow
@pytest.mark.parametrize("model", ["tiny-flux", "tiny-wan"])
def test_guidance_by_contrast_is_that_of_the_cpu(model: str, tmp_path: Path) -> None:
    """Two calls a step, which share what crosses the link."""
    place, settings = model, QUICK[model] | {"steps": 6, "guidance": 4.0}
    if model == "tiny-flux":  # the shipped one has its guidance built in
        place = str(random_models.flux_without_guidance(tmp_path / "model"))
    results, steps = [], []
    places: list[dict[str, Any]] = [{"device": "cpu"}, {"device": "simulated", "budget": "4MB"}]
    for where in places:
        with Pipeline.load(place, **where) as pipe, pipe.recording() as recorded:
            results.append(pipe(PROMPT, **settings))
        entries = [e for one in recorded.values() for e in one.entries]
        steps = [e.reason for e in entries if e.kind == "pass" and "Transformer" in e.module]
    assert steps[-3:] == ["2 calls in step"] * 3
    np.testing.assert_array_equal(*(result.frames for result in results))
    denoiser = next(one for one in results[1].cost.residences if one.stage == "denoise")
    assert denoiser.streamed_bytes
    assert denoiser.took_ms == pytest.approx(denoiser.predicted_ms, rel=0.5)


# ---- loading


@pytest.mark.parametrize("model", list(QUICK))
@pytest.mark.parametrize(
    "dtype",
    [*(pytest.param(d, marks=slow) for d in (torch.float32, torch.float16)), torch.bfloat16],
)
@pytest.mark.slow
def test_networks_that_are_read_directly_are_those_of_the_libraries(
    model: str, dtype: torch.dtype
) -> None:
    source = locate(model)
    for name, component in source.components.items():
        if not component.is_network:
            continue
        cls = getattr(importlib.import_module(component.library), component.class_name)
        theirs = components.load(source, name, dtype)
        ours = components.load_into_slabs(component, cls, dtype)
        assert ours is not None, name
        _same(ours[0].eval(), theirs)


def _same(ours: torch.nn.Module, theirs: torch.nn.Module) -> None:
    assert type(ours) is type(theirs)
    for kind in ("named_parameters", "named_buffers"):
        mine, others = (dict(getattr(one, kind)(remove_duplicate=False)) for one in (ours, theirs))
        assert list(mine) == list(others)
        for name, tensor in mine.items():
            assert tensor.dtype == others[name].dtype, name
            assert tensor.stride() == others[name].stride(), name
            assert torch.equal(tensor, others[name]), name
    assert _ties(ours) == _ties(theirs)
    configs = [dict(vars(one.config)) for one in (ours, theirs)]
    for config in configs:
        config.pop("_name_or_path", None)
    assert configs[0] == configs[1]


def _ties(module: torch.nn.Module) -> list[list[str]]:
    found: dict[int, list[str]] = {}
    for name, tensor in module.named_parameters(remove_duplicate=False):
        found.setdefault(id(tensor), []).append(name)
    return list(found.values())


@pytest.mark.slow
def test_weights_under_other_names_are_left_to_the_libraries(tmp_path: Path) -> None:
    import shutil

    from safetensors.torch import load_file, save_file

    from holdfast.pipeline.model.sources import BUILT_IN

    folder = Path(shutil.copytree(BUILT_IN / "tiny-flux", tmp_path / "model"))
    file = folder / "text_encoder" / "model.safetensors"
    weights = load_file(file)
    save_file({f"text_model.{name}": t for name, t in weights.items()}, file, {"format": "pt"})
    with Pipeline.load(str(folder), device="simulated", budget="6MB") as pipe:
        frames = pipe(PROMPT, **QUICK["tiny-flux"]).frames
    np.testing.assert_array_equal(frames, on_the_cpu("tiny-flux"))


def test_loading_tells_bytes_and_components() -> None:
    heard: list[Event] = []
    Pipeline.load("tiny-flux", "simulated", "6MB", progress=heard.append).unload()
    loading = [event for event in heard if event.total_bytes is not None]
    assert {event.total_bytes for event in loading} == {WEIGHTS["tiny-flux"]}
    done = [event.done_bytes or 0 for event in loading]
    assert done == sorted(done)
    assert (done[0], done[-1]) == (0, WEIGHTS["tiny-flux"])
    assert (loading[-1].done, loading[-1].total) == (7, 7)
    assert len({event.done_bytes for event in loading if event.label == "transformer"}) > 2


@pytest.mark.parametrize("error", [pytest.param(LookupError, marks=slow), KeyboardInterrupt])
@pytest.mark.slow
def test_a_listener_can_stop_loading(error: type[BaseException]) -> None:
    def stop(event: Event) -> None:
        if event.label == "transformer" and event.done_bytes and event.done_bytes > 5_000_000:
            raise error("enough")

    prepared = Pipeline.prepare("tiny-flux", device="simulated", budget="6MB")
    with pytest.raises(error, match="enough"):
        prepared.load(stop)
    carrier: Any = prepared.placement.devices["text"].carrier()
    gc.collect()
    assert (carrier.held_bytes, carrier.limit_bytes) == (0, None)
    with prepared.load() as pipe:
        np.testing.assert_array_equal(drawn(pipe).frames, on_the_cpu("tiny-flux"))


def test_an_interrupt_stops_loading() -> None:
    def ask(event: Event) -> None:
        if event.label == "transformer":
            interrupt_current_processing()

    with pytest.raises(InterruptProcessingException):
        Pipeline.load("tiny-flux", "simulated", "6MB", progress=ask)


@pytest.mark.slow
def test_broken_weights_are_told_as_before(tmp_path: Path) -> None:
    import shutil

    from holdfast.pipeline.model.sources import BUILT_IN

    folder = Path(shutil.copytree(BUILT_IN / "tiny-flux", tmp_path / "model"))
    config = folder / "vae" / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"latent_channels": 3}))
    with pytest.raises(BadInput) as caught:
        Pipeline.load(str(folder), device="simulated", budget="6MB")
    assert str(caught.value).startswith(f"cannot load 'vae' of {str(folder)!r}: ")


# ---- breaking off


def _by_flag() -> None:
    interrupt_current_processing()


def _by_ctrl_c() -> None:
    signal.raise_signal(signal.SIGINT)


@pytest.mark.parametrize(
    ("stop", "error"),
    [
        (_by_flag, InterruptProcessingException),
        pytest.param(_by_ctrl_c, KeyboardInterrupt, marks=slow),
    ],
)
@pytest.mark.parametrize("step", [pytest.param(0, marks=slow), 2])
def test_a_step_can_be_broken_off_in_its_middle(
    stop: Callable[[], None], error: type[BaseException], step: int
) -> None:
    """In the first step, which finds the order, and in one that streams."""
    with Pipeline.load("tiny-flux", device="simulated", budget="6MB") as pipe:
        transformer: Any = pipe.shared["simulated"].members["transformer"].module
        block = transformer.transformer_blocks[1]
        calls = 0

        def count(*_: Any) -> None:
            nonlocal calls
            calls += 1
            if calls == step + 1:
                stop()

        hook = block.register_forward_pre_hook(count)
        with pytest.raises(error):
            drawn(pipe)
        assert calls == step + 1
        hook.remove()
        np.testing.assert_array_equal(drawn(pipe).frames, on_the_cpu("tiny-flux"))
        assert carrier_of(pipe).peak_bytes <= 6_000_000


# ---- what it cost


@pytest.mark.slow
def test_the_cost_has_plans_and_times() -> None:
    with Pipeline.load("tiny-flux", device="simulated", budget="6MB") as pipe:
        found = drawn(pipe, steps=6).cost.to_dict()["residences"]
    assert [(one["network"], one["stage"]) for one in found] == [
        ("text_encoder", "text"),
        ("text_encoder_2", "text"),
        ("transformer", "denoise"),
        ("vae", "decode"),
    ]
    transformer = found[2]
    assert transformer["kept_bytes"] + transformer["streamed_bytes"] >= transformer["weight_bytes"]
    assert transformer["link_bytes"] == transformer["streamed_bytes"]  # fp32 is not packed
    assert transformer["took_ms"] == pytest.approx(transformer["predicted_ms"], rel=0.5)


@pytest.mark.slow
def test_half_precision_is_packed_for_the_link() -> None:
    results = []
    places: list[dict[str, Any]] = [{"device": "cpu"}, {"device": "simulated", "budget": "4MB"}]
    for where in places:
        with Pipeline.load("tiny-flux", precision="bf16", **where) as pipe:
            results.append(drawn(pipe))
    np.testing.assert_array_equal(*(result.frames for result in results))
    transformer = next(one for one in results[1].cost.residences if one.network == "transformer")
    assert transformer.streamed_bytes is not None
    assert 0 < (transformer.link_bytes or 0) < 0.85 * transformer.streamed_bytes


@pytest.mark.slow
def test_a_recording_has_every_step() -> None:
    with Pipeline.load("tiny-flux", device="simulated", budget="6MB") as pipe:
        with pipe.recording() as recorded:
            drawn(pipe)
        entries = recorded["simulated"].entries
        assert len([e for e in entries if e.kind == "pass" and "Flux" in e.module]) == 3
        assert sum(e.nbytes for e in entries if e.kind == "copy") > WEIGHTS["tiny-flux"]
    with Pipeline.load("tiny-flux", device="cpu") as pipe, pipe.recording() as recorded:
        assert recorded == {}


# ---- unloading


def test_an_unloaded_pipeline_says_so() -> None:
    pipe = Pipeline.load("tiny-flux", device="simulated", budget="6MB")
    pipe.unload()
    pipe.unload()
    with pytest.raises(Misuse) as caught:
        drawn(pipe)
    assert str(caught.value) == (
        "cannot draw with 'tiny-flux': it was unloaded\n"
        "  expected: a pipeline that is loaded\n"
        "  try: Pipeline.load(…) again"
    )


@pytest.mark.slow
def test_twenty_cycles_of_loading_and_unloading_take_nothing() -> None:
    process, sizes = psutil.Process(), []
    for cycle in range(20):
        model = ("tiny-flux", "tiny-sdxl")[cycle % 2]
        pipe = Pipeline.load(model, device="simulated", budget=int(WEIGHTS[model] * 0.4))
        drawn(pipe, steps=2)
        carrier = carrier_of(pipe)
        pipe.unload()
        assert carrier.held_bytes == 0
        sizes.append(process.memory_info().rss)
    # The first ones import and warm up.
    assert max(sizes[10:]) - min(sizes[8:10]) < 8_000_000, sizes


# ---- the command


@pytest.mark.slow
def test_the_command_streams(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    size = ["--height", "64", "--width", "64", "--steps", "3", "--seed", "1"]
    where = ["--device", "simulated", "--budget", "6MB"]
    command = ["run", "tiny-flux", "--prompt", PROMPT, *size, *where]
    assert main([*command, "--out", "a.png", "--timeline", "a.html"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1] == "device   simulated: 6.0 MB budget for 20.5 MB of weights, streamed; fp32"
    assert re.fullmatch(
        r"weights  transformer streamed [\d.]+ MB of 14\.6 MB a step; "
        r"predicted [\d.]+ ms, took [\d.]+",
        lines[4],
    )
    page = Path("a.html").read_text()
    assert 'class="hf-residency"' in page
    from PIL import Image

    with Image.open("a.png") as picture:
        np.testing.assert_array_equal(np.asarray(picture), on_the_cpu("tiny-flux")[0])
    assert main([*command, "--out", "b.png", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["cost"]["peak_bytes"]["simulated"] <= 6_000_000
    assert report["cost"]["residences"][2]["network"] == "transformer"
