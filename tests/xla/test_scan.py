"""One compiled block for a list of equal ones."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
import torch
from torch import nn

from holdfast.base.errors import BadInput
from holdfast.xla import tiny
from holdfast.xla.arrays import to_jax
from holdfast.xla.module.calls import ModuleCall
from holdfast.xla.port import PORTS


def stacked(call: ModuleCall) -> dict[str, jax.Array]:
    """The weights that a call takes."""
    weights = call.weights
    return {
        name: jax.numpy.stack([to_jax(weights[part]) for part in slot.parts])
        if slot.is_stacked
        else to_jax(weights[name])
        for name, slot in call.slots.items()
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "port"),
    [("diffusers:FluxTransformer2DModel", "flux"), ("diffusers:WanTransformer3DModel", "wan21")],
)
def test_a_scanned_model_gives_what_torch_gives(name: str, port: str) -> None:
    made = tiny.make(name)
    with torch.no_grad():
        wanted = made(**made.inputs())[0].numpy()
    call = ModuleCall(made.module, scan=PORTS[port].scan)
    inputs = made.inputs()
    arrays = {key: to_jax(one) for key, one in inputs.items() if isinstance(one, torch.Tensor)}
    rest = {key: one for key, one in inputs.items() if key not in arrays}
    run = jax.jit(lambda weights, given: call(weights, {**given, **rest})[0])
    found = np.asarray(run(stacked(call), arrays))
    assert np.abs(found - wanted).max() <= 1e-5 * np.abs(wanted).max()


def test_weights_of_all_blocks_are_one_array() -> None:
    made = tiny.make("diffusers:WanTransformer3DModel")
    call = ModuleCall(made.module, scan=PORTS["wan21"].scan)
    slots, count = call.slots, len(made.module.blocks)
    name = "blocks.*.attn1.to_q.weight"
    assert slots[name].parts == tuple(f"blocks.{i}.attn1.to_q.weight" for i in range(count))
    one = made.module.blocks[0].attn1.to_q.weight
    assert slots[name].shape == (count, *one.shape)
    assert not any(part.startswith("blocks.0") for part in slots)
    assert sorted(part for slot in slots.values() for part in slot.parts) == sorted(call.weights)


def test_the_block_is_traced_once_however_many_there_are() -> None:
    traced: list[int] = []

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            traced.append(1)
            return x + self.linear(x)

    class Tower(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList(Block() for _ in range(40))

        def forward(self, x: torch.Tensor) -> Any:
            for block in self.blocks:
                x = block(x)
            return x

    tower = Tower().requires_grad_(False)
    x = torch.randn(3, 4)
    wanted = tower(x)
    call = ModuleCall(tower, scan={"blocks": ("x",)})
    weights = stacked(call)
    traced.clear()
    found = jax.jit(lambda w, x: call(w, {"x": x}))(weights, to_jax(x))
    assert len(traced) == 1
    assert np.abs(np.asarray(found) - wanted.numpy()).max() <= 1e-5 * wanted.abs().max().item()


def test_blocks_that_differ_are_refused() -> None:
    module = nn.Module()
    module.blocks = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 3)])
    with pytest.raises(BadInput) as caught:
        ModuleCall(module, scan={"blocks": ("input",)})
    assert str(caught.value) == (
        "cannot scan 'blocks' of Module: its 2 blocks are of 2 kinds\n"
        "  expected: blocks of one class with weights of the same shapes\n"
        "  try: leave it out of `scan`"
    )


def test_a_list_that_is_not_there_is_an_error_that_names_those_that_are() -> None:
    module = nn.Module()
    module.blocks = nn.ModuleList([nn.Linear(2, 2)])
    with pytest.raises(BadInput) as caught:
        ModuleCall(module, scan={"layers": ("input",)})
    assert str(caught.value) == (
        "cannot scan 'layers' of Module: it is no list of modules\n  expected: one of blocks"
    )


@pytest.mark.parametrize("carried", [("hidden",), (), "input"])
def test_what_blocks_do_not_take_cannot_go_from_one_to_the_next(carried: Any) -> None:
    module = nn.Module()
    module.blocks = nn.ModuleList([nn.Linear(2, 2)])
    with pytest.raises(BadInput) as caught:
        ModuleCall(module, scan={"blocks": carried})
    assert str(caught.value) == (
        f"cannot scan 'blocks' of Module: {carried!r} cannot go from one Linear to the next\n"
        "  expected: a tuple of some of input, in the order in which it returns them"
    )
