"""Kernels derived from views (`_copy`, `_scatter`, view gradients), and tensor metadata ops."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from holdfast.compute import dtype as dtypes
from holdfast.compute.engines.opencl.layout.views import (
    alias,
    as_strided,
    diagonal,
    make_copy,
    make_full,
    select,
    slice_,
    split,
    split_with_sizes,
)
from holdfast.compute.engines.opencl.runtime.array import Array
from holdfast.compute.engines.opencl.runtime.engine_protocol import CLEngine
from holdfast.compute.engines.opencl.runtime.kernel_table import KERNELS, kernel, register
from holdfast.compute.ops.rules import normalize_dim

# ---- gradients of views, and copies with a part replaced


def _make_backward(view: Callable[..., Array]) -> Callable[..., Array]:
    def backward(
        engine: CLEngine, grad_output: Array, input_sizes: Any, *args: Any, **named: Any
    ) -> Array:
        made = make_full(engine, input_sizes, grad_output.dtype)
        engine.write(view(engine, made, *args, **named), grad_output)
        return made

    return backward


def _make_scatter(view: Callable[..., Array]) -> Callable[..., Array]:
    def scatter(engine: CLEngine, self: Array, src: Array, *args: Any, **named: Any) -> Array:
        made = make_copy(engine, self)
        part = view(engine, made, *args, **named)
        if part.shape != src.shape:
            raise ValueError(f"the part has shape {list(part.shape)}, the source {list(src.shape)}")
        engine.write(part, src)
        return made

    return scatter


def _make_copy_kernel(view: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(view)
    def copy(engine: CLEngine, *args: Any, **named: Any) -> Any:
        found = view(engine, *args, **named)
        if isinstance(found, list):
            return [make_copy(engine, one) for one in found]
        return make_copy(engine, found)

    return copy


for _base, _view in (("select", select), ("slice", slice_), ("diagonal", diagonal)):
    register(f"{_base}_backward", _make_backward(_view))
    register(f"{_base}_scatter", _make_scatter(_view))
register("as_strided_scatter", _make_scatter(as_strided))

for _name in (
    *("alias", "detach", "squeeze", "squeeze.dim", "squeeze.dims", "unsqueeze", "expand"),
    *("permute", "transpose.int", "t", "select.int", "slice.Tensor", "diagonal", "unfold"),
    *("as_strided", "split.Tensor", "split_with_sizes", "unbind.int", "view_as_real"),
    *("view_as_complex", "view.dtype"),
):
    _base, _dot, _overload = _name.partition(".")
    register(f"{_base}_copy{_dot}{_overload}", _make_copy_kernel(KERNELS[_name].function))
register("unsafe_split.Tensor", _make_copy_kernel(split))
register("unsafe_split_with_sizes", _make_copy_kernel(split_with_sizes))
register("lift", _make_copy_kernel(alias))
register("lift_fresh_copy", _make_copy_kernel(alias))


# ---- metadata


@kernel("sym_size.int")
def sym_size(engine: CLEngine, self: Array, dim: int) -> int:
    return self.shape[normalize_dim(dim, self.ndim)]


@kernel("sym_stride.int")
def sym_stride(engine: CLEngine, self: Array, dim: int) -> int:
    return self.steps[normalize_dim(dim, self.ndim)]


@kernel("sym_numel")
def sym_numel(engine: CLEngine, self: Array) -> int:
    return self.size


@kernel("sym_storage_offset")
def sym_storage_offset(engine: CLEngine, self: Array) -> int:
    return self.offset // self.itemsize


@kernel("sym_is_contiguous")
def sym_is_contiguous(engine: CLEngine, self: Array) -> bool:
    return self.is_contiguous


@kernel("_local_scalar_dense")
def local_scalar_dense(engine: CLEngine, self: Array) -> Any:
    """The element as a Python scalar; waits for the device."""
    if self.size != 1:
        raise ValueError(f"{list(self.shape)} is not a single element")
    number = engine.download(self).reshape(()).item()
    return float(number) if dtypes.is_floating(self.dtype) else number
