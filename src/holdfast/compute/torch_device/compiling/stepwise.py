"""A graph one overload after the other, for engines whose arrays generated source cannot read.

Covers: running torch's graph on tensors, random states, results in the layout that torch traced.
Leaves to others: graphs for NumPy (`source`, `running`); the overloads (the device's handlers);
which of them become one launch (`pieces`, `launches`).
Promise: the same numbers as without compiling.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx import GraphModule, Node

from holdfast.compute.torch_device import elsewhere, seeds, selecting, storage
from holdfast.compute.torch_device.compiling import nodes, pieces, source
from holdfast.compute.torch_device.compiling.running import Output, relaid

_aten: Any = torch.ops.aten
# A result may lie in memory in another order than torch traced: what it views is copied then.
_VIEWED = (_aten.view.default, _aten._unsafe_view.default)


def wanted(inputs: Sequence[Any], on_device: bool) -> bool:
    """Whether a call has to go this way: another engine has its tensors, or would make new ones."""
    if on_device and selecting.engine() != selecting.HOST:
        return True
    return any(
        isinstance(one, torch.Tensor)
        and one.device.type == storage.DEVICE
        and elsewhere.is_far(getattr(one.untyped_storage(), "held", None))
        for one in inputs
    )


def engine_of(inputs: Sequence[Any]) -> Any:
    """The engine of the first tensor that has one, else the one that would make new ones."""
    for one in inputs:
        if isinstance(one, torch.Tensor) and one.device.type == storage.DEVICE:
            held: Any = getattr(one.untyped_storage(), "held", None)
            if elsewhere.is_far(held):
                return held.engine
    return selecting.chosen()


def runner(
    module: GraphModule, outputs: Sequence[int | Callable[[Any], Any] | None], engine: Any
) -> Callable[[list[Any]], list[Any]]:
    """What is called with a list of inputs, which it empties; mostly on the engine's arrays."""
    made = GraphModule(module, copy.deepcopy(module.graph))
    for node in list(made.graph.nodes):
        if node.op == "call_function":
            _adapt(node)
    if hasattr(engine, "fused"):
        made = pieces.rebuilt(made, engine)
    made.recompile()

    def stepwise(args: list[Any]) -> list[Any]:
        given = list(args)
        args.clear()
        with torch.no_grad():
            found = made(*given)
            return [
                how.of_tensor(out) if isinstance(how, Output) else out
                for how, out in zip(outputs, found, strict=True)
            ]

    return stepwise


def _adapt(node: Node) -> None:
    """Let a node call what the device has."""
    drawing = _STATES.get(str(getattr(node.target, "_name", "")))
    if drawing is not None and source.place_of(node) == storage.DEVICE:
        node.target = drawing
    elif node.target in _VIEWED:
        node.target = _aten.reshape.default
    elif node.target is _aten.as_strided.default:
        base: Any = node.args[0]
        with node.graph.inserting_before(node):
            steps = nodes.steps_of(nodes.value_of(base))
            laid = node.graph.call_function(relaid, (base, steps))
        node.replace_input_with(base, laid)


def _noting_state(overload: Any, *args: Any, **kwargs: Any) -> Any:
    """The state of the device's random numbers, and what an overload then draws."""
    return seeds.get_rng_state(), overload(*args, **kwargs)


def _with_state(state: torch.Tensor, overload: Any, *args: Any, **kwargs: Any) -> Any:
    """What an overload draws from a state that was noted; the present one stays."""
    before = seeds.get_rng_state()
    seeds.set_rng_state(state)
    try:
        return overload(*args, **kwargs)
    finally:
        seeds.set_rng_state(before)


_STATES: dict[str, Callable[..., Any]] = {
    "run_and_save_rng_state": _noting_state,
    "run_with_rng_state": _with_state,
}
