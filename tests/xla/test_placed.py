"""A module on XLA: weights in shards, methods compiled, tensors of the CPU in and out."""

from __future__ import annotations

import weakref
from pathlib import Path
from typing import Any

import jax
import pytest
import torch
from torch import nn

from holdfast.base.errors import HoldfastError, OutOfMemory
from holdfast.xla import tiny
from holdfast.xla.cluster.mesh import make_mesh
from holdfast.xla.module.cache import Programs
from holdfast.xla.module.placed import Placed
from holdfast.xla.sharding.shards import bytes_on
from holdfast.xla.stages import OnXla


def one_device() -> Any:
    return make_mesh(jax.devices()[:1])


def near(found: torch.Tensor, wanted: torch.Tensor) -> bool:
    return bool((found - wanted).abs().max() <= 1e-5 * wanted.abs().max())


class Mixer(nn.Module):
    """Two linears, a buffer that is not saved, tied weights."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(16, 32)
        self.second = nn.Linear(32, 16)
        self.tied = self.second
        self.register_buffer("shift", torch.arange(16.0), persistent=False)

    def forward(self, x: torch.Tensor, *, times: int = 1) -> torch.Tensor:
        for _ in range(times):
            x = self.tied(self.first(x).relu()) + self.shift
        return x


@pytest.mark.parametrize("devices", [1, 8])
def test_it_computes_what_torch_computes(devices: int) -> None:
    module = Mixer().requires_grad_(False)
    x = torch.randn(3, 16)
    placed = Placed(module, mesh=make_mesh(jax.devices()[:devices]))
    assert near(placed(x), module(x))
    assert near(placed(x, times=2), module(x, times=2))


def test_weights_lie_in_shards_and_the_module_keeps_its_own() -> None:
    module = Mixer().requires_grad_(False)
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    rules = {r"first\.weight": ("tp", None), r"second\.weight": (None, "tp")}
    placed = Placed(module, mesh=make_mesh(), rules=rules)
    shards = placed.weights["first.weight"].addressable_shards
    assert {shard.data.shape for shard in shards} == {(4, 16)}
    assert bytes_on(jax.devices()[0], placed.weights) == placed.report.device_bytes
    assert all(torch.equal(tensor, before[n]) for n, tensor in module.state_dict().items())


def test_free_gives_the_module_s_weights_up_one_after_the_other() -> None:
    module = Mixer().requires_grad_(False)
    x = torch.randn(3, 16)
    wanted = module(x)
    told: list[tuple[int, int]] = []
    placed = Placed(module, mesh=one_device(), free=True, progress=lambda *at: told.append(at))
    assert all(tensor.is_meta for tensor in (*module.parameters(), *module.buffers()))
    assert module.tied.weight is module.second.weight
    assert near(placed(x), wanted)
    total = placed.report.total_bytes
    assert told[0] == (0, total)
    assert told[-1] == (total, total)
    assert [done for done, _ in told] == sorted(done for done, _ in told)


def test_a_program_is_compiled_once_for_each_form_of_inputs() -> None:
    module = Mixer().requires_grad_(False)
    programs = Programs()
    placed = Placed(module, mesh=one_device(), programs=programs)
    for rows in (3, 3, 5, 3):
        placed(torch.randn(rows, 16))
    assert programs.made == 2


def known() -> nn.Module:
    """Of torch alone, whose version is part of a program's name."""
    layers = (nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16))
    return nn.Sequential(*layers).requires_grad_(False)


def test_another_process_s_programs_are_found(tmp_path: Path) -> None:
    x = torch.randn(3, 16)
    torch.manual_seed(0)
    Placed(known(), mesh=one_device(), programs=Programs(tmp_path))(x)
    torch.manual_seed(1)
    again = Programs(tmp_path)
    other = known()
    assert near(Placed(other, mesh=one_device(), programs=again)(x), other(x))
    assert (again.found, again.made) == (1, 0)


def test_code_that_may_change_is_traced_in_each_process(tmp_path: Path) -> None:
    x = torch.randn(3, 16)
    module = Mixer().requires_grad_(False)
    Placed(module, mesh=one_device(), programs=Programs(tmp_path))(x)
    again = Programs(tmp_path)
    assert near(Placed(module, mesh=one_device(), programs=again)(x), module(x))
    assert (again.found, again.made, list(tmp_path.iterdir())) == (0, 1, [])


