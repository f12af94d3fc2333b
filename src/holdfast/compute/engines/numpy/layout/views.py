"""Views of arrays. A view in which elements share memory is read-only."""

from __future__ import annotations

from typing import Any

import numpy

from holdfast.compute import dtype as dtypes
from holdfast.compute.engines.numpy.kernels import kernel
from holdfast.compute.ops.layout import shapes
from holdfast.compute.ops.rules import normalize_dim

_ALL = slice(None)


def strided(array: Any, shape: Any, strides: Any, offset: int = 0) -> Any:
    """A view with this shape; strides and offset (from the start of `array`) in bytes.

    The bounds are not checked if `array` is empty.
    """
    if not array.size:
        return numpy.lib.stride_tricks.as_strided(array, shape, strides)
    if array.flags.c_contiguous and array.dtype.isbuiltin == 1:
        buffer, begin = array, offset
    else:
        buffer, begin = memory(array)
        begin += offset
    return _view_memory(buffer, shape, array.dtype, begin, strides)


def _view_memory(buffer: Any, shape: Any, kind: Any, begin: int, strides: Any) -> Any:
    """An array over memory; read-only if a stride of 0 makes elements share memory."""
    made = numpy.ndarray(shape, kind, buffer, begin, strides)
    if any(n > 1 and not s for n, s in zip(shape, strides, strict=True)):
        made.flags.writeable = False
    return made


def memory(array: Any) -> tuple[Any, int]:
    """The bytes of the array that owns the memory of `array`, and the offset of `array` in them.

    If the owner is no NumPy array, or has gaps, these are the bytes that `array` itself spans.
    """
    owner = array
    while isinstance(getattr(owner, "base", None), numpy.ndarray):
        owner = owner.base
    if not (owner.flags.c_contiguous or owner.flags.f_contiguous):
        reach = _reach(array)
        owner = numpy.lib.stride_tricks.as_strided(array, (reach,), (array.itemsize,))
    return owner.ravel(order="K").view(numpy.uint8), _address(array) - _address(owner)


def _reach(array: Any) -> int:
    """How many elements an array spans in memory, gaps included."""
    return 1 + sum(
        (n - 1) * s // array.itemsize for n, s in zip(array.shape, array.strides, strict=True)
    )


def _address(array: Any) -> int:
    return array.__array_interface__["data"][0]


@kernel("alias", "detach", "lift_fresh")
def alias(self: Any) -> Any:
    return self.view()


# ---- other shapes


@kernel("view", "_reshape_alias")
def view(self: Any, size: Any, stride: Any = None) -> Any:
    wanted = shapes.view(self.shape, size)
    try:
        return self.reshape(wanted, copy=False)
    except ValueError:
        raise ValueError(
            f"{list(self.shape)} with strides {element_strides(self)} cannot be viewed as "
            f"{list(wanted)} without a copy; use reshape"
        ) from None


