"""The `_copy`, `_scatter` and backward ops of views; sizes and strides of tensors."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy

from holdfast.compute import dtype as dtypes
from holdfast.compute.engines.numpy.kernels import KERNELS, kernel, register
from holdfast.compute.engines.numpy.layout.views import (
    alias,
    as_strided,
    at,
    diagonal,
    element_strides,
    memory,
    reshape_copy,
    select,
    slice_,
    split,
    split_with_sizes,
)
from holdfast.compute.ops.rules import normalize_dim

# ---- backward ops: zeros, with the gradient at the view


@kernel("select_backward")
def select_backward(grad_output: Any, input_sizes: Any, dim: int, index: int) -> Any:
    made = numpy.zeros(input_sizes, grad_output.dtype)
    select(made, dim, index)[...] = grad_output
    return made


@kernel("slice_backward")
def slice_backward(
    grad_output: Any, input_sizes: Any, dim: int, start: int, end: int, step: int
) -> Any:
    made = numpy.zeros(input_sizes, grad_output.dtype)
    slice_(made, dim, start, end, step)[...] = grad_output
    return made


@kernel("diagonal_backward")
def diagonal_backward(grad_output: Any, input_sizes: Any, offset: int, dim1: int, dim2: int) -> Any:
    made = numpy.zeros(input_sizes, grad_output.dtype)
    diagonal(made, offset, dim1, dim2)[...] = grad_output
    return made


@kernel("unfold_backward")
def unfold_backward(grad_in: Any, input_sizes: Any, dim: int, size: int, step: int) -> Any:
    kind = dtypes.working(grad_in.dtype)
    made = numpy.zeros(input_sizes, kind)
    if not made.ndim:
        return (grad_in.reshape(()) if size else made).astype(grad_in.dtype)
    axis = normalize_dim(dim, made.ndim)
    windows = grad_in.shape[axis]
    # One pass for each offset in a window: elements of one pass never overlap.
    for offset in range(size if windows else 0):
        part = slice(offset, offset + (windows - 1) * step + 1, step)
        made[at(axis, part)] += grad_in[..., offset]
    return made.astype(grad_in.dtype, copy=False)


# ---- copies in which a view is overwritten


def _scatter(view: Callable[..., Any]) -> Callable[..., Any]:
    def scatter(self: Any, src: Any, *args: Any, **kwargs: Any) -> Any:
        made = self.copy(order="C")
        part = view(made, *args, **kwargs)
        if part.shape != src.shape:
            raise ValueError(f"the part has shape {list(part.shape)}, the source {list(src.shape)}")
        part[...] = src
        return made

    return scatter


register("select_scatter", _scatter(select))
register("slice_scatter", _scatter(slice_))
register("diagonal_scatter", _scatter(diagonal))
register("as_strided_scatter", _scatter(as_strided))

# ---- copies of views


def _with_copy(view: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(view)
    def copy(*args: Any, **kwargs: Any) -> Any:
        found = view(*args, **kwargs)
        return [one.copy() for one in found] if isinstance(found, list) else found.copy()

    return copy


for _name in (
    *("alias", "detach", "squeeze", "squeeze.dim", "squeeze.dims", "unsqueeze", "expand"),
    *("permute", "transpose.int", "t", "select.int", "slice.Tensor", "diagonal", "unfold"),
    *("as_strided", "split.Tensor", "split_with_sizes", "unbind.int", "view_as_real"),
    *("view_as_complex", "view.dtype"),
):
    _base, _dot, _overload = _name.partition(".")
    register(f"{_base}_copy{_dot}{_overload}", _with_copy(KERNELS[_name]))
register("view_copy", reshape_copy)
register("unsafe_split.Tensor", _with_copy(split))
register("unsafe_split_with_sizes", _with_copy(split_with_sizes))
register("lift", _with_copy(alias))
register("lift_fresh_copy", _with_copy(alias))

# ---- sizes and strides


@kernel("sym_size.int")
def sym_size(self: Any, dim: int) -> int:
    return self.shape[normalize_dim(dim, self.ndim)]


@kernel("sym_stride.int")
def sym_stride(self: Any, dim: int) -> int:
    return element_strides(self)[normalize_dim(dim, self.ndim)]


@kernel("sym_numel")
def sym_numel(self: Any) -> int:
    return self.size


@kernel("sym_storage_offset")
def sym_storage_offset(self: Any) -> int:
    return memory(self)[1] // self.itemsize


@kernel("sym_is_contiguous")
def sym_is_contiguous(self: Any) -> bool:
    return bool(self.flags.c_contiguous)


@kernel("_local_scalar_dense")
def local_scalar_dense(self: Any) -> Any:
    if self.size != 1:
        raise ValueError(f"{list(self.shape)} is not a single element")
    number = self.reshape(()).item()
    return float(number) if dtypes.is_floating(self.dtype) else number