@pytest.mark.parametrize("names", [("y", "times"), "x"])
def test_static_inputs_that_the_module_does_not_have_are_an_error(names: Any) -> None:
    with pytest.raises(HoldfastError) as caught:
        Placed(Mixer(), mesh=one_device(), static=names)
    assert str(caught.value) == (
        f"Mixer has no such inputs to be static: {names!r}\n"
        "  expected: a tuple of names of its inputs: x, times"
    )


class Picky(nn.Module):
    """How long its answer is depends on whole numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, x: torch.Tensor, count: torch.Tensor) -> torch.Tensor:
        return x[: int(count)] * self.scale


def test_whole_numbers_that_shapes_depend_on_become_part_of_the_program() -> None:
    placed = Placed(Picky().requires_grad_(False), mesh=one_device())
    x = torch.arange(5.0)
    assert placed(x, torch.tensor(2)).tolist() == [0, 1]
    assert placed(x, torch.tensor(4)).tolist() == [0, 1, 2, 3]


def test_an_input_that_should_be_static_is_named_in_the_error() -> None:
    class Branchy(Picky):
        def forward(self, x: torch.Tensor, count: torch.Tensor) -> torch.Tensor:
            return x * 2 if x.sum() > count else x

    x, count = torch.arange(5.0), torch.tensor(2)
    module = Branchy().requires_grad_(False)
    with pytest.raises(HoldfastError) as caught:
        Placed(module, mesh=one_device())(x, count)
    assert "static" in str(caught.value)
    fixed = Placed(module, mesh=one_device(), static=("x",))
    assert fixed(x, count).tolist() == [0, 2, 4, 6, 8]


def test_it_runs_inside_of_inference_mode() -> None:
    module = Mixer().requires_grad_(False)
    placed = Placed(module, mesh=one_device())
    with torch.inference_mode():
        x = torch.randn(3, 16)
        assert near(placed(x), module(x))


def test_answers_have_their_names_and_their_order() -> None:
    made = tiny.make("transformers:CLIPTextModelWithProjection")
    with torch.no_grad():
        wanted = made.module(**made.inputs())
    found = OnXla(Placed(made.module, mesh=one_device()))(**made.inputs())
    assert near(found[0], wanted[0])
    assert near(found.last_hidden_state, wanted.last_hidden_state)
    assert list(found)[: len(wanted)] == list(wanted)
    with pytest.raises(AttributeError):
        _ = found.nothing_like_it


def test_bfloat16_stays_bfloat16() -> None:
    module = Mixer().to(torch.bfloat16).requires_grad_(False)
    x = torch.randn(3, 16, dtype=torch.bfloat16)
    found = Placed(module, mesh=one_device())(x)
    assert found.dtype == torch.bfloat16
    assert torch.allclose(found.float(), module(x).float(), rtol=0.05, atol=0.05)


def test_memory_that_runs_out_while_an_answer_is_fetched_is_told_in_our_words(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def full(_: Any) -> Any:
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 2000 bytes")

    placed = Placed(Mixer().requires_grad_(False), mesh=one_device())
    monkeypatch.setattr(
        "holdfast.xla.module.placed.whole", full
    )  # programs run on while Python goes on
    with pytest.raises(OutOfMemory) as caught:
        placed(torch.randn(3, 16))
    assert str(caught.value) == (
        "ran out of memory while running Mixer.forward: 2.0 KB asked for\n"
        "  expected: 4.4 KB of weights, 4.4 KB on each of 1 device, and what is computed\n"
        "  try: a mesh with more devices (tp), bfloat16 weights, or a smaller picture"
    )


def test_weights_that_are_given_up_leave_the_host_one_after_the_other() -> None:
    module = Mixer().requires_grad_(False)
    weights = [weakref.ref(one) for one in (*module.parameters(), *module.buffers())]
    alive: list[int] = []

    def told(*_: int) -> None:
        alive.append(sum(weight() is not None for weight in weights))

    Placed(module, mesh=one_device(), free=True, progress=told)
    assert alive == [5, 4, 3, 2, 1, 0]
