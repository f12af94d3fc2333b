"""Views, their `_copy`, `_scatter` and backward ops; sizes and strides of tensors.

A view in which NumPy's elements share memory is read-only.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from holdfast.compute import dtype as dtypes
from holdfast.compute.engines.layout.arrays import (
    SHARED,
    element_strides,
    is_contiguous,
    memory,
    shared,
    strided,
    view_memory,
    zeros,
)
from holdfast.compute.ops.layout import shapes
from holdfast.compute.ops.rules import normalize_dim

_ALL = slice(None)


@shared("alias", "detach", "lift_fresh", "positive")
def alias(self: Any) -> Any:
    return self.view()


# ---- other shapes


@shared("view", "_reshape_alias")
def view(self: Any, size: Any, stride: Any = None) -> Any:
    wanted = shapes.view(self.shape, size)
    try:
        return self.reshape(wanted, copy=False)
    except ValueError:
        raise ValueError(
            f"{list(self.shape)} with strides {element_strides(self)} cannot be viewed as "
            f"{list(wanted)} without a copy; use reshape"
        ) from None


@shared("reshape", "_unsafe_view")
def reshape(self: Any, shape: Any = None, size: Any = None) -> Any:
    return self.reshape(shapes.view(self.shape, size if shape is None else shape))


@shared("_reshape_copy", "view_copy")
def reshape_copy(self: Any, size: Any) -> Any:
    return self.reshape(shapes.view(self.shape, size), copy=True)


@shared("contiguous")
def contiguous(self: Any) -> Any:
    return self.view() if is_contiguous(self) else self.copy(order="C")


@shared("squeeze", "squeeze.dim", "squeeze.dims")
def squeeze(self: Any, dim: Any = None) -> Any:
    return self.reshape(shapes.squeeze(self.shape, dim))


@shared("unsqueeze")
def unsqueeze(self: Any, dim: int) -> Any:
    axis = shapes.new_dim(dim, self.ndim)
    return self[(*(_ALL,) * axis, None)]


@shared("expand")
def expand(self: Any, size: Any, implicit: bool = False) -> Any:
    wanted = shapes.expand(self.shape, size)
    extra = len(wanted) - self.ndim
    kept = zip(self.shape, wanted[extra:], self.strides, strict=True)
    strides = [0] * extra + [step if one == other else 0 for one, other, step in kept]
    return strided(self, wanted, strides)


# ---- permutations


@shared("permute")
def permute(self: Any, dims: Any) -> Any:
    return self.transpose(shapes.order(self.ndim, dims))


@shared("transpose.int")
def transpose(self: Any, dim0: int, dim1: int) -> Any:
    one, other = normalize_dim(dim0, self.ndim), normalize_dim(dim1, self.ndim)
    return self.swapaxes(one, other) if self.ndim else self.view()


@shared("t")
def t(self: Any) -> Any:
    shapes.transpose_matrix(self.shape)
    return self.T


# ---- selections and slices


def at(dim: int, what: Any) -> tuple[Any, ...]:
    """The index that takes `what` of one dimension."""
    # With the ellipsis the result is an array where a plain index would give a NumPy scalar.
    return (*(_ALL,) * dim, what, ...)


@shared("select.int")
def select(self: Any, dim: int, index: int) -> Any:
    shapes.select(self.shape, dim, index)
    return self[at(dim % self.ndim, index)]


@shared("slice.Tensor")
def slice_(self: Any, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Any:
    axis = shapes.existing_dim(self.shape, dim)
    return self[at(axis, shapes.span(self.shape[axis], start, end, step))]


@shared("narrow_copy")
def narrow_copy(self: Any, dim: int, start: int, length: int) -> Any:
    shapes.narrow(self.shape, dim, start, length)
    axis = dim % self.ndim
    begin = start + self.shape[axis] if start < 0 else start
    return self[at(axis, slice(begin, begin + length))].copy()


@shared("diagonal")
def diagonal(self: Any, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Any:
    one, other = shapes.two_dims(self.shape, dim1, dim2)
    shape = shapes.diagonal(self.shape, offset, dim1, dim2)
    down, right = self.strides[one], self.strides[other]
    kept = [s for d, s in enumerate(self.strides) if d not in (one, other)]
    begin = (offset * right if offset >= 0 else -offset * down) if shape[-1] else 0
    return strided(self, shape, [*kept, down + right], begin)


@shared("unfold")
def unfold(self: Any, dimension: int, size: int, step: int) -> Any:
    shape = shapes.unfold(self.shape, dimension, size, step)
    if not self.ndim:
        return strided(self, shape, (self.itemsize,))
    axis = normalize_dim(dimension, self.ndim)
    along = self.strides[axis]
    return strided(self, shape, (*shapes.replace_size(self.strides, axis, along * step), along))


@shared("as_strided")
def as_strided(self: Any, size: Any, stride: Any, storage_offset: int | None = None) -> Any:
    """`storage_offset` counts from the start of the memory's owner.

    If another library owns NumPy's memory, or its own as_strided made the array, it counts from
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
    return view_memory(self, buffer, size, begin, strides)


