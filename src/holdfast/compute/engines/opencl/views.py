"""Views of arrays of a device.

Covers: the views of the table; copying and filling numbers of any format.
Leaves to others: copies with a part replaced (`copies`), joining (`assemble`), what shapes are
possible (`ops.shapes`).
Promise: what the schema calls a view shares memory with the array it was made from; nothing here
looks at a number, so every format can be viewed, copied and filled.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy

from holdfast.compute import dtype as formats
from holdfast.compute.engines.opencl import elementwise
from holdfast.compute.engines.opencl.array import Array, c_strides
from holdfast.compute.engines.opencl.kernels import kernel
from holdfast.compute.ops import shapes
from holdfast.compute.ops.rules import normalized_dim

if TYPE_CHECKING:
    from holdfast.compute.engines.opencl.engine import OpenCLEngine

_WORDS = {n: numpy.dtype(f"uint{8 * n}") for n in (1, 2, 4, 8)}
_C_WORDS = {1: "uchar", 2: "ushort", 4: "uint", 8: "ulong"}


# ---- numbers that need not be understood


def bits(array: Array) -> Array:
    """The same memory as whole numbers without a sign; a complex number is two of them."""
    if array.dtype.kind == "c":
        part = array.itemsize // 2
        return array.viewed(_WORDS[part], (*array.shape, 2), (*array.strides, part))
    return array.viewed(_WORDS[array.itemsize], array.shape, array.strides)


def parts_of(array: Array) -> list[Array]:
    """`bits` of the shape of the array: two of a complex one."""
    words = bits(array)
    if words.ndim == array.ndim:
        return [words]
    return [picked(words, array.ndim, place) for place in range(2)]


def word(array: Array) -> str:
    """The C type of a number of `bits`."""
    return _C_WORDS[array.itemsize]


def fresh(engine: OpenCLEngine, array: Array, dtype: numpy.dtype[Any] | None = None) -> Array:
    """A copy whose numbers lie side by side."""
    made = engine.alloc(array.shape, dtype or array.dtype)
    engine.write(made, array)
    return made


def fill(engine: OpenCLEngine, array: Array, value: Any) -> None:
    """Write one number everywhere."""
    parts = parts_of(array)
    given = numpy.asarray(value).astype(array.dtype).reshape(1).view(parts[0].dtype)
    for part, one in zip(parts, given, strict=True):
        number = elementwise.Number("value", one, word(part))
        elementwise.compute(engine, "$value", [], [number], part)


def filled(engine: OpenCLEngine, shape: Sequence[int], kind: Any, value: Any = 0) -> Array:
    """An array of one number."""
    made = engine.alloc(tuple(shape), kind)
    fill(engine, made, value)
    return made


# ---- the same numbers in another shape


def restrided(array: Array, shape: tuple[int, ...]) -> tuple[int, ...] | None:
    """The strides with which an array has another shape, of as many numbers; None if none do."""
    if array.is_contiguous:
        return c_strides(shape, array.itemsize)
    found, place = [0] * len(shape), len(shape) - 1
    step, have, seen = array.strides[-1], 1, 1
    for d in range(array.ndim - 1, -1, -1):
        have *= array.shape[d]
        if d and (array.shape[d - 1] == 1 or array.strides[d - 1] == have * step):
            continue
        while place >= 0 and (seen < have or shape[place] == 1):
            found[place] = seen * step
            seen *= shape[place]
            place -= 1
        if seen != have:
            return None
        step, have, seen = array.strides[d - 1], 1, 1
    return tuple(found)


def shaped(engine: OpenCLEngine, array: Array, shape: tuple[int, ...]) -> Array:
    """In another shape; a copy where it cannot be seen so."""
    strides = restrided(array, shape)
    if strides is not None:
        return array.viewed(array.dtype, shape, strides)
    return fresh(engine, array).viewed(array.dtype, shape)


@kernel("alias", "detach", "lift_fresh")
def alias(engine: OpenCLEngine, self: Array) -> Array:
    return self.viewed(self.dtype, self.shape, self.strides)


@kernel("view", "_reshape_alias")
def view(engine: OpenCLEngine, self: Array, size: Any, stride: Any = None) -> Array:
    wanted = shapes.viewed(self.shape, size)
    strides = restrided(self, wanted)
    if strides is None:
        raise ValueError(
            f"{list(self.shape)} with strides {list(self.steps)} cannot be seen as {list(wanted)} "
            "without a copy; use reshape"
        )
    return self.viewed(self.dtype, wanted, strides)


@kernel("reshape", "_unsafe_view")
def reshape(engine: OpenCLEngine, self: Array, shape: Any = None, size: Any = None) -> Array:
    wanted = size if shape is None else shape
    return shaped(engine, self, shapes.viewed(self.shape, wanted))


@kernel("contiguous")
def contiguous(engine: OpenCLEngine, self: Array) -> Array:
    return alias(engine, self) if self.is_contiguous else fresh(engine, self)


@kernel("_reshape_copy", "view_copy")
def reshape_copy(engine: OpenCLEngine, self: Array, size: Any) -> Array:
    return fresh(engine, self).viewed(self.dtype, shapes.viewed(self.shape, size))


@kernel("squeeze", "squeeze.dim")
def squeeze(engine: OpenCLEngine, self: Array, dim: int | None = None) -> Array:
    return shaped(engine, self, shapes.squeezed(self.shape, dim))


@kernel("squeeze.dims")
def squeeze_dims(engine: OpenCLEngine, self: Array, dim: Any) -> Array:
    return shaped(engine, self, shapes.squeezed_dims(self.shape, dim))


@kernel("unsqueeze")
def unsqueeze(engine: OpenCLEngine, self: Array, dim: int) -> Array:
    place = shapes.new_dim(dim, self.ndim)
    step = self.strides[place] * self.shape[place] if place < self.ndim else self.itemsize
    strides = (*self.strides[:place], step, *self.strides[place:])
    return self.viewed(self.dtype, shapes.unsqueezed(self.shape, dim), strides)


@kernel("expand")
def expand(engine: OpenCLEngine, self: Array, size: Any, implicit: bool = False) -> Array:
    return self.broadcast_to(shapes.expanded(self.shape, size))


# ---- dimensions in another order


@kernel("permute")
def permute(engine: OpenCLEngine, self: Array, dims: Any) -> Array:
    return self.transpose(shapes.order(self.ndim, dims))


@kernel("transpose.int")
def transpose(engine: OpenCLEngine, self: Array, dim0: int, dim1: int) -> Array:
    order = list(range(self.ndim))
    one, other = normalized_dim(dim0, self.ndim), normalized_dim(dim1, self.ndim)
    if order:
        order[one], order[other] = other, one
    return self.transpose(order)


@kernel("t")
def t(engine: OpenCLEngine, self: Array) -> Array:
    shapes.flat_transposed(self.shape)
    return self.transpose(range(self.ndim - 1, -1, -1))


def moved(array: Array, dim: int, to: int) -> Array:
    """With one dimension at another place."""
    order = [d for d in range(array.ndim) if d != dim]
    order.insert(to % array.ndim, dim)
    return array.transpose(order)


# ---- a part


def cut(array: Array, dim: int, part: slice) -> Array:
    """A stretch of one dimension, given as begin, end and step."""
    begin, step = part.start, part.step or 1
    count = len(range(begin, part.stop, step))
    offset = array.offset + (begin * array.strides[dim] if count else 0)
    strides = shapes.replaced(array.strides, dim, array.strides[dim] * step)
    return array.viewed(array.dtype, shapes.replaced(array.shape, dim, count), strides, offset)


def picked(array: Array, dim: int, index: int) -> Array:
    """Without one dimension, of which `index` (0 or more) is kept."""
    kept = [d for d in range(array.ndim) if d != dim]
    return array.viewed(
        array.dtype,
        tuple(array.shape[d] for d in kept),
        tuple(array.strides[d] for d in kept),
        array.offset + index * array.strides[dim],
    )


@kernel("select.int")
def select(engine: OpenCLEngine, self: Array, dim: int, index: int) -> Array:
    shapes.selected(self.shape, dim, index)
    place = dim % self.ndim
    return picked(self, place, index % self.shape[place])


@kernel("slice.Tensor")
def slice_(
    engine: OpenCLEngine, self: Array, dim: int = 0, start: Any = None, end: Any = None,
    step: int = 1,
) -> Array:  # fmt: skip
    place = shapes.existing(self.shape, dim)
    return cut(self, place, shapes.span(self.shape[place], start, end, step))


@kernel("narrow_copy")
def narrow_copy(engine: OpenCLEngine, self: Array, dim: int, start: int, length: int) -> Array:
    shapes.narrowed(self.shape, dim, start, length)
    place = dim % self.ndim
    begin = start + self.shape[place] if start < 0 else start
    return fresh(engine, cut(self, place, slice(begin, begin + length)))


@kernel("diagonal")
def diagonal(
    engine: OpenCLEngine, self: Array, offset: int = 0, dim1: int = 0, dim2: int = 1
) -> Array:
    one, other = shapes.two_dims(self.shape, dim1, dim2)
    shape = shapes.diagonal(self.shape, offset, dim1, dim2)
    down, right = self.strides[one], self.strides[other]
    kept = [s for d, s in enumerate(self.strides) if d not in (one, other)]
    begin = (offset * right if offset >= 0 else -offset * down) if shape[-1] else 0
    return self.viewed(self.dtype, shape, (*kept, down + right), self.offset + begin)


@kernel("unfold")
def unfold(engine: OpenCLEngine, self: Array, dimension: int, size: int, step: int) -> Array:
    shape = shapes.unfolded(self.shape, dimension, size, step)
    if not self.ndim:
        return self.viewed(self.dtype, shape, (self.itemsize,))
    place = normalized_dim(dimension, self.ndim)
    along = self.strides[place]
    strides = (*shapes.replaced(self.strides, place, along * step), along)
    return self.viewed(self.dtype, shape, strides)


@kernel("as_strided")
def as_strided(
    engine: OpenCLEngine, self: Array, size: Any, stride: Any, storage_offset: int | None = None
) -> Array:
    """Sizes and strides over all of the memory; `storage_offset` counts from its beginning."""
    size, stride, width = shapes.listed(size), shapes.listed(stride), self.itemsize
    if len(size) != len(stride) or min((*size, *stride), default=0) < 0:
        raise ValueError(f"sizes {size} and strides {stride} are no layout")
    strides = tuple(s * width for s in stride)
    if 0 in size:
        return self.viewed(self.dtype, tuple(size), strides)
    begin = self.offset if storage_offset is None else storage_offset * width
    end = begin + width + sum((n - 1) * s for n, s in zip(size, strides, strict=True))
    room = self.memory.nbytes
    if begin < 0 or end > room:
        raise ValueError(
            f"sizes {size}, strides {stride} and offset {begin // width} reach beyond the "
            f"{room // width} numbers there are"
        )
    return self.viewed(self.dtype, tuple(size), strides, begin)


# ---- several parts


def _parted(self: Array, sizes: list[int], place: int) -> list[Array]:
    found, begin = [], 0
    for size in sizes:
        found.append(cut(self, place, slice(begin, begin + size)))
        begin += size
    return found


@kernel("split.Tensor")
def split(engine: OpenCLEngine, self: Array, split_size: int, dim: int = 0) -> list[Array]:
    place = shapes.existing(self.shape, dim)
    return _parted(self, shapes.parts(self.shape[place], split_size), place)


@kernel("split_with_sizes")
def split_with_sizes(
    engine: OpenCLEngine, self: Array, split_sizes: Any, dim: int = 0
) -> list[Array]:
    shapes.split_with_sizes(self.shape, split_sizes, dim)
    return _parted(self, shapes.listed(split_sizes), dim % self.ndim)


@kernel("unbind.int")
def unbind(engine: OpenCLEngine, self: Array, dim: int = 0) -> list[Array]:
    place = shapes.existing(self.shape, dim)
    return [picked(self, place, index) for index in range(self.shape[place])]


# ---- the parts of complex numbers, and the bytes


@kernel("view_as_real")
def view_as_real(engine: OpenCLEngine, self: Array) -> Array:
    if self.dtype.kind != "c":
        raise TypeError(f"{self.dtype} numbers have no imaginary part")
    part = formats.real_of(self.dtype)
    return self.viewed(part, (*self.shape, 2), (*self.strides, part.itemsize))


@kernel("view_as_complex")
def view_as_complex(engine: OpenCLEngine, self: Array) -> Array:
    if not self.ndim or self.shape[-1] != 2 or self.dtype.name not in ("float32", "float64"):
        raise ValueError("a last dimension of 2 numbers in float32 or float64 is needed")
    if self.strides[-1] != self.itemsize or any(s % (2 * self.itemsize) for s in self.strides[:-1]):
        raise ValueError(f"pairs with strides {list(self.steps)} are no complex numbers in memory")
    return self.viewed(formats.complex_of(self.dtype), self.shape[:-1], self.strides[:-1])


@kernel("view.dtype")
def view_dtype(engine: OpenCLEngine, self: Array, dtype: Any) -> Array:
    kind = formats.dtype(dtype)
    shape = shapes.reinterpreted(self.shape, self.itemsize, kind.itemsize)
    if kind.itemsize == self.itemsize:
        return self.viewed(kind, shape, self.strides)
    if self.strides[-1] != self.itemsize and self.shape[-1] != 1:
        raise ValueError(
            "To change to a dtype of a different size, the last axis must be contiguous"
        )
    return self.viewed(kind, shape, (*self.strides[:-1], kind.itemsize))
