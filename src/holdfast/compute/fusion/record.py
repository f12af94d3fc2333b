"""`fuse(function)`: a chain of pointwise ops in one pass over memory.

    @fuse
    def swish_shift(x, y):
        return x * (1 + y).sigmoid() + 0.5

Unfused, each op reads and writes whole arrays in memory; fused, a block passes through all ops
while it is in the cache. Results equal the plain function's up to rounding. A function that is
not pointwise throughout, needs gradients or reads elements is called unfused. A recording is
made once for each combination of shapes, dtypes and other arguments, so the function must
depend on its arguments only.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy

from holdfast.base.errors import HoldfastError
from holdfast.compute.autograd import tape
from holdfast.compute.engine import ENGINES
from holdfast.compute.fusion.chain import NotPointwise, Program, Step, Traced
from holdfast.compute.ops.rules import Meta
from holdfast.compute.ops.table import OPS, Op
from holdfast.compute.tensors.custom_tensor import CustomTensor
from holdfast.compute.tensors.device import CustomDevice

_KEPT = 64  # recordings of one function


def fuse(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap `function` so that its pointwise ops run in one pass where possible."""
    programs: dict[Any, FusedCall | None] = {}

    @functools.wraps(function)
    def fused(*args: Any, **kwargs: Any) -> Any:
        tensors = [v for v in (*args, *kwargs.values()) if isinstance(v, CustomTensor)]
        key = _key(tensors, args, kwargs)
        if key is None:
            return function(*args, **kwargs)
        if key not in programs:
            if len(programs) >= _KEPT:
                programs.pop(next(iter(programs)))
            programs[key] = _record(function, args, kwargs)
        recorded = programs[key]
        made = None if recorded is None else recorded.program.run(tensors)
        if recorded is None or made is None:
            return function(*args, **kwargs)
        return made[0] if recorded.container is None else recorded.container(made)

    return fused


def _key(tensors: list[CustomTensor], args: Any, kwargs: Any) -> Any:
    """What a recording depends on; None if the call cannot be recorded."""
    engine: Any = tensors[0].device.engine if tensors else None
    if (
        (engine is not ENGINES["numpy"] and not hasattr(engine, "fuse"))
        or any(t.device.engine is not engine for t in tensors)
        or (tape.mode.enabled and any(t.requires_grad for t in tensors))
    ):
        return None

    def one(value: Any) -> Any:
        if isinstance(value, CustomTensor):
            return value.shape, value.dtype
        if isinstance(value, float | complex):
            return type(value), repr(value)  # -0.0 is no 0.0 here, and one nan is another
        return type(value), value

    named = tuple((k, one(v)) for k, v in sorted(kwargs.items()))
    key = engine, tuple(map(one, args)), named
    try:
        hash(key)
    except TypeError:
        return None
    return key


# ---- recording


class FusedCall(NamedTuple):
    """A program, and in what its results are returned: a list, a tuple or alone."""

    program: Any  # a `Program`, or what an engine makes of the steps: it has `run(tensors)`
    container: type | None


@dataclass
class Recorder:
    """An engine that records calls instead of computing."""

    steps: list[Step] = field(default_factory=list)
    count: int = 0
    name: str = "numpy"
    kernels: Any = field(default_factory=lambda: _MARKED)

    def on(self, index: int) -> Recorder:
        return self

    def new(self, meta: Meta) -> Traced:
        """A placeholder for an array."""
        self.count += 1
        return Traced(meta, self.count - 1)

    def call(self, kernel: Any, args: Any, kwargs: Any) -> Any:
        op = kernel if isinstance(kernel, Op) else None
        if op is None or op.rule.kind is None or op.rule.infer is None:
            raise NotPointwise
        if op.effect or op.schema.view or op.schema.returns != 1:
            raise NotPointwise
        bound = op.schema.bind(args, kwargs)
        meta = op.rule.infer(op, bound)
        if not isinstance(meta, Meta):
            raise NotPointwise
        function, args, kwargs = _straight(op, tuple(args), kwargs)
        return self._note(function, args, kwargs, meta, (op, bound))

    def _note(
        self, function: Any, args: Any, kwargs: Any, meta: Meta, called: Any = None
    ) -> Traced:
        if any(getattr(v, "ndim", 0) and not isinstance(v, Traced) for v in args):
            raise NotPointwise  # an array that did not come in as an argument
        if any(hasattr(v, "ndim") for v in kwargs.values()):
            raise NotPointwise
        made = self.new(meta)
        self.steps.append(Step(function, args, kwargs, made, called))
        return made

    def cast(self, array: Traced, dtype: Any) -> Any:
        if array.dtype == dtype:
            return array
        meta = Meta(array.shape, dtype)
        return self._note(cast_step, (array, dtype), {}, meta)

    def upload(self, array: Any) -> Any:
        if getattr(array, "ndim", 1):
            raise NotPointwise
        return array

    def alloc(self, *_: Any) -> Any:
        raise NotPointwise

    download = write = alloc


