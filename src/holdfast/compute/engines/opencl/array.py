"""Arrays of an OpenCL device: a part of some memory, with sizes and strides.

Covers: `Memory`, which is on the device or has made room; `Array`, a view of it.
Leaves to others: getting memory (`memory`), computing with it (the engine).
Promise: a view never copies, and keeps its memory alive.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy

if TYPE_CHECKING:
    from holdfast.compute.engines.opencl.engine import OpenCLEngine


_DIMS = 32  # that NumPy broadcasts; torch has 64


class Memory:
    """Bytes of one device; on the host while they have made room for others, or never fitted."""

    __slots__ = (
        "__weakref__",
        "address",
        "block",
        "buffer",
        "busy",
        "host",
        "nbytes",
        "start",
        "used",
    )

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self.address = 0  # unique while it is on the device, and leads nowhere
        self.block: Any = None  # of the pool, which takes it back with the last reference
        self.buffer: Any = None
        self.start = 0  # bytes from the start of the buffer
        self.host: Any = None  # bytes, where it is not on the device
        self.busy = 0  # launches that are being put together with it
        self.used = 0  # when that was last, counted in launches


def c_strides(shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    """The strides in bytes of numbers that lie side by side, last dimension first."""
    strides, step = [0] * len(shape), itemsize
    for dim in range(len(shape) - 1, -1, -1):
        strides[dim] = step
        step *= max(shape[dim], 1)
    return tuple(strides)


def collapsed(
    sizes: Sequence[int], strides: Sequence[Sequence[int]]
) -> tuple[list[int], list[list[int]]]:
    """Sizes, and strides of each array, with as few dimensions as describe them all.

    No dimension is left where there is one number.
    """
    shape: list[int] = []
    kept: list[list[int]] = [[] for _ in strides]
    for d, size in enumerate(sizes):
        if size == 1:
            continue
        if shape and all(k[-1] == s[d] * size for k, s in zip(kept, strides, strict=True)):
            shape[-1] *= size
            for k, s in zip(kept, strides, strict=True):
                k[-1] = s[d]
        else:
            shape.append(size)
            for k, s in zip(kept, strides, strict=True):
                k.append(s[d])
    return shape, kept


def joint(shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """The shape that all broadcast to. Raises ValueError where they do not."""
    heads = [shape[:-_DIMS] for shape in shapes]
    tail = numpy.broadcast_shapes(*(tuple(shape[-_DIMS:]) for shape in shapes))
    return (*joint(heads), *tail) if any(heads) else tail


class Array:
    """A part of a `Memory`: `offset` and `strides` are in bytes."""

    __slots__ = ("dtype", "engine", "memory", "offset", "shape", "strides")

    def __init__(
        self,
        engine: OpenCLEngine,
        memory: Memory,
        dtype: numpy.dtype[Any],
        shape: tuple[int, ...],
        strides: tuple[int, ...] | None = None,
        offset: int = 0,
    ) -> None:
        self.engine = engine
        self.memory = memory
        self.dtype = dtype
        self.shape = shape
        self.strides = c_strides(shape, dtype.itemsize) if strides is None else strides
        self.offset = offset

    @property
    def ndim(self) -> int:
        """How many dimensions."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """How many numbers."""
        return math.prod(self.shape)

    @property
    def itemsize(self) -> int:
        """Bytes of one number."""
        return self.dtype.itemsize

    @property
    def nbytes(self) -> int:
        """Bytes of all numbers."""
        return self.size * self.dtype.itemsize

    @property
    def is_contiguous(self) -> bool:
        """Whether the numbers lie side by side in the order of their indices."""
        step = self.dtype.itemsize
        for size, stride in zip(reversed(self.shape), reversed(self.strides), strict=True):
            if size != 1 and stride != step:
                return size == 0 or 0 in self.shape
            step *= size
        return True

    @property
    def is_dense(self) -> bool:
        """Whether the numbers lie side by side in some order of the dimensions."""
        step = self.dtype.itemsize
        for stride, size in sorted(
            (s, n) for s, n in zip(self.strides, self.shape, strict=True) if n != 1
        ):
            if stride != step:
                return 0 in self.shape
            step *= size
        return True

    @property
    def steps(self) -> tuple[int, ...]:
        """Strides in numbers rather than bytes."""
        size = self.dtype.itemsize
        return tuple(stride // size for stride in self.strides)

    @property
    def span(self) -> int:
        """How many numbers lie from the first to the last, in memory."""
        return sum((n - 1) * abs(s) for n, s in zip(self.shape, self.steps, strict=True)) + 1

    def viewed(
        self,
        dtype: numpy.dtype[Any],
        shape: tuple[int, ...],
        strides: tuple[int, ...] | None = None,
        offset: int | None = None,
    ) -> Array:
        """Another look at the same memory; the offset counts from its start."""
        at = self.offset if offset is None else offset
        return Array(self.engine, self.memory, dtype, shape, strides, at)

    def transpose(self, order: Any) -> Array:
        """The dimensions in another order."""
        return self.viewed(
            self.dtype,
            tuple(self.shape[d] for d in order),
            tuple(self.strides[d] for d in order),
        )

    def broadcast_to(self, shape: tuple[int, ...]) -> Array:
        """Dimensions of size 1, and missing ones in front, repeated."""
        missing = len(shape) - self.ndim
        own = (1,) * missing + self.shape
        strides = (0,) * missing + self.strides
        return self.viewed(
            self.dtype,
            shape,
            tuple(
                0 if n == 1 != wanted else s
                for n, s, wanted in zip(own, strides, shape, strict=True)
            ),
        )

    def __repr__(self) -> str:
        return f"<opencl.Array {self.dtype}{list(self.shape)} on {self.engine.place.name}>"


class NotHere(Exception):
    """The device, or the kernel, cannot compute this call: the host may."""
