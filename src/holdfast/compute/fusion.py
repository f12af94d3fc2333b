"""A chain of pointwise ops in one pass: `fuse(function)`.

    @fuse
    def swish_shift(x, y):
        return x * (1 + y).sigmoid() + 0.5

Covers: recording the ops that a function calls, running them block by block on all threads.
Leaves to others: the ops themselves, which are those of the table.
Promise: results are those of the plain function, to the last bits; a function that is not
pointwise all through, wants gradients or looks at numbers is called as it is. A recording is made
once for each combination of shapes, formats and other arguments, so the function must depend on
nothing else: what it computes with comes in as arguments.

Unfused, each op reads and writes whole arrays, which come from memory when they are large. Here a
block goes through all ops while it is in the cache.
"""

from __future__ import annotations

import functools
import math
import operator
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy

from holdfast.base.errors import HoldfastError
from holdfast.compute import autograd, threads
from holdfast.compute import dtype as formats
from holdfast.compute.device import CustomDevice
from holdfast.compute.engine import ENGINES
from holdfast.compute.engines.numpy import chains
from holdfast.compute.ops.rules import Meta
from holdfast.compute.ops.table import OPS, Op
from holdfast.compute.tensors import CustomTensor

_BLOCK = 1 << 16  # numbers of a block on one thread: its buffers stay in the L2 cache
_SHARED = 1 << 17  # on several threads: between two ops they take turns in Python
_KEPT = 64  # recordings of one function


