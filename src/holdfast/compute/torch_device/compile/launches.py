"""A run of pointwise nodes as one launch of a kernel (the engine's `fuse`).

Where the engine cannot, the nodes are called one by one, with the same result. Intermediate values
get no memory. Shapes and engines may change from call to call.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy
import torch
from torch.fx import Graph, GraphModule, Node

from holdfast.base.errors import HoldfastError
from holdfast.compute.fusion.chain import NotPointwise
from holdfast.compute.ops.rules import Meta
from holdfast.compute.torch_device.api import engine_choice
from holdfast.compute.torch_device.compile.fusion_steps import record
from holdfast.compute.torch_device.compile.grouping import Group
from holdfast.compute.torch_device.error_translation import to_torch_error
from holdfast.compute.torch_device.storage import tensor_bridge

_KEPT = 16  # combinations of shapes whose kernel a launch keeps
_ndarray = numpy.ndarray


def fuse_group(
    group: Group, results: Sequence[Node], metas: Mapping[str, Meta], engine: Any
) -> Any:
    """What computes a group for inputs of these shapes; None where the engine cannot.

    `metas` are those of the inputs, by name.
    """
    try:
        recording = record(group.calls, metas)
    except (NotPointwise, KeyError, ValueError):
        return None
    places = recording.places
    found = [places[result.name] for result in results]
    whole = found[0].shape
    if 0 in whole or any(one.shape != whole for one in found):
        return None
    if any(numpy.broadcast_shapes(p.shape, whole) != whole for p in places.values()):
        return None
    numbers = [places[i.name] for i in group.inputs() if _is_number(i)]
    return engine.fuse([places[name] for name in metas], recording.recorder.steps, found, numbers)


def _is_number(node: Node) -> bool:
    """Whether a kernel is given a value as a number: tensors on the CPU have one."""
    return node.meta["val"].device.type == "cpu"


class Launch:
    """A group as a function of tensors.

    `into` names inputs that get a result in place of their numbers. Returned are the others: one
    alone, several as a list.
    """

    def __init__(self, name: str, group: Group, into: Mapping[Node, Node]) -> None:
        self.__name__, self.__module__ = name, __name__  # what the source of a graph calls it
        self._group = group
        self._results = group.results()
        read = group.inputs()
        self.inputs = [*read, *(target for target in into.values() if target not in read)]
        self._read = [node.name for node in read]
        self._numbers = [_is_number(node) for node in self.inputs]
        self._targets = [self.inputs.index(into[r]) if r in into else None for r in self._results]
        self.returned = [r for r in self._results if r not in into]
        self._programs: dict[Any, Any] = {}

    def __call__(self, *tensors: torch.Tensor) -> Any:
        try:
            outs = self._launch(tensors)
        except HoldfastError as exc:
            raise to_torch_error(exc) from exc.__cause__
        if outs is None:
            outs = self._one_by_one(tensors)
        return outs[0] if len(outs) == 1 else outs

    def _launch(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor] | None:
        arrays = [tensor_bridge.as_array(t) for t in tensors]
        program = self._program(arrays)
        if program is None:
            return None
        into = [None if place is None else arrays[place] for place in self._targets]
        if not all(p is None or _is_free(arrays, p, program.shape) for p in self._targets):
            return None
        found = program.try_arrays(arrays[: len(self._read)], into)
        if found is None:
            return None
        pairs = zip(found, self._targets, strict=True)
        return [tensor_bridge.as_tensor(array) for array, place in pairs if place is None]

    def _program(self, arrays: Sequence[Any]) -> Any:
        engine, mixed = engine_choice.engine_of_arrays(arrays)
        if mixed and [type(a) is _ndarray for a in arrays] != self._numbers:
            return None  # NumPy has tensors of the device as well
        key = engine, *(a.shape for a in arrays)
        if key not in self._programs:
            if len(self._programs) >= _KEPT:
                self._programs.pop(next(iter(self._programs)))
            pairs = zip(self._read, arrays, strict=False)
            metas = {name: Meta(tuple(a.shape), a.dtype) for name, a in pairs}
            able = hasattr(engine, "fuse")
            made = fuse_group(self._group, self._results, metas, engine) if able else None
            self._programs[key] = made
        return self._programs[key]

    # ---- where the engine cannot

    def _one_by_one(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        outs = self._plain(*tensors[: len(self._read)])
        for out, place in zip(outs, self._targets, strict=True):
            if place is not None:
                tensors[place].copy_(out)
        return [out for out, p in zip(outs, self._targets, strict=True) if p is None]

    @functools.cached_property
    def _plain(self) -> GraphModule:
        graph, made = Graph(), {}
        for node in self._group.inputs():
            made[node] = graph.placeholder(node.name)
        for node in self._group.nodes:
            made[node] = graph.node_copy(node, made.__getitem__)
        graph.output(tuple(made[r] for r in self._results))
        return GraphModule(torch.nn.Module(), graph)


def _is_free(arrays: Sequence[Any], place: int, shape: tuple[int, ...]) -> bool:
    """Whether an array may be written to, in this shape, while the others are read."""
    target = arrays[place]
    if target.shape != shape:
        return False
    if any(n > 1 and not s for n, s in zip(target.shape, target.strides, strict=True)):
        return False
    others = (a for n, a in enumerate(arrays) if n != place and type(a) is not _ndarray)
    return all(other.memory is not target.memory for other in others)
