"""The few tensor operations that specification 004's examples use, over pool memory.

Covers: `tensor`, `empty`, `matmul` with `out`, arithmetic, in place with a trailing underscore.
Leaves to others: everything else; the compute layer has real tensors.
Promise: every array here lies in a block of the device's default pool, so it is counted, recorded
and found when it leaks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy

from holdfast.base.errors import BadInput
from holdfast.memory.manager import memory_manager


class Tensor:
    """An array in a block of a pool. On a CUDA device torch computes, on the CPU NumPy."""

    __slots__ = ("__weakref__", "_array", "_block", "device")

    def __init__(self, block: Any, array: Any, device: str) -> None:
        self._block = block
        self._array = array
        self.device = device

    @property
    def __memory_block__(self) -> Any:
        return self._block

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes."""
        return tuple(self._array.shape)

    @property
    def dtype(self) -> str:
        """The number format, as NumPy names it."""
        return str(self._array.dtype).removeprefix("torch.")

    def numpy(self) -> numpy.ndarray[Any, Any]:
        """The array: itself on the CPU, a copy from a GPU."""
        return self._array if self.device == "cpu" else self._array.cpu().numpy()

    def tolist(self) -> Any:
        """Plain numbers."""
        return self._array.tolist()

    def item(self) -> Any:
        """The only element."""
        return self._array.item()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        array = self.numpy()
        return numpy.array(array, dtype=dtype, copy=copy)

    def __len__(self) -> int:
        return len(self._array)

    def __getitem__(self, index: Any) -> Any:
        found = self._array[index]
        return Tensor(self._block, found, self.device) if getattr(found, "shape", ()) else found

    def __setitem__(self, index: Any, value: Any) -> None:
        self._array[index] = _raw(value)

    def __repr__(self) -> str:
        return f"tensor({self.numpy()!r}, device={self.device!r})"

    def __add__(self, other: Any) -> Tensor:
        return _apply("add", self, other)

    def __sub__(self, other: Any) -> Tensor:
        return _apply("subtract", self, other)

    def __mul__(self, other: Any) -> Tensor:
        return _apply("multiply", self, other)

    def __truediv__(self, other: Any) -> Tensor:
        return _apply("divide", self, other)

    def __matmul__(self, other: Any) -> Tensor:
        return matmul(self, other)

    __radd__ = __add__
    __rmul__ = __mul__

    def add_(self, other: Any) -> Tensor:
        """Add in place."""
        return _in_place("add", self, other)

    def sub_(self, other: Any) -> Tensor:
        """Subtract in place."""
        return _in_place("subtract", self, other)

    def mul_(self, other: Any) -> Tensor:
        """Multiply in place."""
        return _in_place("multiply", self, other)

    def div_(self, other: Any) -> Tensor:
        """Divide in place."""
        return _in_place("divide", self, other)


def tensor(data: Any, dtype: Any = None, device: str = "cpu") -> Tensor:
    """A tensor with a copy of `data`."""
    array = numpy.asarray(_raw(data), dtype=dtype)
    if array.dtype == object:
        raise BadInput(
            f"cannot make a tensor of {data!r}", expected="numbers, in rows of one length"
        )
    made = empty(array.shape, array.dtype, device)
    if made.device == "cpu":
        made._array[...] = array
    else:
        import torch

        made._array.copy_(torch.from_numpy(numpy.ascontiguousarray(array)))
    return made


def empty(shape: int | Sequence[int], dtype: Any = "float32", device: str = "cpu") -> Tensor:
    """A tensor whose content is whatever was there before."""
    sizes = (shape,) if isinstance(shape, int) else tuple(shape)
    if any(size < 0 for size in sizes):
        raise BadInput(f"cannot make a tensor of shape {sizes}", expected="sizes from 0 up")
    kind = numpy.dtype(dtype)
    place = memory_manager.place(device)
    block = memory_manager.pool(place).allocate(math.prod(sizes) * kind.itemsize)
    make = block.array if place == "cpu" else block.tensor
    return Tensor(block, make(kind if place == "cpu" else kind.name, sizes), place)


def matmul(a: Any, b: Any, out: Tensor | None = None) -> Tensor:
    """The matrix product, into `out` where that is given."""
    one = a if isinstance(a, Tensor) else _like(a, b, out)
    other = b if isinstance(b, Tensor) else _like(b, one, out)
    if out is None:
        shape = numpy.broadcast_shapes(one.shape[:-2], other.shape[:-2])
        rows, columns = one.shape[-2:-1], other.shape[-1:] if len(other.shape) > 1 else ()
        kind = numpy.result_type(one.dtype, other.dtype)
        out = empty((*shape, *rows, *columns), kind, one.device)
    try:
        _library(one.device).matmul(one._array, other._array, out=out._array)
    except (ValueError, TypeError, RuntimeError) as exc:
        raise BadInput(
            f"cannot multiply {one.shape} {one.dtype} by {other.shape} {other.dtype} "
            f"into {out.shape} {out.dtype}",
            expected="the columns of the first to be the rows of the second, and out to fit",
        ) from exc
    return out


def _apply(name: str, one: Tensor, other: Any) -> Tensor:
    raw = _raw(other)
    shape = numpy.broadcast_shapes(one.shape, getattr(raw, "shape", ()))
    sample = (
        raw if isinstance(raw, int | float | complex) else str(raw.dtype).removeprefix("torch.")
    )
    kind = numpy.result_type(numpy.dtype(one.dtype), sample)
    if name == "divide" and kind.kind in "iu":
        kind = numpy.dtype("float64")
    out = empty(shape, kind, one.device)
    getattr(_library(one.device), name)(one._array, raw, out=out._array)
    return out


def _in_place(name: str, one: Tensor, other: Any) -> Tensor:
    raw = _raw(other)
    try:
        getattr(_library(one.device), name)(one._array, raw, out=one._array)
    except (ValueError, TypeError, RuntimeError) as exc:
        raise BadInput(
            f"cannot {name} in place: {one.shape} {one.dtype} does not hold the result",
            expected="a result of the same shape and number format",
            hint="without the underscore, which makes a new tensor",
        ) from exc
    return one


def _library(device: str) -> Any:
    if device == "cpu":
        return numpy
    import torch

    return torch


def _like(data: Any, *others: Any) -> Tensor:
    """A tensor on the device of the first tensor of `others`; bare numbers take its format too."""
    like = next((o for o in others if isinstance(o, Tensor)), None)
    if like is None:
        return tensor(data)
    return tensor(data, None if hasattr(data, "dtype") else like.dtype, like.device)


def _raw(value: Any) -> Any:
    return value._array if isinstance(value, Tensor) else value