def fuse(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function` with its pointwise ops done in one pass, where that can be."""
    programs: dict[Any, Recorded | None] = {}

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
        if recorded is None:
            return function(*args, **kwargs)
        made = recorded.program.run(tensors)
        return made[0] if recorded.container is None else recorded.container(made)

    return fused


def _key(tensors: list[CustomTensor], args: Any, kwargs: Any) -> Any:
    """What a recording depends on; None where there can be none."""
    if not tensors or any(t.device.engine is not ENGINES["numpy"] for t in tensors):
        return None
    if autograd.mode.enabled and any(t.requires_grad for t in tensors):
        return None

    def one(value: Any) -> Any:
        if isinstance(value, CustomTensor):
            return value.shape, value.dtype
        return type(value), value

    key = tuple(map(one, args)), tuple((k, one(v)) for k, v in sorted(kwargs.items()))
    try:
        hash(key)
    except TypeError:
        return None
    return key


# ---- recording


class _Plain(Exception):
    """This function cannot be fused."""


class Traced:
    """Stands for an array while a function is recorded."""

    __slots__ = ("dtype", "ndim", "place", "shape")

    def __init__(self, meta: Meta, place: int) -> None:
        self.shape, self.dtype, self.ndim = tuple(meta.shape), meta.dtype, len(meta.shape)
        self.place = place

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise _Plain


class Recorded(NamedTuple):
    """A program, and in what its results are returned: a list, a tuple or alone."""

    program: Program
    container: type | None


class Step(NamedTuple):
    """One op: its kernel, its arguments (`Traced` where they are arrays), its result."""

    kernel: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    result: Traced


@dataclass
class _Recorder:
    """An engine that computes nothing: it notes what it should have computed."""

    steps: list[Step] = field(default_factory=list)
    count: int = 0
    name: str = "numpy"
    kernels: Any = field(default_factory=lambda: _MARKED)

    def on(self, index: int) -> _Recorder:
        return self

    def new(self, meta: Meta) -> Traced:
        """A place for an array."""
        self.count += 1
        return Traced(meta, self.count - 1)

    def call(self, kernel: Any, args: Any, kwargs: Any) -> Any:
        op = kernel if isinstance(kernel, Op) else None
        if op is None or op.rule.kind is None or op.rule.infer is None:
            raise _Plain
        if op.effect or op.schema.view or op.schema.returns != 1:
            raise _Plain
        bound = op.schema.bind(args, kwargs)
        meta = op.rule.infer(op, bound)
        if not isinstance(meta, Meta):
            raise _Plain
        function, args, kwargs = _straight(op, tuple(args), kwargs)
        return self._note(function, args, kwargs, meta)

    def _note(self, function: Any, args: Any, kwargs: Any, meta: Meta) -> Traced:
        if any(getattr(v, "ndim", 0) and not isinstance(v, Traced) for v in args):
            raise _Plain  # an array that did not come in as an argument
        if any(hasattr(v, "ndim") for v in kwargs.values()):
            raise _Plain
        made = self.new(meta)
        self.steps.append(Step(function, args, kwargs, made))
        return made

    def cast(self, array: Traced, dtype: Any) -> Any:
        if array.dtype == dtype:
            return array
        meta = Meta(array.shape, dtype)
        return self._note(_cast, (array, dtype), {}, meta)

    def upload(self, array: Any) -> Any:
        if getattr(array, "ndim", 1):
            raise _Plain
        return array

    def alloc(self, shape: Any, dtype: Any) -> Any:
        raise _Plain

    def download(self, array: Any) -> Any:
        raise _Plain

    def write(self, array: Any, value: Any) -> None:
        raise _Plain


def _cast(array: Any, dtype: Any) -> Any:
    return ENGINES["numpy"].cast(array, dtype)


class _Marked:
    """Every op that the NumPy engine has a kernel for, which stands for itself."""

    def __contains__(self, name: object) -> bool:
        return name in ENGINES["numpy"].kernels

    def get(self, name: str, default: Any = None) -> Any:
        return OPS[name] if name in self else default


_MARKED: Any = _Marked()

_UFUNCS = {"add": numpy.add, "sub": numpy.subtract, "mul": numpy.multiply}


def _straight(op: Op, args: tuple[Any, ...], kwargs: Any) -> tuple[Any, tuple[Any, ...], Any]:
    """The kernel for a call, NumPy's own function where it does the same: that can write to a
    buffer."""
    kernel = ENGINES["numpy"].kernels[op.name]
    ufunc = _UFUNCS.get(op.schema.base)
    floating = any(isinstance(a, Traced) and a.dtype.kind == "f" for a in args)
    alpha = kwargs.get("alpha", args[2] if len(args) > 2 else 1)
    if ufunc is not None and floating and alpha == 1:
        return ufunc, args[:2], {}
    if op.name == "relu" and floating:
        return numpy.maximum, (args[0], 0), {}
    return kernel, args, kwargs


def _record(function: Callable[..., Any], args: Any, kwargs: Any) -> Recorded | None:
    """The ops that a function calls, as a program; None where it has to be called itself."""
    recorder = _Recorder()
    device: Any = object.__new__(CustomDevice)
    device.device_type, device.index, device.engine = "recording", 0, recorder

    def stand_in(value: Any) -> Any:
        if not isinstance(value, CustomTensor):
            return value
        return CustomTensor._wrap(recorder.new(Meta(value.shape, value.dtype)), device)

    given = [stand_in(a) for a in args]
    named = {k: stand_in(v) for k, v in kwargs.items()}
    inputs = [v._array for v in (*given, *named.values()) if isinstance(v, CustomTensor)]
    try:
        with autograd.no_grad():
            out = function(*given, **named)
        return _program(recorder, inputs, out)
    except (_Plain, HoldfastError, TypeError, ValueError, AttributeError):
        return None  # the plain call says what is wrong, if anything is


def _program(recorder: _Recorder, inputs: list[Traced], out: Any) -> Recorded | None:
    many = isinstance(out, list | tuple)
    results = [getattr(o, "_array", None) for o in (out if many else [out])]
    made = {step.result.place for step in recorder.steps}
    found = [r for r in results if isinstance(r, Traced) and r.place in made]
    if not found or len({r.place for r in found}) != len(results):
        return None
    whole = found[0].shape
    shapes = [*(s.result.shape for s in recorder.steps), *(i.shape for i in inputs)]
    if any(r.shape != whole for r in found) or not math.prod(whole):
        return None
    if any(numpy.broadcast_shapes(shape, whole) != whole for shape in shapes):
        return None
    program = Program(inputs, recorder.steps, found, recorder.count)
    return Recorded(program, (list if isinstance(out, list) else tuple) if many else None)


# ---- running


class Task(NamedTuple):
    """One op on a block: it reads registers and writes to one, or leaves a new array there."""

    kernel: Callable[..., Any]
    reads: tuple[int, ...]
    pick: Callable[[list[Any]], Any]
    kwargs: dict[str, Any]
    register: int
    fresh: bool


class Program:
    """A recorded function: `small` ops are done once, the others for each block.

    Registers hold, in this order, the arrays of the recording, numbers, and buffers.
    """

    def __init__(
        self, inputs: list[Traced], steps: list[Step], results: list[Traced], count: int
    ) -> None:
        self.inputs, self.results, self.count = inputs, results, count
        self.shape = results[0].shape
        self.small = [s for s in steps if s.result.shape != self.shape]
        large = [s for s in steps if s.result.shape == self.shape]
        self._constants: list[Any] = []
        self._buffers: list[Any] = []  # their formats
        last = {a.place: n for n, s in enumerate(large) for a in s.args if isinstance(a, Traced)}
        last.update({r.place: len(large) for r in results})
        numbers = sum(1 for s in large for a in s.args if not isinstance(a, Traced))
        self._tasks = self._assign(large, last, count + numbers)
        self._compiled = self._orders() if all(_plain(s) for s in large) else None

    def _assign(self, steps: list[Step], last: dict[int, int], first: int) -> list[Task]:
        """Give every result a register; a buffer that is not read again is used again."""
        where = {r.place: r.place for r in self.results}
        free: dict[Any, list[int]] = {}
        tasks = []
        for number, step in enumerate(steps):
            place, kind = step.result.place, step.result.dtype
            reads = [self._read(a, where) for a in step.args]
            for a in {a.place for a in step.args if isinstance(a, Traced)}:
                register = where.get(a, a)
                if register >= first and last[a] == number:
                    free.setdefault(self._buffers[register - first], []).append(register)
            fresh = not isinstance(step.kernel, numpy.ufunc)
            if place not in where and not fresh:
                # Element by element: it may write where it reads for the last time.
                spare = free.get(kind)
                where[place] = spare.pop() if spare else first + len(self._buffers)
                if where[place] == first + len(self._buffers):
                    self._buffers.append(kind)
            register = where.setdefault(place, place)
            tasks.append(
                Task(step.kernel, tuple(reads), _picker(reads), step.kwargs, register, fresh)
            )
        return tasks

    def _orders(self) -> chains.Chain:
        """The same for the C loop."""
        orders = [
            (chains.CODES[t.kernel], t.register, t.reads[0], t.reads[-1]) for t in self._tasks
        ]
        return chains.Chain(orders, self.count, self._constants, len(self._buffers))

    def _read(self, value: Any, where: dict[int, int]) -> int:
        if isinstance(value, Traced):
            return where.get(value.place, value.place)
        self._constants.append(value)
        return self.count + len(self._constants) - 1

    def run(self, tensors: list[CustomTensor]) -> list[CustomTensor]:
        """The results for these inputs, each of which stands where it stood when recorded."""
        engine = ENGINES["numpy"]
        outs = [engine.alloc(self.shape, r.dtype) for r in self.results]
        places: list[Any] = [None] * self.count
        for traced, tensor in zip(self.inputs, tensors, strict=True):
            places[traced.place] = tensor._array
        engine.call(self._compute, (places, outs), {})
        return [CustomTensor._wrap(out, tensors[0].device) for out in outs]

    def _compute(self, places: list[Any], outs: list[Any]) -> None:
        for step in self.small:
            args = [places[a.place] if isinstance(a, Traced) else a for a in step.args]
            places[step.result.place] = step.kernel(*args, **step.kwargs)
        for result, out in zip(self.results, outs, strict=True):
            places[result.place] = out
        if self._compiled is not None and self._compiled.run(places, self.shape):
            return
        size, team = math.prod(self.shape), threads.get_num_threads()
        block = _BLOCK if team == 1 else min(_SHARED, max(_BLOCK, -(-size // team)))
        views, cuts = self._cut(places, block)

        def work(number: int) -> None:
            self._chain([v[cuts[number]] if whole else v for v, whole in views])

        threads.share_out(work, len(cuts))

    def _cut(self, places: list[Any], block: int) -> tuple[list[tuple[Any, bool]], list[Any]]:
        """Arrays, and indices of blocks: flat where all lie alike, else along dimensions."""
        large = [p is not None and p.ndim > 0 for p in places]
        arrays = [p for p, whole in zip(places, large, strict=True) if whole]
        flat = all(a.shape == self.shape and a.flags.c_contiguous for a in arrays)
        if flat:
            size = math.prod(self.shape)
            cuts: list[Any] = [slice(s, s + block) for s in range(0, size, block)]
            shape: tuple[int, ...] = (size,)
        else:
            cuts, shape = list(_cuts(self.shape, block)), self.shape
        results = {r.place for r in self.results}
        views = []
        for number, (array, whole) in enumerate(zip(places, large, strict=True)):
            if whole and flat:
                array = array.reshape(shape)
            elif whole and number not in results:
                array = numpy.broadcast_to(array, shape)
            views.append((array, whole))
        return views, cuts

    def _chain(self, registers: list[Any]) -> None:
        """Every op on one block."""
        shape = registers[self.results[0].place].shape
        registers += self._constants
        registers += _scratch.of(self._buffers, shape)
        for kernel, _, pick, kwargs, register, fresh in self._tasks:
            if not fresh:
                kernel(*pick(registers), out=registers[register])
            elif (target := registers[register]) is not None:
                target[...] = kernel(*pick(registers), **kwargs)
            else:
                registers[register] = kernel(*pick(registers), **kwargs)


def _plain(step: Step) -> bool:
    """Whether the C loop can do a step."""
    values = (a.dtype if isinstance(a, Traced) else type(a) for a in step.args)
    return step.kernel in chains.CODES and all(
        kind in (formats.FLOAT32, int, float) for kind in (*values, step.result.dtype)
    )


class _Scratch(threading.local):
    """Buffers of a thread, which stay."""

    def __init__(self) -> None:
        self.kept: dict[Any, list[Any]] = {}

    def of(self, kinds: list[Any], shape: tuple[int, ...]) -> list[Any]:
        """One buffer for each format in the list."""
        size, taken, found = math.prod(shape), dict.fromkeys(kinds, 0), []
        for kind in kinds:
            kept = self.kept.setdefault(kind, [])
            if taken[kind] == len(kept):
                kept.append(numpy.empty(size, kind))
            if kept[taken[kind]].size < size:
                kept[taken[kind]] = numpy.empty(size, kind)
            found.append(kept[taken[kind]][:size].reshape(shape))
            taken[kind] += 1
        return found


_scratch = _Scratch()


def _picker(reads: list[int]) -> Callable[[list[Any]], Any]:
    if len(reads) > 1:
        return operator.itemgetter(*reads)
    only = reads[0]
    return lambda registers: (registers[only],)


def _cuts(shape: tuple[int, ...], block: int) -> Iterator[tuple[Any, ...]]:
    """Indices that cut an array into parts of about `block` numbers."""
    axis, inside = 0, math.prod(shape)
    while axis < len(shape) - 1 and inside // max(shape[axis], 1) > block:
        inside //= shape[axis]
        axis += 1
    inside //= max(shape[axis], 1)
    step = max(1, block // max(inside, 1))
    for outer in numpy.ndindex(*shape[:axis]):
        for start in range(0, shape[axis], step):
            yield (*outer, slice(start, start + step))
