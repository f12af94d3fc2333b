"""Pointwise calls of a graph as steps of the op table's fuser.

dtypes promote as they do where each op runs alone, and a chain gives the same result.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy

from holdfast.base.errors import HoldfastError
from holdfast.compute import dtype as dtypes
from holdfast.compute.autograd import tape
from holdfast.compute.engine import run
from holdfast.compute.fusion.chain import NotPointwise, Program, Step, Traced
from holdfast.compute.fusion.record import Recorder
from holdfast.compute.ops.rules import Meta
from holdfast.compute.ops.table import Op
from holdfast.compute.tensors.custom_tensor import CustomTensor
from holdfast.compute.tensors.device import CustomDevice

_WIDE = {dtypes.FLOAT32, dtypes.FLOAT64}
_KEPT = 16  # combinations of shapes whose recording a chain keeps


class Value(NamedTuple):
    """The value of a node, by its name."""

    name: str

    def __repr__(self) -> str:
        return self.name


class OpCall(NamedTuple):
    """A node that calls an op (None: a cast to the result's dtype), and its result."""

    name: str
    op: Op | None
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    meta: Meta


class Recording:
    """Records the steps of several calls; `inputs` are the values that none of them makes."""

    def __init__(self, known: Callable[[str], Meta]) -> None:
        self.recorder = Recorder()
        self.inputs: dict[str, Traced] = {}
        self.places: dict[str, Traced] = {}
        self._known = known
        self._device = CustomDevice.of(self.recorder)

    def add(self, call: OpCall) -> list[Step]:
        """Record one more call; return its steps. Raises NotPointwise."""
        before = len(self.recorder.steps)
        try:
            made = self._run(call)
        except (HoldfastError, TypeError, ValueError, AttributeError, IndexError) as exc:
            raise NotPointwise from exc
        steps = self.recorder.steps[before:]
        fresh = any(made is step.result for step in steps)
        if not fresh or made.shape != call.meta.shape or made.dtype != call.meta.dtype:
            raise NotPointwise
        self.places[call.name] = made
        return steps

    def _run(self, call: OpCall) -> Traced:
        args = [self._trace(a) for a in call.args]
        if call.op is None:
            return self.recorder.cast(args[0], call.meta.dtype)
        kwargs = {k: self._trace(v) for k, v in call.kwargs.items()}
        if call.op.name in self.recorder.kernels:
            if not kwargs and _are_ready(args):
                return self.recorder.call(call.op, args, kwargs)
            return run(call.op, self.recorder, args, kwargs)
        apart: Any = call.op.decomposition
        with tape.no_grad():
            out = apart(*map(self._tensor, args), **{k: self._tensor(v) for k, v in kwargs.items()})
        return getattr(out, "_array", out)

    def _tensor(self, value: Any) -> Any:
        return CustomTensor._wrap(value, self._device) if isinstance(value, Traced) else value

    def _trace(self, value: Any) -> Any:
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
    """Whether a kernel takes arguments as they are: one dtype, float32 or float64, and scalars."""
    kinds = {a.dtype for a in args if isinstance(a, Traced)}
    plain = all(isinstance(a, Traced) or type(a) in (int, float) for a in args)
    return plain and len(kinds) == 1 and kinds <= _WIDE


class Chain:
    """Calls that run in one pass; recorded for each combination of shapes."""

    def __init__(
        self, calls: Sequence[OpCall], inputs: Sequence[str], results: Sequence[str]
    ) -> None:
        self._calls, self._inputs, self._results = list(calls), list(inputs), list(results)
        self._programs: dict[Any, Program] = {}

    def __call__(self, *arrays: Any) -> list[Any]:
        """Compute the results from the inputs."""
        key = tuple(a.shape for a in arrays)
        program = self._programs.get(key)
        if program is None:
            if len(self._programs) >= _KEPT:
                self._programs.pop(next(iter(self._programs)))
            program = self._programs[key] = self._record(arrays)
        return program.on_arrays(arrays)

    def _record(self, arrays: Sequence[Any]) -> Program:
        metas = {
            name: Meta(tuple(a.shape), a.dtype)
            for name, a in zip(self._inputs, arrays, strict=True)
        }
        recording = record(self._calls, metas)
        places = recording.places
        return Program(
            [places[name] for name in self._inputs],
            recording.recorder.steps,
            [places[name] for name in self._results],
            recording.recorder.count,
        )


def record(calls: Sequence[OpCall], metas: Mapping[str, Meta]) -> Recording:
    """Record calls for inputs of these shapes and dtypes. Raises NotPointwise."""
    recording = Recording(metas.__getitem__)
    for name in metas:
        recording._trace(Value(name))
    for call in calls:
        values = [v for v in (*call.args, *call.kwargs.values()) if isinstance(v, Value)]
        made = numpy.broadcast_shapes(*(recording.places[v.name].shape for v in values))
        recording.add(call._replace(meta=Meta(made, call.meta.dtype)))
    return recording


def steps_of(
    call: OpCall, metas: Mapping[str, Meta]
) -> tuple[list[Step], dict[str, Traced]] | None:
    """The steps of a call alone, and its values by name; None where it is not pointwise."""
    recording = Recording(metas.__getitem__)
    try:
        steps = recording.add(call)
    except (NotPointwise, KeyError):
        return None
    return steps, recording.places
