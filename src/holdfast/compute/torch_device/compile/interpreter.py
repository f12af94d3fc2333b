"""Run a graph node by node on tensors, for engines whose arrays generated source cannot read."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx import GraphModule, Node

from holdfast.compute.torch_device.api import engine_choice, seeds
from holdfast.compute.torch_device.compile import codegen, launch_groups, nodes
from holdfast.compute.torch_device.compile.runtime import Output, lay_out_tensor
from holdfast.compute.torch_device.storage import remote_storage, tensor_bridge

_aten: Any = torch.ops.aten
# A result may have other strides than torch traced: views of it are copied then.
_VIEWED = (_aten.view.default, _aten._unsafe_view.default)


def engine_of(inputs: Sequence[Any], on_device: bool) -> Any:
    """The engine other than NumPy that has the tensors of a call, or makes new ones; else None."""
    for one in inputs:
        if isinstance(one, torch.Tensor) and one.device.type == tensor_bridge.DEVICE:
            held: Any = getattr(one.untyped_storage(), "held", None)
            if remote_storage.is_remote(held):
                return held.engine
    elsewhere = on_device and engine_choice.engine() != engine_choice.HOST
    return engine_choice.engine_on() if elsewhere else None


def make_runner(
    module: GraphModule, outputs: Sequence[int | Callable[[Any], Any] | None], engine: Any
) -> Callable[[list[Any]], list[Any]]:
    """A function of a list of inputs, which it empties."""
    made = GraphModule(module, copy.deepcopy(module.graph))
    for node in list(made.graph.nodes):
        if node.op == "call_function":
            _adapt(node)
    if hasattr(engine, "fuse"):
        made = launch_groups.rebuild(made, engine)
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
    """Replace a node's target by one that works on the device."""
    drawing = _STATES.get(str(getattr(node.target, "_name", "")))
    if drawing is not None and codegen.place_of(node) == tensor_bridge.DEVICE:
        node.target = drawing
    elif node.target in _VIEWED:
        node.target = _aten.reshape.default
    elif node.target is _aten.as_strided.default:
        base: Any = node.args[0]
        with node.graph.inserting_before(node):
            steps = nodes.steps_of(nodes.value_of(base))
            laid = node.graph.call_function(lay_out_tensor, (base, steps))
        node.replace_input_with(base, laid)


def _save_state(overload: Any, *args: Any, **kwargs: Any) -> Any:
    return seeds.get_rng_state(), overload(*args, **kwargs)


def _with_state(state: torch.Tensor, overload: Any, *args: Any, **kwargs: Any) -> Any:
    with seeds.using_state(state):
        return overload(*args, **kwargs)


_STATES: dict[str, Callable[..., Any]] = {
    "run_and_save_rng_state": _save_state,
    "run_with_rng_state": _with_state,
}
