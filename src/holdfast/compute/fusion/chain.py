"""A recorded chain of pointwise ops, and running it block by block on several threads.

The C loop for the most common ops is in `engines/numpy` (`c_chains`).
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy

from holdfast.compute import dtype as dtypes
from holdfast.compute.engine import ENGINES
from holdfast.compute.engines.numpy import threads
from holdfast.compute.engines.numpy.elementwise import c_chains
from holdfast.compute.ops.rules import Meta
from holdfast.compute.ops.table import Op
from holdfast.compute.tensors.custom_tensor import CustomTensor

_BLOCK = 1 << 16  # elements of a block on one thread: its buffers fit the L2 cache
_SHARED = 1 << 17  # on several threads, which take turns in Python between two ops


class NotPointwise(Exception):
    """The function cannot be fused."""


class Traced:
    """Stands for an array during recording."""

    __slots__ = ("dtype", "ndim", "place", "shape")

    def __init__(self, meta: Meta, place: int) -> None:
        self.shape, self.dtype, self.ndim = tuple(meta.shape), meta.dtype, len(meta.shape)
        self.place = place

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise NotPointwise


class Step(NamedTuple):
    """One op: its kernel, its arguments (`Traced` for arrays), its result.

    `call` is the op with its arguments by name, for engines with kernels of their own; None for
    a cast.
    """

    kernel: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    result: Traced
    call: tuple[Op, dict[str, Any]] | None = None


class Task(NamedTuple):
    """One op on a block: it reads registers, and writes to one or stores a new array there."""

    kernel: Callable[..., Any]
    reads: tuple[int, ...]
    pick: Callable[[list[Any]], Any]
    kwargs: dict[str, Any]
    register: int
    fresh: bool


class Program:
    """A recorded function: `small` ops run once, the others for each block.

    Registers hold, in this order, the arrays of the recording, constants, and buffers.
    """

    def __init__(
        self, inputs: list[Traced], steps: list[Step], results: list[Traced], count: int
    ) -> None:
        self.inputs, self.results, self.count = inputs, results, count
        self.shape = results[0].shape
        self.small = [s for s in steps if s.result.shape != self.shape]
        large = [s for s in steps if s.result.shape == self.shape]
        self._constants: list[Any] = []
        self._buffers: list[Any] = []  # their dtypes
        last = {a.place: n for n, s in enumerate(large) for a in s.args if isinstance(a, Traced)}
        last.update({r.place: len(large) for r in results})
        numbers = sum(1 for s in large for a in s.args if not isinstance(a, Traced))
        self._tasks = self._assign(large, last, count + numbers)
        self._compiled = self._orders(large) if all(_has_code(s) for s in large) else None

    def _assign(self, steps: list[Step], last: dict[int, int], first: int) -> list[Task]:
        """Assign a register to every result; a buffer is reused after its last read."""
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
            kernel = _into(step)
            fresh = kernel is None
            if place not in where and not fresh:
                # Element by element: it may write where it reads for the last time.
                spare = free.get(kind)
                where[place] = spare.pop() if spare else first + len(self._buffers)
                if where[place] == first + len(self._buffers):
                    self._buffers.append(kind)
            register = where.setdefault(place, place)
            done = kernel or step.kernel
            tasks.append(Task(done, tuple(reads), _picker(reads), step.kwargs, register, fresh))
        return tasks

    def _orders(self, steps: list[Step]) -> c_chains.Chain:
        """The same for the C loop."""
        orders = []
        for task, step in zip(self._tasks, steps, strict=True):
            reads: Any = task.reads
            orders.append((c_chains.CODES[step.kernel], task.register, reads[0], reads[-1]))
        return c_chains.Chain(orders, self.count, self._constants, len(self._buffers))

    def _read(self, value: Any, where: dict[int, int]) -> int:
        if isinstance(value, Traced):
            return where.get(value.place, value.place)
        self._constants.append(value)
        return self.count + len(self._constants) - 1

    def run(self, tensors: list[CustomTensor]) -> list[CustomTensor]:
        """The results for these inputs, in the order of the recording."""
        arrays = [t._array for t in tensors]
        outs = ENGINES["numpy"].call(self.on_arrays, (arrays,), {})
        return [CustomTensor._wrap(out, tensors[0].device) for out in outs]

    def on_arrays(self, arrays: Sequence[Any]) -> list[Any]:
        """`run` on arrays, callable as a kernel of the engine."""
        outs = [numpy.empty(self.shape, r.dtype) for r in self.results]
        places: list[Any] = [None] * self.count
        for traced, array in zip(self.inputs, arrays, strict=True):
            places[traced.place] = array
        self._compute(places, outs)
        return outs

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
        """Arrays and block indices: flat if all arrays are contiguous, else along dimensions."""
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
        """Run every op on one block."""
        shape = registers[self.results[0].place].shape
        registers += self._constants
        registers += _buffers(self._buffers, shape)
        for kernel, _, pick, kwargs, register, fresh in self._tasks:
            if not fresh:
                kernel(*pick(registers), out=registers[register])
            elif (target := registers[register]) is not None:
                target[...] = kernel(*pick(registers), **kwargs)
            else:
                registers[register] = kernel(*pick(registers), **kwargs)


def _into(step: Step) -> Callable[..., Any] | None:
    """A function that computes a step into `out=`; None if the step must allocate."""
    if isinstance(step.kernel, numpy.ufunc):
        return step.kernel
    if step.kwargs or step.kernel not in c_chains.CODES:
        return None

    def compute(*args: Any, out: Any) -> None:
        out[...] = step.kernel(*args)

    return compute


def _has_code(step: Step) -> bool:
    if step.kwargs:
        return False
    values = (a.dtype if isinstance(a, Traced) else type(a) for a in step.args)
    return step.kernel in c_chains.CODES and all(
        kind in (dtypes.FLOAT32, int, float) for kind in (*values, step.result.dtype)
    )


def _buffers(kinds: list[Any], shape: tuple[int, ...]) -> list[Any]:
    size = math.prod(shape)
    return [threads.scratch.of(size, kind, n).reshape(shape) for n, kind in enumerate(kinds)]


def _picker(reads: list[int]) -> Callable[[list[Any]], Any]:
    if len(reads) > 1:
        return operator.itemgetter(*reads)
    only = reads[0]
    return lambda registers: (registers[only],)


def _cuts(shape: tuple[int, ...], block: int) -> Iterator[tuple[Any, ...]]:
    """Indices that cut an array into parts of about `block` elements."""
    axis, inside = 0, math.prod(shape)
    while axis < len(shape) - 1 and inside // max(shape[axis], 1) > block:
        inside //= shape[axis]
        axis += 1
    inside //= max(shape[axis], 1)
    step = max(1, block // max(inside, 1))
    for outer in numpy.ndindex(*shape[:axis]):
        for start in range(0, shape[axis], step):
            yield (*outer, slice(start, start + step))