def cast_step(array: Any, dtype: Any) -> Any:
    """Run a recorded cast."""
    return ENGINES["numpy"].cast(array, dtype)


class _Marked:
    """Maps each op that has a NumPy kernel to itself."""

    def __contains__(self, name: object) -> bool:
        return name in ENGINES["numpy"].kernels

    def get(self, name: str, default: Any = None) -> Any:
        return OPS[name] if name in self else default


_MARKED: Any = _Marked()

_UFUNCS = {"add": numpy.add, "sub": numpy.subtract, "mul": numpy.multiply}


def _straight(op: Op, args: tuple[Any, ...], kwargs: Any) -> tuple[Any, tuple[Any, ...], Any]:
    """The kernel of a call; an equivalent NumPy ufunc if there is one: it can write to a buffer."""
    kernel = ENGINES["numpy"].kernels[op.name]
    ufunc = _UFUNCS.get(op.schema.base)
    floating = any(isinstance(a, Traced) and a.dtype.kind == "f" for a in args)
    alpha = kwargs.get("alpha", args[2] if len(args) > 2 else 1)
    if ufunc is not None and floating and alpha == 1:
        return ufunc, args[:2], {}
    if op.name == "relu" and floating:
        return numpy.maximum, (*args[:1], 0), {}
    return kernel, args, kwargs


def _record(function: Callable[..., Any], args: Any, kwargs: Any) -> FusedCall | None:
    """Record the ops that a function calls; None if it must be called unfused."""
    recorder = Recorder()
    device = CustomDevice.of(recorder)

    def stand_in(value: Any) -> Any:
        if not isinstance(value, CustomTensor):
            return value
        return CustomTensor._wrap(recorder.new(Meta(value.shape, value.dtype)), device)

    given = [stand_in(a) for a in args]
    named = {k: stand_in(v) for k, v in kwargs.items()}
    inputs = [v._array for v in (*given, *named.values()) if isinstance(v, CustomTensor)]
    tensors = (v for v in (*args, *kwargs.values()) if isinstance(v, CustomTensor))
    engine = next(tensors).device.engine
    try:
        with tape.no_grad():
            out = function(*given, **named)
        return _program(recorder, engine, inputs, out)
    except (NotPointwise, HoldfastError, TypeError, ValueError, AttributeError):
        return None  # the plain call says what is wrong, if anything is


def _program(recorder: Recorder, engine: Any, inputs: list[Traced], out: Any) -> FusedCall | None:
    many = isinstance(out, list | tuple)
    results = [getattr(o, "_array", None) for o in (out if many else [out])]
    made = {step.result.place for step in recorder.steps}
    found = [r for r in results if isinstance(r, Traced) and r.place in made]
    if not found or len({r.place for r in found}) != len(results):
        return None
    whole = found[0].shape
    shapes = [*(s.result.shape for s in recorder.steps), *(i.shape for i in inputs)]
    if (
        any(r.shape != whole for r in found)
        or not math.prod(whole)
        or any(numpy.broadcast_shapes(shape, whole) != whole for shape in shapes)
    ):
        return None
    if engine is ENGINES["numpy"]:
        program = Program(inputs, recorder.steps, found, recorder.count)
    else:
        program = engine.fuse(inputs, recorder.steps, found)
    if program is None:
        return None
    return FusedCall(program, (list if isinstance(out, list) else tuple) if many else None)
