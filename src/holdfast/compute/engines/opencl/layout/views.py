"""Arrays as bits, copies, fills and views: for every dtype, as nothing interprets elements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy

from holdfast.compute.engines.opencl.elementwise import strided_kernels
from holdfast.compute.engines.opencl.runtime.array import Array
from holdfast.compute.engines.opencl.runtime.engine_protocol import CLEngine

_WORDS = {n: numpy.dtype(f"uint{8 * n}") for n in (1, 2, 4, 8)}
_C_WORDS = {1: "uchar", 2: "ushort", 4: "uint", 8: "ulong"}


# ---- elements as bits


def as_bits(array: Array) -> Array:
    """The same memory as unsigned integers; a complex element becomes two of them."""
    if array.dtype.kind == "c":
        part = array.itemsize // 2
        return array.view(_WORDS[part], (*array.shape, 2), (*array.strides, part))
    return array.view(_WORDS[array.itemsize], array.shape, array.strides)


def bit_arrays(array: Array) -> list[Array]:
    """Arrays of bits with the shape of the array: two for a complex one."""
    words = as_bits(array)
    if words.ndim == array.ndim:
        return [words]
    return [words[..., part] for part in range(2)]


def bits_type(array: Array) -> str:
    """The C type of an element of `as_bits`."""
    return _C_WORDS[array.itemsize]


def make_copy(engine: CLEngine, array: Array, dtype: numpy.dtype[Any] | None = None) -> Array:
    """A contiguous copy, cast to `dtype` if given."""
    made = engine.alloc(array.shape, dtype or array.dtype)
    engine.write(made, array)
    return made


def fill(engine: CLEngine, array: Array, value: Any) -> None:
    """Write one value to all elements."""
    parts = bit_arrays(array)
    given = numpy.asarray(value).astype(array.dtype).reshape(1).view(parts[0].dtype)
    for part, one in zip(parts, given, strict=True):
        number = strided_kernels.Number("value", one, bits_type(part))
        strided_kernels.compute(engine, "$value", [], [number], part)


def make_full(engine: CLEngine, shape: Sequence[int], kind: Any, value: Any = 0) -> Array:
    """A new array filled with one value."""
    made = engine.alloc(tuple(shape), kind)
    fill(engine, made, value)
    return made


# ---- views


def to_shape(engine: CLEngine, array: Array, shape: tuple[int, ...]) -> Array:
    """The array in another shape: a view if possible, else a copy."""
    return array.reshape(shape)


def move_dim(array: Array, dim: int, to: int) -> Array:
    """Move one dimension to another position."""
    order = [d for d in range(array.ndim) if d != dim]
    order.insert(to % array.ndim, dim)
    return array.transpose(order)
