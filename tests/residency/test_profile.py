"""Profiles against what a managed module really finds, with no weights in the first place."""

from __future__ import annotations

import collections
import gc
import itertools
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import diffusers
import pytest
import torch
import transformers
from torch import nn
from torch.utils._pytree import tree_leaves

from holdfast.base.errors import BadInput, Unsupported
from holdfast.residency.carriers import plain
from holdfast.residency.carriers.plain import Plain
from holdfast.residency.carriers.simulated import Simulated
from holdfast.residency.managed.manage import manage, unmanage
from holdfast.residency.predict.dry_run import tensors_in
from holdfast.residency.predict.profile import Profile, profile
from holdfast.residency.predict.rates import measure_times, time_layers
from holdfast.residency.predict.shadow import (
    build_on_meta,
    digest_modules,
    on_meta,
    randomize_inputs,
    shadow,
)
from holdfast.residency.predict.shapes import ModuleCall, Size, make_example, parse_size

MODELS = Path(__file__).parents[2] / "src" / "holdfast" / "pipeline" / "models"
CPU = torch.device("cpu")


def network(model: str, part: str) -> tuple[nn.Module, ModuleCall]:
    """A network of a built-in model with random weights, and what to call it with."""
    library, name = json.loads((MODELS / model / "model_index.json").read_text())[part]
    cls: Any = getattr({"diffusers": diffusers, "transformers": transformers}[library], name)
    config = json.loads((MODELS / model / part / "config.json").read_text())
    if library == "transformers":
        module = cls(cls.config_class.from_dict(config))
    else:
        module = cls.from_config(config)
    size = Size(64, 64, 5 if model == "tiny-wan" else None)
    return module.eval().requires_grad_(False), make_example(name, config, size, torch.float32)


def perceptron() -> tuple[nn.Module, ModuleCall]:
    torch.manual_seed(0)
    layers = [nn.Linear(96, 96) for _ in range(12)]
    module = nn.Sequential(*layers).requires_grad_(False)
    return module, ModuleCall("forward", {"input": torch.empty(7, 96, device="meta")})


CASES: dict[str, Callable[[], tuple[nn.Module, ModuleCall]]] = {
    "flux": lambda: network("tiny-flux", "transformer"),
    "unet": lambda: network("tiny-sdxl", "unet"),
    "wan": lambda: network("tiny-wan", "transformer"),
    "clip": lambda: network("tiny-flux", "text_encoder"),
    "t5": lambda: network("tiny-flux", "text_encoder_2"),
    "umt5": lambda: network("tiny-wan", "text_encoder"),
    "vae": lambda: network("tiny-flux", "vae"),
    "wan vae": lambda: network("tiny-wan", "vae"),
    "perceptron": perceptron,
}


@pytest.mark.parametrize(
    "case",
    [c if c == "flux" else pytest.param(c, marks=pytest.mark.slow) for c in CASES],
)
def test_a_profile_is_what_a_managed_module_finds(case: str) -> None:
    module, call = CASES[case]()
    found = profile(module, call)
    carrier = Simulated()
    managed = manage(module, None, carrier, keep_bytes=0, pack=False)
    try:
        inputs = randomize_inputs(call.inputs, CPU)
        with torch.no_grad():
            for _ in range(3):  # the first pass finds the order, later ones time it
                getattr(module, call.entry)(**inputs)
        order = managed.schedule.orders[call.entry]
        assert tuple(layer.path for layer in found.layers) == order.paths
        assert [layer.weights for layer in found.layers] == [use.weights for use in order.uses]
        assert found.staying == order.staying
        raw = [stretch.raw_bytes for stretch in managed.weights.stretches]
        assert [part.raw_bytes for part in found.stretches] == raw
        times = time_layers(found, carrier)
        assert times.way == "simulated"
        assert times.layers_ms == pytest.approx([u.compute_ms for u in order.uses], abs=1e-9)
        real = managed.memory.recent_peak_bytes
        assert real <= found.activation_bytes <= real * 1.05
    finally:
        unmanage(module)


@pytest.mark.parametrize("case", ["flux", "unet", "wan", "t5"])
@pytest.mark.slow
def test_measuring_with_shared_weights_gives_the_times_of_the_profile(case: str) -> None:
    module, call = CASES[case]()
    carrier = Simulated()
    found = profile(module, call)
    times = measure_times(found, carrier)
    assert times.way == "measured"
    assert times.layers_ms == pytest.approx(time_layers(found, carrier).layers_ms, abs=1e-9)
    assert times.activation_bytes == pytest.approx(found.activation_bytes, rel=0.05)


