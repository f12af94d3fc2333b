"""View kernels, and copies and fills for any dtype.

Ops that are views in the schema share memory with their input. Nothing here interprets elements,
so every dtype can be viewed, copied and filled.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy

from holdfast.compute import dtype as dtypes
from holdfast.compute.engines.opencl.elementwise import strided_kernels
from holdfast.compute.engines.opencl.runtime.array import Array, c_strides
from holdfast.compute.engines.opencl.runtime.engine_protocol import CLEngine
from holdfast.compute.engines.opencl.runtime.kernel_table import kernel
from holdfast.compute.ops.layout import shapes
from holdfast.compute.ops.rules import normalize_dim

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
    return [select_index(words, array.ndim, part) for part in range(2)]


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


# ---- reshaping


def find_strides(array: Array, shape: tuple[int, ...]) -> tuple[int, ...] | None:
    """The strides of a view with another shape; None if that needs a copy."""
    if array.is_contiguous:
        return c_strides(shape, array.itemsize)
    found, axis = [0] * len(shape), len(shape) - 1
    step, have, seen = array.strides[-1], 1, 1
    for d in range(array.ndim - 1, -1, -1):
        have *= array.shape[d]
        if d and (array.shape[d - 1] == 1 or array.strides[d - 1] == have * step):
            continue
        while axis >= 0 and (seen < have or shape[axis] == 1):
            found[axis] = seen * step
            seen *= shape[axis]
            axis -= 1
        if seen != have:
            return None
        step, have, seen = array.strides[d - 1], 1, 1
    return tuple(found)


def to_shape(engine: CLEngine, array: Array, shape: tuple[int, ...]) -> Array:
    """The array in another shape: a view if possible, else a copy."""
    strides = find_strides(array, shape)
    if strides is not None:
        return array.view(array.dtype, shape, strides)
    return make_copy(engine, array).view(array.dtype, shape)


@kernel("alias", "detach", "lift_fresh")
def alias(engine: CLEngine, self: Array) -> Array:
    return self.view(self.dtype, self.shape, self.strides)


@kernel("view", "_reshape_alias")
def view(engine: CLEngine, self: Array, size: Any, stride: Any = None) -> Array:
    wanted = shapes.view(self.shape, size)
    strides = find_strides(self, wanted)
    if strides is None:
        raise ValueError(
            f"{list(self.shape)} with strides {list(self.steps)} cannot be viewed as "
            f"{list(wanted)} without a copy; use reshape"
        )
    return self.view(self.dtype, wanted, strides)


@kernel("reshape", "_unsafe_view")
def reshape(engine: CLEngine, self: Array, shape: Any = None, size: Any = None) -> Array:
    wanted = size if shape is None else shape
    return to_shape(engine, self, shapes.view(self.shape, wanted))


@kernel("contiguous")
def contiguous(engine: CLEngine, self: Array) -> Array:
    return alias(engine, self) if self.is_contiguous else make_copy(engine, self)


@kernel("_reshape_copy", "view_copy")
def reshape_copy(engine: CLEngine, self: Array, size: Any) -> Array:
    return make_copy(engine, self).view(self.dtype, shapes.view(self.shape, size))


@kernel("squeeze", "squeeze.dim")
def squeeze(engine: CLEngine, self: Array, dim: int | None = None) -> Array:
    return to_shape(engine, self, shapes.squeeze(self.shape, dim))


@kernel("squeeze.dims")
def squeeze_dims(engine: CLEngine, self: Array, dim: Any) -> Array:
    return to_shape(engine, self, shapes.squeeze_dims(self.shape, dim))


@kernel("unsqueeze")
def unsqueeze(engine: CLEngine, self: Array, dim: int) -> Array:
    axis = shapes.new_dim(dim, self.ndim)
    step = self.strides[axis] * self.shape[axis] if axis < self.ndim else self.itemsize
    strides = (*self.strides[:axis], step, *self.strides[axis:])
    return self.view(self.dtype, shapes.unsqueeze(self.shape, dim), strides)


@kernel("expand")
def expand(engine: CLEngine, self: Array, size: Any, implicit: bool = False) -> Array:
    return self.broadcast_to(shapes.expand(self.shape, size))


# ---- permuting


@kernel("permute")
def permute(engine: CLEngine, self: Array, dims: Any) -> Array:
    return self.transpose(shapes.order(self.ndim, dims))


@kernel("transpose.int")
def transpose(engine: CLEngine, self: Array, dim0: int, dim1: int) -> Array:
    order = list(range(self.ndim))
    one, other = normalize_dim(dim0, self.ndim), normalize_dim(dim1, self.ndim)
    if order:
        order[one], order[other] = other, one
    return self.transpose(order)


@kernel("t")
def t(engine: CLEngine, self: Array) -> Array:
    shapes.transpose_matrix(self.shape)
    return self.transpose(range(self.ndim - 1, -1, -1))


def move_dim(array: Array, dim: int, to: int) -> Array:
    """Move one dimension to another position."""
    order = [d for d in range(array.ndim) if d != dim]
    order.insert(to % array.ndim, dim)
    return array.transpose(order)


# ---- slicing


def slice_dim(array: Array, dim: int, part: slice) -> Array:
    """A slice of one dimension; start and stop are resolved already."""
    begin, step = part.start, part.step or 1
    count = len(range(begin, part.stop, step))
    offset = array.offset + (begin * array.strides[dim] if count else 0)
    strides = shapes.replace_size(array.strides, dim, array.strides[dim] * step)
    return array.view(array.dtype, shapes.replace_size(array.shape, dim, count), strides, offset)


def select_index(array: Array, dim: int, index: int) -> Array:
    """Drop one dimension at a non-negative index."""
    kept = [d for d in range(array.ndim) if d != dim]
    return array.view(
        array.dtype,
        tuple(array.shape[d] for d in kept),
        tuple(array.strides[d] for d in kept),
        array.offset + index * array.strides[dim],
    )


@kernel("select.int")
def select(engine: CLEngine, self: Array, dim: int, index: int) -> Array:
    shapes.select(self.shape, dim, index)
    axis = dim % self.ndim
    return select_index(self, axis, index % self.shape[axis])


@kernel("slice.Tensor")
def slice_(
    engine: CLEngine, self: Array, dim: int = 0, start: Any = None, end: Any = None,
    step: int = 1,
) -> Array:  # fmt: skip
    axis = shapes.existing_dim(self.shape, dim)
    return slice_dim(self, axis, shapes.span(self.shape[axis], start, end, step))


@kernel("narrow_copy")
def narrow_copy(engine: CLEngine, self: Array, dim: int, start: int, length: int) -> Array:
    shapes.narrow(self.shape, dim, start, length)
    axis = dim % self.ndim
    begin = start + self.shape[axis] if start < 0 else start
    return make_copy(engine, slice_dim(self, axis, slice(begin, begin + length)))


@kernel("diagonal")
def diagonal(engine: CLEngine, self: Array, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Array:
    one, other = shapes.two_dims(self.shape, dim1, dim2)
    shape = shapes.diagonal(self.shape, offset, dim1, dim2)
    down, right = self.strides[one], self.strides[other]
    kept = [s for d, s in enumerate(self.strides) if d not in (one, other)]
    begin = (offset * right if offset >= 0 else -offset * down) if shape[-1] else 0
    return self.view(self.dtype, shape, (*kept, down + right), self.offset + begin)


@kernel("unfold")
def unfold(engine: CLEngine, self: Array, dimension: int, size: int, step: int) -> Array:
    shape = shapes.unfold(self.shape, dimension, size, step)
    if not self.ndim:
        return self.view(self.dtype, shape, (self.itemsize,))
    axis = normalize_dim(dimension, self.ndim)
    along = self.strides[axis]
    strides = (*shapes.replace_size(self.strides, axis, along * step), along)
    return self.view(self.dtype, shape, strides)


@kernel("as_strided")
def as_strided(
    engine: CLEngine, self: Array, size: Any, stride: Any, storage_offset: int | None = None
) -> Array:
    """A view of the whole memory; `storage_offset` counts from its start."""
    size, stride, width = shapes.as_list(size), shapes.as_list(stride), self.itemsize
    if len(size) != len(stride) or min((*size, *stride), default=0) < 0:
        raise ValueError(f"sizes {size} and strides {stride} are not a valid layout")
    strides = tuple(s * width for s in stride)
    if 0 in size:
        return self.view(self.dtype, tuple(size), strides)
    begin = self.offset if storage_offset is None else storage_offset * width
    end = begin + width + sum((n - 1) * s for n, s in zip(size, strides, strict=True))
    room = self.memory.nbytes
    if begin < 0 or end > room:
        raise ValueError(
            f"sizes {size}, strides {stride} and offset {begin // width} reach beyond the "
            f"{room // width} elements there are"
        )
    return self.view(self.dtype, tuple(size), strides, begin)


# ---- splitting


def _split(self: Array, sizes: list[int], axis: int) -> list[Array]:
    found, begin = [], 0
    for size in sizes:
        found.append(slice_dim(self, axis, slice(begin, begin + size)))
        begin += size
    return found


@kernel("split.Tensor")
def split(engine: CLEngine, self: Array, split_size: int, dim: int = 0) -> list[Array]:
    axis = shapes.existing_dim(self.shape, dim)
    return _split(self, shapes.parts(self.shape[axis], split_size), axis)


@kernel("split_with_sizes")
def split_with_sizes(engine: CLEngine, self: Array, split_sizes: Any, dim: int = 0) -> list[Array]:
    shapes.split_with_sizes(self.shape, split_sizes, dim)
    return _split(self, shapes.as_list(split_sizes), dim % self.ndim)


@kernel("unbind.int")
def unbind(engine: CLEngine, self: Array, dim: int = 0) -> list[Array]:
    axis = shapes.existing_dim(self.shape, dim)
    return [select_index(self, axis, index) for index in range(self.shape[axis])]


# ---- complex parts and reinterpreted bytes


@kernel("view_as_real")
def view_as_real(engine: CLEngine, self: Array) -> Array:
    if self.dtype.kind != "c":
        raise TypeError(f"{self.dtype} has no imaginary part")
    part = dtypes.real_of(self.dtype)
    return self.view(part, (*self.shape, 2), (*self.strides, part.itemsize))


@kernel("view_as_complex")
def view_as_complex(engine: CLEngine, self: Array) -> Array:
    if not self.ndim or self.shape[-1] != 2 or self.dtype.name not in ("float32", "float64"):
        raise ValueError("a last dimension of size 2 in float32 or float64 is needed")
    if self.strides[-1] != self.itemsize or any(s % (2 * self.itemsize) for s in self.strides[:-1]):
        raise ValueError(f"pairs with strides {list(self.steps)} are no complex numbers in memory")
    return self.view(dtypes.complex_of(self.dtype), self.shape[:-1], self.strides[:-1])


@kernel("view.dtype")
def view_dtype(engine: CLEngine, self: Array, dtype: Any) -> Array:
    kind = dtypes.dtype(dtype)
    shape = shapes.reinterpret(self.shape, self.itemsize, kind.itemsize)
    if kind.itemsize == self.itemsize:
        return self.view(kind, shape, self.strides)
    if self.strides[-1] != self.itemsize and self.shape[-1] != 1:
        raise ValueError(
            "To change to a dtype of a different size, the last axis must be contiguous"
        )
    return self.view(kind, shape, (*self.strides[:-1], kind.itemsize))