# ---- splits


def _split_by_sizes(self: Any, sizes: list[int], axis: int) -> list[Any]:
    found, begin = [], 0
    for size in sizes:
        found.append(self[at(axis, slice(begin, begin + size))])
        begin += size
    return found


@shared("split.Tensor")
def split(self: Any, split_size: int, dim: int = 0) -> Any:
    axis = shapes.existing_dim(self.shape, dim)
    return _split_by_sizes(self, shapes.parts(self.shape[axis], split_size), axis)


@shared("split_with_sizes")
def split_with_sizes(self: Any, split_sizes: Any, dim: int = 0) -> Any:
    shapes.split_with_sizes(self.shape, split_sizes, dim)
    return _split_by_sizes(self, shapes.as_list(split_sizes), dim % self.ndim)


@shared("unbind.int")
def unbind(self: Any, dim: int = 0) -> Any:
    axis = shapes.existing_dim(self.shape, dim)
    return [self[at(axis, index)] for index in range(self.shape[axis])]


# ---- complex numbers and bytes


@shared("view_as_real")
def view_as_real(self: Any) -> Any:
    if self.dtype.kind != "c":
        raise TypeError(f"{self.dtype} has no imaginary part")
    return self[..., None].view(dtypes.real_of(self.dtype))


@shared("view_as_complex")
def view_as_complex(self: Any) -> Any:
    if not self.ndim or self.shape[-1] != 2 or self.dtype.name not in ("float32", "float64"):
        raise ValueError("a last dimension of size 2 in float32 or float64 is needed")
    if self.strides[-1] != self.itemsize or any(s % (2 * self.itemsize) for s in self.strides[:-1]):
        raise ValueError(
            f"pairs with strides {element_strides(self)} are no complex numbers in memory"
        )
    return self.view(dtypes.complex_of(self.dtype))[..., 0]


@shared("view.dtype")
def view_dtype(self: Any, dtype: Any) -> Any:
    kind = dtypes.dtype(dtype)
    shapes.reinterpret(self.shape, self.dtype.itemsize, kind.itemsize)
    return self.view(kind)


# ---- derived from views


def _copy_of(view: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(view)
    def copy(*args: Any, **kwargs: Any) -> Any:
        found = view(*args, **kwargs)
        return [one.copy() for one in found] if isinstance(found, list) else found.copy()

    return copy


def _scatter_into(view: Callable[..., Any]) -> Callable[..., Any]:
    def scatter(self: Any, src: Any, *args: Any, **kwargs: Any) -> Any:
        made = self.copy(order="C")
        part = view(made, *args, **kwargs)
        if part.shape != src.shape:
            raise ValueError(f"the part has shape {list(part.shape)}, the source {list(src.shape)}")
        part[...] = src
        return made

    return scatter


def _gradient_of(view: Callable[..., Any]) -> Callable[..., Any]:
    def backward(grad_output: Any, input_sizes: Any, *args: Any, **kwargs: Any) -> Any:
        made = zeros(grad_output, input_sizes, grad_output.dtype)
        view(made, *args, **kwargs)[...] = grad_output
        return made

    return backward


for _name in (
    *("alias", "detach", "squeeze", "squeeze.dim", "squeeze.dims", "unsqueeze", "expand"),
    *("permute", "transpose.int", "t", "select.int", "slice.Tensor", "diagonal", "unfold"),
    *("as_strided", "split.Tensor", "split_with_sizes", "unbind.int", "view_as_real"),
    *("view_as_complex", "view.dtype"),
):
    _base, _dot, _overload = _name.partition(".")
    shared(f"{_base}_copy{_dot}{_overload}")(_copy_of(SHARED[_name]))
for _name in ("split.Tensor", "split_with_sizes"):
    shared(f"unsafe_{_name}")(_copy_of(SHARED[_name]))
shared("lift", "lift_fresh_copy")(_copy_of(alias))
for _base, _view in (("select", select), ("slice", slice_), ("diagonal", diagonal)):
    shared(f"{_base}_backward")(_gradient_of(_view))
    shared(f"{_base}_scatter")(_scatter_into(_view))
shared("as_strided_scatter")(_scatter_into(as_strided))


# ---- sizes and strides


@shared("sym_size.int")
def sym_size(self: Any, dim: int) -> int:
    return self.shape[normalize_dim(dim, self.ndim)]


@shared("sym_stride.int")
def sym_stride(self: Any, dim: int) -> int:
    return element_strides(self)[normalize_dim(dim, self.ndim)]


@shared("sym_numel")
def sym_numel(self: Any) -> int:
    return self.size


@shared("sym_storage_offset")
def sym_storage_offset(self: Any) -> int:
    return memory(self)[1] // self.itemsize


shared("sym_is_contiguous")(lambda self: bool(is_contiguous(self)))


@shared("_local_scalar_dense")
def local_scalar_dense(self: Any) -> Any:
    if self.size != 1:
        raise ValueError(f"{list(self.shape)} is not a single element")
    number = self.item()
    return float(number) if dtypes.is_floating(self.dtype) else number
