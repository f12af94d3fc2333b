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
        *("__weakref__", "address", "block", "buffer", "busy", "host", "nbytes", "start", "used"),
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

    # ---- views, as NumPy's arrays have them

    def view(
        self,
        dtype: numpy.dtype[Any] | None = None,
        shape: tuple[int, ...] | None = None,
        strides: tuple[int, ...] | None = None,
        offset: int | None = None,
    ) -> Array:
        """Another view of the same memory; the offset counts from the start of the memory.

        Without a shape it is NumPy's `view`: the same bytes, in another dtype if one is given.
        """
        if shape is None:
            return self._reinterpret(self.dtype if dtype is None else dtype)
        at = self.offset if offset is None else offset
        return Array(self.engine, self.memory, dtype or self.dtype, shape, strides, at)

    def _reinterpret(self, dtype: numpy.dtype[Any]) -> Array:
        shape, strides, size = self.shape, self.strides, dtype.itemsize
        if size != self.itemsize:
            if strides[-1] != self.itemsize and shape[-1] != 1:
                raise ValueError(
                    "To change to a dtype of a different size, the last axis must be contiguous"
                )
            shape = (*shape[:-1], shape[-1] * self.itemsize // size)
            strides = (*strides[:-1], size)
        return Array(self.engine, self.memory, dtype, shape, strides, self.offset)

    def __getitem__(self, index: Any) -> Array:
        """A view, by integers, slices, None and `...`."""
        items = list(index) if isinstance(index, tuple) else [index]
        rest = [slice(None)] * (self.ndim - len(items) + items.count(None) + items.count(...))
        place = items.index(...) if ... in items else len(items)
        items[place : place + 1] = rest
        shape: list[int] = []
        strides: list[int] = []
        offset, dim = self.offset, 0
        for item in items:
            size, stride = (
                (self.shape[dim], self.strides[dim]) if dim < self.ndim else (1, self.itemsize)
            )
            if item is None:
                shape.append(1)
                strides.append(size * stride)
                continue
            dim += 1
            if isinstance(item, slice):
                begin, end, step = item.indices(size)
                count = len(range(begin, end, step))
                shape.append(count)
                strides.append(stride * step)
                offset += begin * stride if count else 0
            else:
                offset += item % size * stride
        return self.view(self.dtype, tuple(shape), tuple(strides), offset)

    def __setitem__(self, index: Any, value: Array) -> None:
        self.engine.write(self[index], value)

    def transpose(self, order: Any) -> Array:
        shape, strides = self.shape, self.strides
        return self.view(
            self.dtype, tuple([shape[d] for d in order]), tuple([strides[d] for d in order])
        )

    @property
    def T(self) -> Array:
        return self.transpose(range(self.ndim - 1, -1, -1))

    def swapaxes(self, one: int, other: int) -> Array:
        order = list(range(self.ndim))
        order[one], order[other] = other, one
        return self.transpose(order)

    def reshape(self, shape: tuple[int, ...], copy: bool | None = None) -> Array:
        """Another shape: a view if possible, else a copy. Raises ValueError if `copy` is False."""
        strides = None if copy else self._find_strides(shape)
        if strides is not None:
            return self.view(self.dtype, shape, strides)
        if copy is False:
            raise ValueError("this shape needs a copy")
        return self.copy().view(self.dtype, shape)

    def _find_strides(self, shape: tuple[int, ...]) -> tuple[int, ...] | None:
        """The strides of a view with another shape; None if that needs a copy."""
        if self.is_contiguous:
            return c_strides(shape, self.itemsize)
        found, axis = [0] * len(shape), len(shape) - 1
        step, have, seen = self.strides[-1], 1, 1
        for d in range(self.ndim - 1, -1, -1):
            have *= self.shape[d]
            if d and (self.shape[d - 1] == 1 or self.strides[d - 1] == have * step):
                continue
            while axis >= 0 and (seen < have or shape[axis] == 1):
                found[axis] = seen * step
                seen *= shape[axis]
                axis -= 1
            if seen != have:
                return None
            step, have, seen = self.strides[d - 1], 1, 1
        return tuple(found)

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

    # ---- elements

    def copy(self, order: str = "C") -> Array:
        """A contiguous copy."""
        made = self.engine.alloc(self.shape, self.dtype)
        self.engine.write(made, self)
        return made

    def fill(self, value: Any) -> None:
        """Write one value to all elements."""
        self.engine.fill(self, value)

    def item(self) -> Any:
        """The only element; waits for the device."""
        return self.engine.download(self).item()

    def __repr__(self) -> str:
        return f"<opencl.Array {self.dtype}{list(self.shape)} on {self.engine.place.name}>"


class NotHere(Exception):
    """The device, or the kernel, cannot compute this call; the host can."""