def element_strides(array: Any) -> list[int]:
    return [s // array.itemsize for s in array.strides]


@kernel("reshape")
def reshape(self: Any, shape: Any) -> Any:
    return self.reshape(shapes.view(self.shape, shape))


@kernel("contiguous")
def contiguous(self: Any) -> Any:
    return self.view() if self.flags.c_contiguous else self.copy(order="C")


@kernel("_unsafe_view")
def unsafe_view(self: Any, size: Any) -> Any:
    return self.reshape(shapes.view(self.shape, size))


@kernel("_reshape_copy")
def reshape_copy(self: Any, size: Any) -> Any:
    return self.reshape(shapes.view(self.shape, size), copy=True)


@kernel("squeeze", "squeeze.dim")
def squeeze(self: Any, dim: int | None = None) -> Any:
    return self.reshape(shapes.squeeze(self.shape, dim))


@kernel("squeeze.dims")
def squeeze_dims(self: Any, dim: Any) -> Any:
    return self.reshape(shapes.squeeze_dims(self.shape, dim))


@kernel("unsqueeze")
def unsqueeze(self: Any, dim: int) -> Any:
    axis = shapes.new_dim(dim, self.ndim)
    return self[(*(_ALL,) * axis, None)]


@kernel("expand")
def expand(self: Any, size: Any, implicit: bool = False) -> Any:
    wanted = shapes.expand(self.shape, size)
    extra = len(wanted) - self.ndim
    kept = zip(self.shape, wanted[extra:], self.strides, strict=True)
    strides = [0] * extra + [step if one == other else 0 for one, other, step in kept]
    return strided(self, wanted, strides)


# ---- permutations


@kernel("permute")
def permute(self: Any, dims: Any) -> Any:
    return self.transpose(shapes.order(self.ndim, dims))


@kernel("transpose.int")
def transpose(self: Any, dim0: int, dim1: int) -> Any:
    one, other = normalize_dim(dim0, self.ndim), normalize_dim(dim1, self.ndim)
    return self.swapaxes(one, other) if self.ndim else self.view()


@kernel("t")
def t(self: Any) -> Any:
    shapes.transpose_matrix(self.shape)
    return self.T


# ---- selections and slices


def at(dim: int, what: Any) -> tuple[Any, ...]:
    # With the ellipsis the result is an array where a plain index would give a NumPy scalar.
    return (*(_ALL,) * dim, what, ...)


@kernel("select.int")
def select(self: Any, dim: int, index: int) -> Any:
    shapes.select(self.shape, dim, index)
    return self[at(dim % self.ndim, index)]


@kernel("slice.Tensor")
def slice_(self: Any, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Any:
    axis = shapes.existing_dim(self.shape, dim)
    return self[at(axis, shapes.span(self.shape[axis], start, end, step))]


@kernel("narrow_copy")
def narrow_copy(self: Any, dim: int, start: int, length: int) -> Any:
    shapes.narrow(self.shape, dim, start, length)
    axis = dim % self.ndim
    begin = start + self.shape[axis] if start < 0 else start
    return self[at(axis, slice(begin, begin + length))].copy()


@kernel("diagonal")
def diagonal(self: Any, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Any:
    one, other = shapes.two_dims(self.shape, dim1, dim2)
    shape = shapes.diagonal(self.shape, offset, dim1, dim2)
    down, right = self.strides[one], self.strides[other]
    kept = [s for d, s in enumerate(self.strides) if d not in (one, other)]
    begin = (offset * right if offset >= 0 else -offset * down) if shape[-1] else 0
    return strided(self, shape, [*kept, down + right], begin)


@kernel("unfold")
def unfold(self: Any, dimension: int, size: int, step: int) -> Any:
    shape = shapes.unfold(self.shape, dimension, size, step)
    if not self.ndim:
        return strided(self, shape, (self.itemsize,))
    axis = normalize_dim(dimension, self.ndim)
    strides = list(self.strides)
    strides[axis] *= step
    return strided(self, shape, (*strides, self.strides[axis]))


@kernel("as_strided")
def as_strided(self: Any, size: Any, stride: Any, storage_offset: int | None = None) -> Any:
    """`storage_offset` counts from the start of the memory's owner.

    If another library owns the memory, or NumPy's own as_strided made the array, it counts from
    the start of `self`.
    """
    size, stride, width = shapes.as_list(size), shapes.as_list(stride), self.itemsize
    if len(size) != len(stride) or min((*size, *stride), default=0) < 0:
        raise ValueError(f"sizes {size} and strides {stride} are not a valid layout")
    strides = [s * width for s in stride]
    if 0 in size:
        return strided(self, size, strides)
    buffer, here = memory(self)
    begin = here if storage_offset is None else storage_offset * width
    end = begin + width + sum((n - 1) * s for n, s in zip(size, strides, strict=True))
    if begin < 0 or end > buffer.nbytes:
        raise ValueError(
            f"sizes {size}, strides {stride} and offset {begin // width} reach beyond the "
            f"{buffer.nbytes // width} elements there are"
        )
    return _view_memory(buffer, size, self.dtype, begin, strides)


# ---- splits


def _split_by_sizes(self: Any, sizes: list[int], axis: int) -> list[Any]:
    found, begin = [], 0
    for size in sizes:
        found.append(self[at(axis, slice(begin, begin + size))])
        begin += size
    return found


@kernel("split.Tensor")
def split(self: Any, split_size: int, dim: int = 0) -> Any:
    axis = shapes.existing_dim(self.shape, dim)
    return _split_by_sizes(self, shapes.parts(self.shape[axis], split_size), axis)


@kernel("split_with_sizes")
def split_with_sizes(self: Any, split_sizes: Any, dim: int = 0) -> Any:
    shapes.split_with_sizes(self.shape, split_sizes, dim)
    return _split_by_sizes(self, shapes.as_list(split_sizes), dim % self.ndim)


@kernel("unbind.int")
def unbind(self: Any, dim: int = 0) -> Any:
    axis = shapes.existing_dim(self.shape, dim)
    return [self[at(axis, index)] for index in range(self.shape[axis])]


# ---- complex numbers and bytes


@kernel("view_as_real")
def view_as_real(self: Any) -> Any:
    if self.dtype.kind != "c":
        raise TypeError(f"{self.dtype} has no imaginary part")
    return self[..., None].view(dtypes.real_of(self.dtype))


@kernel("view_as_complex")
def view_as_complex(self: Any) -> Any:
    if not self.ndim or self.shape[-1] != 2 or self.dtype.name not in ("float32", "float64"):
        raise ValueError("a last dimension of size 2 in float32 or float64 is needed")
    if self.strides[-1] != self.itemsize or any(s % (2 * self.itemsize) for s in self.strides[:-1]):
        raise ValueError(
            f"pairs with strides {element_strides(self)} are no complex numbers in memory"
        )
    return self.view(dtypes.complex_of(self.dtype))[..., 0]


@kernel("view.dtype")
def view_dtype(self: Any, dtype: Any) -> Any:
    kind = dtypes.dtype(dtype)
    shapes.reinterpret(self.shape, self.dtype.itemsize, kind.itemsize)
    return self.view(kind)
