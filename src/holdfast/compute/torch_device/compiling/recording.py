"""Pointwise calls of a graph as steps of the op table's fuser.

Covers: recording calls without computing, a chain of them that runs in one pass over blocks.
Leaves to others: which calls make a chain (`grouping`), running blocks (`compute.fused`).
Promise: formats meet as they do where each op runs alone; a chain makes the same numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy

from holdfast.base.errors import HoldfastError
from holdfast.compute import autograd
from holdfast.compute import dtype as formats
from holdfast.compute.device import CustomDevice
from holdfast.compute.engine import run
from holdfast.compute.fused import NotPointwise, Program, Step, Traced
from holdfast.compute.fusion import Recorder
from holdfast.compute.ops.rules import Meta
from holdfast.compute.ops.table import Op
from holdfast.compute.tensors import CustomTensor

_WIDE = {formats.FLOAT32, formats.FLOAT64}
_KEPT = 16  # shapes that a chain is kept ready for


class Value(NamedTuple):
    """Stands for what a node of the graph holds, by its name."""

    name: str

    def __repr__(self) -> str:
        return self.name


class Call(NamedTuple):
    """A node that calls an op (None: a cast to the result's format), and what comes out."""

    name: str
    op: Op | None
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    meta: Meta


class Recording:
    """Steps of several calls; `inputs` are the values that none of them makes."""

    def __init__(self, known: Callable[[str], Meta]) -> None:
        self.recorder = Recorder()
        self.inputs: dict[str, Traced] = {}
        self.places: dict[str, Traced] = {}
        self._known = known
        self._device: Any = object.__new__(CustomDevice)
        self._device.device_type, self._device.index = "recording", 0
        self._device.engine = self.recorder

    def add(self, call: Call) -> list[Step]:
        """The steps of one more call. Raises NotPointwise."""
        before = len(self.recorder.steps)
        try:
            made = self._called(call)
        except (HoldfastError, TypeError, ValueError, AttributeError, IndexError) as exc:
            raise NotPointwise from exc
        steps = self.recorder.steps[before:]
        fresh = any(made is step.result for step in steps)
        if not fresh or made.shape != call.meta.shape or made.dtype != call.meta.dtype:
            raise NotPointwise
        self.places[call.name] = made
        return steps

    def _called(self, call: Call) -> Traced:
        args = [self._traced(a) for a in call.args]
        if call.op is None:
            return self.recorder.cast(args[0], call.meta.dtype)
        kwargs = {k: self._traced(v) for k, v in call.kwargs.items()}
        if call.op.name in self.recorder.kernels:
            ready = not kwargs and _are_ready(args)
            return (_straight if ready else run)(call.op, self.recorder, args, kwargs)
        apart: Any = call.op.decomposition
        with autograd.no_grad():
            out = apart(*map(self._tensor, args), **{k: self._tensor(v) for k, v in kwargs.items()})
        return getattr(out, "_array", out)

    def _tensor(self, value: Any) -> Any:
        return CustomTensor._wrap(value, self._device) if isinstance(value, Traced) else value

    def _traced(self, value: Any) -> Any:
        if isinstance(value, list | tuple) and not isinstance(value, Value):
            if any(isinstance(v, Value) for v in value):
                raise NotPointwise
            return value
        if not isinstance(value, Value):
            return value
        found = self.places.get(value.name)
        if found is None:
            found = self.inputs[value.name] = self.recorder.new(self._known(value.name))
            self.places[value.name] = found
        return found


def _are_ready(args: Sequence[Any]) -> bool:
    """Whether a kernel takes arguments as they are: one wide float format, and plain numbers."""
    kinds = {a.dtype for a in args if isinstance(a, Traced)}
    plain = all(isinstance(a, Traced) or type(a) in (int, float) for a in args)
    return plain and len(kinds) == 1 and kinds <= _WIDE


def _straight(op: Op, recorder: Recorder, args: Any, kwargs: Any) -> Any:
    return recorder.call(op, args, kwargs)


class Chain:
    """Calls that run in one pass; recorded anew for each combination of shapes."""

    def __init__(
        self, calls: Sequence[Call], inputs: Sequence[str], results: Sequence[str]
    ) -> None:
        self._calls, self._inputs, self._results = list(calls), list(inputs), list(results)
        self._programs: dict[Any, Program] = {}

    def __call__(self, *arrays: Any) -> list[Any]:
        """Arrays of the results, given those of the inputs."""
        key = tuple(a.shape for a in arrays)
        program = self._programs.get(key)
        if program is None:
            if len(self._programs) >= _KEPT:
                self._programs.pop(next(iter(self._programs)))
            program = self._programs[key] = self._recorded(arrays)
        return program.on_arrays(arrays)

    def _recorded(self, arrays: Sequence[Any]) -> Program:
        metas = {
            name: Meta(tuple(a.shape), a.dtype)
            for name, a in zip(self._inputs, arrays, strict=True)
        }
        recording = recorded(self._calls, metas)
        places = recording.places
        return Program(
            [places[name] for name in self._inputs],
            recording.recorder.steps,
            [places[name] for name in self._results],
            recording.recorder.count,
        )


def recorded(calls: Sequence[Call], metas: Mapping[str, Meta]) -> Recording:
    """Calls recorded for inputs of these shapes and formats. Raises NotPointwise."""
    recording = Recording(metas.__getitem__)
    for name in metas:
        recording._traced(Value(name))
    for call in calls:
        made = _shaped(call, recording)
        recording.add(call._replace(meta=Meta(made, call.meta.dtype)))
    return recording


def _shaped(call: Call, recording: Recording) -> tuple[int, ...]:
    """The shape of a call's result, which depends on those of the inputs."""
    values = [v for v in (*call.args, *call.kwargs.values()) if isinstance(v, Value)]
    return numpy.broadcast_shapes(*(recording.places[v.name].shape for v in values))


def steps_of(call: Call, metas: Mapping[str, Meta]) -> tuple[list[Step], dict[str, Traced]] | None:
    """How a call runs alone, and the places of its values; None where it is not pointwise."""
    recording = Recording(metas.__getitem__)
    try:
        steps = recording.add(call)
    except (NotPointwise, KeyError):
        return None
    return steps, recording.places
