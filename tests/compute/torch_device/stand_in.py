"""An engine whose arrays the host cannot look into, as a GPU's: NumPy computes behind its back.

Arrays have addresses that lead nowhere: whoever reads there is ended by the system.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy

from holdfast.compute.engine import ENGINES, each

_addresses = itertools.count(1 << 46, 1 << 30)
COUNT = 2


class Memory:
    """Bytes of a device."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self.address = next(_addresses)
        self.hidden = numpy.zeros(nbytes, numpy.uint8)


class Array:
    """A part of a memory."""

    def __init__(self, engine: Any, memory: Memory, hidden: Any) -> None:
        self.engine, self.memory, self.hidden = engine, memory, hidden
        self.shape, self.strides, self.dtype = hidden.shape, hidden.strides, hidden.dtype
        self.ndim, self.size, self.nbytes = hidden.ndim, hidden.size, hidden.nbytes
        self.itemsize = hidden.itemsize
        begin = memory.hidden.__array_interface__["data"][0]
        self.offset = hidden.__array_interface__["data"][0] - begin if hidden.size else 0

    def view(self, dtype: Any, shape: Any, strides: Any = None, offset: int = 0) -> Array:
        """Another part of the memory."""
        hidden = numpy.ndarray(shape, dtype, self.memory.hidden, offset, strides)
        return Array(self.engine, self.memory, hidden)

    def transpose(self, order: Any) -> Array:
        """The dimensions in another order."""
        return Array(self.engine, self.memory, self.hidden.transpose(order))


class Marker:
    """A moment; `done` when somebody has waited."""

    def __init__(self, moment_ns: int) -> None:
        self.moment_ns, self.done = moment_ns, False

    def wait(self) -> None:
        self.done = True

    def is_done(self) -> bool:
        return self.done

    def time_ns(self) -> int:
        return self.moment_ns


class _Kernels(Mapping[str, Callable[..., Any]]):
    """NumPy's kernels but for some, so that there is something to fall back for."""

    missing = ("digamma",)

    def __getitem__(self, name: str) -> Callable[..., Any]:
        if name in self.missing:
            raise KeyError(name)
        return ENGINES["numpy"].kernels[name]

    def __iter__(self) -> Any:
        return (name for name in ENGINES["numpy"].kernels if name not in self.missing)

    def __len__(self) -> int:
        return sum(1 for _ in self)


class StandIn:
    """Two devices with memory of their own."""

    name = "stand-in"
    kernels = _Kernels()

    def __init__(self, index: int) -> None:
        self.index = index
        self.waited = 0
        self.calls = 0

    def on(self, index: int) -> StandIn:
        return engine_at(index)

    def count(self) -> int:
        return COUNT

    def synchronize(self) -> None:
        self.waited += 1

    def marker(self) -> Marker:
        self.calls += 1
        return Marker(self.calls * 1_000_000)

    def alloc(self, shape: Any, dtype: Any) -> Array:
        memory = Memory(math.prod(shape) * dtype.itemsize)
        return Array(self, memory, numpy.ndarray(shape, dtype, memory.hidden))

    def upload(self, array: Any) -> Array:
        assert isinstance(array, numpy.ndarray)
        made = self.alloc(array.shape, array.dtype)
        made.hidden[...] = array
        return made

    def download(self, array: Array) -> Any:
        assert array.engine is self
        return array.hidden.copy("C")

    def cast(self, array: Array, dtype: Any) -> Array:
        if array.dtype == dtype:
            return array
        return self.upload(ENGINES["numpy"].cast(array.hidden, dtype))

    def write(self, array: Array, value: Array) -> None:
        assert array.engine is value.engine is self
        ENGINES["numpy"].write(array.hidden, value.hidden)

    def call(self, kernel: Any, args: Any, kwargs: Any) -> Any:
        self.calls += 1
        inside = [each(a, self._inside) for a in args]
        out = ENGINES["numpy"].call(
            kernel, inside, {k: each(v, self._inside) for k, v in kwargs.items()}
        )
        return each(out, self.upload)

    def _inside(self, array: Any) -> Any:
        assert isinstance(array, Array), f"an array of {type(array)} has come to a kernel"
        assert array.engine is self
        return array.hidden


@functools.cache
def engine_at(index: int) -> StandIn:
    """The engine of a device."""
    return StandIn(index)


engine = engine_at(0)