def test_a_long_pass_is_not_run_whole() -> None:
    """Of identical submodules two run, and the others take their times."""
    module, call = CASES["wan"]()
    carrier = Simulated(compute_gflops=0.01, memory_gb_s=0.001)
    found = profile(module, call)
    times = measure_times(found, carrier)
    whole = time_layers(found, carrier)
    assert times.layers_ms == pytest.approx(whole.layers_ms, rel=1e-6)
    warm_and_timed = 2 * (sum(whole.layers_ms) + whole.before_ms)
    assert carrier.now_ms < 0.7 * warm_and_timed


def test_a_pass_that_is_held_up_is_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Times of layers are the usual ones, and garbage is collected before or after."""
    collecting: list[bool] = []
    moments = itertools.count()
    held_up_s = 0.0

    def now_s() -> float:
        return next(moments) / 1000 + held_up_s

    class HeldUp(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.one(x)
            if not x.is_meta:
                collecting.append(gc.isenabled())
                if len(collecting) == 4:
                    nonlocal held_up_s
                    held_up_s = 0.5
            return self.two(x)

    found = profile(HeldUp(), ModuleCall("forward", {"x": torch.empty(1, 4)}))
    monkeypatch.setattr(plain, "time", SimpleNamespace(perf_counter=now_s))
    times = measure_times(found, Plain("cpu"))
    assert collecting == [False] * 5
    assert gc.isenabled()
    assert times.layers_ms == pytest.approx([1.0, 1.0])


def test_weights_are_not_needed_and_not_touched() -> None:
    module, call = CASES["flux"]()
    empty = shadow(module, on_meta())
    assert all(tensor.is_meta for tensor in empty.parameters())
    assert comparable(profile(empty, call)) == comparable(profile(module, call))
    before = {name: id(tensor) for name, tensor in module.named_parameters()}
    versions = [tensor._version for tensor in module.parameters()]
    profile(module, call)
    assert {name: id(tensor) for name, tensor in module.named_parameters()} == before
    assert [tensor._version for tensor in module.parameters()] == versions
    assert not any(part._forward_hooks or part._forward_pre_hooks for part in module.modules())


def comparable(found: Profile) -> Any:
    return found.key, found.stretches, found.layers, found.staying, found.activation_bytes


def test_a_profile_in_another_format_has_its_bytes() -> None:
    module, call = perceptron()
    call = ModuleCall("forward", {"input": torch.empty(7, 96, dtype=torch.bfloat16, device="meta")})
    found = profile(module, call, lambda path, tensor: torch.bfloat16)
    assert found.weight_bytes == sum(p.numel() for p in module.parameters()) * 2
    assert {part.dtype for part in found.stretches} == {torch.bfloat16}
    assert next(module.parameters()).dtype == torch.float32


def test_tied_weights_count_once() -> None:
    first, second = nn.Linear(8, 8), nn.Linear(8, 8)
    second.weight = first.weight
    found = profile(
        nn.Sequential(first, second), ModuleCall("forward", {"input": torch.empty(1, 8)})
    )
    assert len(found.stretches) == 3
    assert found.layers[0].weights[0] == found.layers[1].weights[0]


def test_a_layer_that_takes_a_weight_of_another_is_seen() -> None:
    class Borrower(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lender = nn.Linear(8, 8)
            self.own = nn.Linear(8, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.own(x) @ self.lender.weight

    found = profile(Borrower(), ModuleCall("forward", {"x": torch.empty(2, 8)}))
    assert found.staying == {0}


def test_parts_that_write_into_what_they_are_given_are_all_run() -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor, count: list[int]) -> torch.Tensor:
            count[0] += 1
            return self.inner(x) if count[0] < 3 else x

    class Several(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = nn.ModuleList(Counting() for _ in range(4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            count = [0]
            for part in self.parts:
                x = part(x, count)
            return x

    found = profile(Several(), ModuleCall("forward", {"x": torch.empty(1, 4)}))
    assert [layer.path for layer in found.layers] == ["parts.0.inner", "parts.1.inner"]


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # by torch itself
@pytest.mark.slow
def test_the_layers_of_a_compiled_part_are_its_own() -> None:
    module = nn.Sequential(*(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)) for _ in range(3)))
    module[1].compile()
    found = profile(module, ModuleCall("forward", {"input": torch.empty(1, 4)}))
    assert [layer.path for layer in found.layers] == ["0.0", "0.1", "1", "2.0", "2.1"]
    assert found.layers[2].weights == (4, 5, 6, 7)
    carrier = Simulated()
    assert measure_times(found, carrier).layers_ms == pytest.approx(
        time_layers(found, carrier).layers_ms
    )


def test_the_next_process_finds_what_this_one_measured() -> None:
    """diffusers lists defaulted arguments in the order of a set, which differs there."""
    flux: Any = getattr(diffusers, "FluxTransformer2DModel")  # noqa: B009 - not exported
    module = build_on_meta(lambda: flux(num_layers=1, num_single_layers=1))
    here = digest_modules(module)
    noted = vars(module._internal_dict)["_use_default_values"]
    assert len(noted) > 1
    noted.reverse()
    assert digest_modules(module) == here


def test_parts_that_are_alike_have_one_digest() -> None:
    module, _ = CASES["wan"]()
    known = digest_modules(module)
    assert len({known[f"blocks.{i}"] for i in range(6)}) == 1
    assert known["blocks.0"] != known["blocks.0.attn1"]


def test_a_network_is_built_without_memory() -> None:
    module = build_on_meta(
        lambda: nn.Sequential(nn.Linear(1 << 20, 1 << 20), nn.LayerNorm(1 << 20))
    )
    assert all(tensor.is_meta for tensor in module.parameters())


def test_a_module_whose_way_depends_on_values_is_told() -> None:
    class Doubtful(nn.Linear):
        def forward(self, input: torch.Tensor) -> torch.Tensor:
            return super().forward(input) if input.sum() > 0 else input

    with pytest.raises(Unsupported) as caught:
        profile(Doubtful(4, 4), ModuleCall("forward", {"input": torch.empty(1, 4)}))
    assert caught.value.what.startswith("cannot follow Doubtful without its weights: ")
    assert caught.value.expected == "a module whose control flow does not depend on values"


def test_wrong_inputs_are_told() -> None:
    with pytest.raises(BadInput) as caught:
        profile(nn.Linear(4, 4), ModuleCall("forward", {"wrong": torch.empty(1, 4)}))
    assert str(caught.value) == (
        "cannot call Linear.forward with wrong: "
        "Linear.forward() got an unexpected keyword argument 'wrong'\n"
        "  expected: the keyword arguments of one call\n"
        "  try: residency.fit(module, inputs={…}); tensors may be on meta"
    )


@pytest.mark.parametrize(
    ("shape", "size"),
    [
        (None, None),
        ("832x480", Size(480, 832)),
        (" 832 X 480 ", Size(480, 832)),
        ((480, 832), Size(480, 832)),
        ([81, 480, 832], Size(480, 832, 81)),
        (Size(1, 2), Size(1, 2)),
    ],
)
def test_sizes_are_read(shape: Any, size: Size | None) -> None:
    assert parse_size(shape) == size


class Pair(NamedTuple):
    one: Any
    two: Any


def test_tensors_are_found_in_the_order_of_torch() -> None:
    a, b, c, d = (torch.empty(i) for i in range(4))
    weight = nn.Parameter(a)
    trees: list[Any] = [
        a,
        None,
        (a, [b, (c,), 3], {"z": d, "a": weight}, "word", torch.float32, a.shape),
        {"y": Pair(b, [a, a]), "x": collections.OrderedDict(q=c, p=(d, None))},
        [Pair({}, ()), slice(1), torch.device("cpu"), torch.strided, collections.deque([a, b])],
        transformers.modeling_outputs.BaseModelOutput(last_hidden_state=a, attentions=(b, c)),
    ]
    for tree in trees:
        leaves = [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]
        assert [id(tensor) for tensor in tensors_in(tree)] == [id(leaf) for leaf in leaves]


@pytest.mark.parametrize("shape", ["", "1024", "0x8", (1,), (1.5, 2), (True, 2), 1024, "1x2x3"])
def test_what_is_no_size_is_refused(shape: Any) -> None:
    with pytest.raises(BadInput) as caught:
        parse_size(shape)
    assert str(caught.value) == (
        f"cannot use shape={shape!r}\n"
        '  expected: (height, width), (frames, height, width), or text such as "1024x768" with '
        "the width first"
    )


def test_a_picture_smaller_than_a_patch_is_refused() -> None:
    with pytest.raises(BadInput) as caught:
        make_example("FluxTransformer2DModel", {}, Size(8, 64), torch.float32)
    assert str(caught.value) == (
        "cannot use shape='64x8': it is smaller than one of the network's patches\n"
        "  expected: at least 16x16"
    )


def test_an_unknown_class_needs_inputs() -> None:
    with pytest.raises(Unsupported) as caught:
        make_example("Mystery", {}, None, torch.float32)
    assert str(caught.value) == (
        "cannot make inputs for Mystery\n"
        "  expected: one of AutoencoderKL, AutoencoderKLWan, CLIPTextModel, "
        "CLIPTextModelWithProjection, FluxTransformer2DModel, T5EncoderModel, UMT5EncoderModel, "
        "UNet2DConditionModel, WanTransformer3DModel\n"
        "  try: pass them: residency.fit(module, inputs={…}); tensors may be on meta"
    )
