"""`Array`, a strided view of a `Memory`, which is a buffer on the device or moved to the host.

A view never copies, and keeps its memory alive.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy

_DIMS = 32  # NumPy's limit for broadcasting; torch allows 64


class Memory:
    """Bytes of one device; on the host while evicted, or if they never fitted."""

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
        self.address = 0  # unique while on the device; not a pointer
        self.block: Any = None  # of the pool; freed with the last reference
        self.buffer: Any = None
        self.start = 0  # bytes from the start of the buffer
        self.host: Any = None  # the bytes, if not on the device
        self.busy = 0  # launches being prepared with it
        self.used = 0  # the launch that used it last


def c_strides(shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    """Strides in bytes of a C-contiguous array."""
    strides, step = [0] * len(shape), itemsize
    for dim in range(len(shape) - 1, -1, -1):
        strides[dim] = step
        step *= max(shape[dim], 1)
    return tuple(strides)


def collapse_dims(
    sizes: Sequence[int], strides: Sequence[Sequence[int]]
) -> tuple[list[int], list[list[int]]]:
    """Merge dimensions: the fewest sizes, and strides of each array, that describe them all.

    A single element has no dimensions left.
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


def broadcast_shape(shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """The shape that all broadcast to; unlike NumPy's, of any rank. Raises ValueError."""
    heads = [shape[:-_DIMS] for shape in shapes]
    tail = numpy.broadcast_shapes(*(tuple(shape[-_DIMS:]) for shape in shapes))
    return (*broadcast_shape(heads), *tail) if any(heads) else tail


class Array:
    """A view of a `Memory`; `offset` and `strides` are in bytes."""

    __slots__ = ("dtype", "engine", "memory", "offset", "shape", "strides")

    def __init__(
        self,
        engine: Any,
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
        return len(self.shape)

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def itemsize(self) -> int:
        return self.dtype.itemsize

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.itemsize

    @property
    def is_contiguous(self) -> bool:
        """Whether the elements are packed in C order."""
        step = self.dtype.itemsize
        for size, stride in zip(reversed(self.shape), reversed(self.strides), strict=True):
            if size != 1 and stride != step:
                return size == 0 or 0 in self.shape
            step *= size
        return True

    @property
    def is_dense(self) -> bool:
        """Whether the elements are packed in some order of the dimensions."""
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
        """Strides in elements."""
        size = self.dtype.itemsize
        return tuple(stride // size for stride in self.strides)

    @property
    def span(self) -> int:
        """How many elements lie from the first to the last one in memory."""
        return sum((n - 1) * abs(s) for n, s in zip(self.shape, self.steps, strict=True)) + 1

    def view(
        self,
        dtype: numpy.dtype[Any],
        shape: tuple[int, ...],
        strides: tuple[int, ...] | None = None,
        offset: int | None = None,
    ) -> Array:
        """Another view of the same memory; the offset counts from the start of the memory."""
        at = self.offset if offset is None else offset
        return Array(self.engine, self.memory, dtype, shape, strides, at)

    def transpose(self, order: Any) -> Array:
        return self.view(
            self.dtype, tuple(self.shape[d] for d in order), tuple(self.strides[d] for d in order)
        )

    def broadcast_to(self, shape: tuple[int, ...]) -> Array:
        """Repeat dimensions of size 1 and missing leading ones, by strides of 0."""
        missing = len(shape) - self.ndim
        own = (1,) * missing + self.shape
        strides = (0,) * missing + self.strides
        return self.view(
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
    """The device, or the kernel, cannot compute this call; the host can."""
