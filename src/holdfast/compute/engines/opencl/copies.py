"""Copies of views: with memory of their own, with a part replaced, or zero beside a part.

Covers: `_copy`, `_scatter` and backward ops of views, and what a tensor tells about itself.
Leaves to others: the views (`views`), overlapping windows (`assemble`).
Promise: what comes of a `_copy` op shares no memory with what it was made from.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from holdfast.compute import dtype as formats
from holdfast.compute.engines.opencl.array import Array
from holdfast.compute.engines.opencl.kernels import KERNELS, kernel, register
from holdfast.compute.engines.opencl.views import (
    alias,
    as_strided,
    diagonal,
    filled,
    fresh,
    select,
    slice_,
    split,
    split_with_sizes,
)
from holdfast.compute.ops.rules import normalized_dim

if TYPE_CHECKING:
    from holdfast.compute.engines.opencl.engine import OpenCLEngine

# ---- zeros with a part, and copies in which a part is replaced


def _beside_zeros(view: Callable[..., Array]) -> Callable[..., Array]:
    def backward(
        engine: OpenCLEngine, grad_output: Array, input_sizes: Any, *args: Any, **named: Any
    ) -> Array:
        made = filled(engine, input_sizes, grad_output.dtype)
        engine.write(view(engine, made, *args, **named), grad_output)
        return made

    return backward


def _replacing(view: Callable[..., Array]) -> Callable[..., Array]:
    def scatter(engine: OpenCLEngine, self: Array, src: Array, *args: Any, **named: Any) -> Array:
        made = fresh(engine, self)
        part = view(engine, made, *args, **named)
        if part.shape != src.shape:
            raise ValueError(f"the part is {list(part.shape)}, what to put there {list(src.shape)}")
        engine.write(part, src)
        return made

    return scatter


def _copied(view: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(view)
    def copy(engine: OpenCLEngine, *args: Any, **named: Any) -> Any:
        found = view(engine, *args, **named)
        if isinstance(found, list):
            return [fresh(engine, one) for one in found]
        return fresh(engine, found)

    return copy


for _base, _view in (("select", select), ("slice", slice_), ("diagonal", diagonal)):
    register(f"{_base}_backward", _beside_zeros(_view))
    register(f"{_base}_scatter", _replacing(_view))
register("as_strided_scatter", _replacing(as_strided))

for _name in (
    *("alias", "detach", "squeeze", "squeeze.dim", "squeeze.dims", "unsqueeze", "expand"),
    *("permute", "transpose.int", "t", "select.int", "slice.Tensor", "diagonal", "unfold"),
    *("as_strided", "split.Tensor", "split_with_sizes", "unbind.int", "view_as_real"),
    *("view_as_complex", "view.dtype"),
):
    _base, _dot, _overload = _name.partition(".")
    register(f"{_base}_copy{_dot}{_overload}", _copied(KERNELS[_name].function))
register("unsafe_split.Tensor", _copied(split))
register("unsafe_split_with_sizes", _copied(split_with_sizes))
register("lift", _copied(alias))
register("lift_fresh_copy", _copied(alias))


# ---- what a tensor is


@kernel("sym_size.int")
def sym_size(engine: OpenCLEngine, self: Array, dim: int) -> int:
    return self.shape[normalized_dim(dim, self.ndim)]


@kernel("sym_stride.int")
def sym_stride(engine: OpenCLEngine, self: Array, dim: int) -> int:
    return self.steps[normalized_dim(dim, self.ndim)]


@kernel("sym_numel")
def sym_numel(engine: OpenCLEngine, self: Array) -> int:
    return self.size


@kernel("sym_storage_offset")
def sym_storage_offset(engine: OpenCLEngine, self: Array) -> int:
    return self.offset // self.itemsize


@kernel("sym_is_contiguous")
def sym_is_contiguous(engine: OpenCLEngine, self: Array) -> bool:
    return self.is_contiguous


@kernel("_local_scalar_dense")
def local_scalar_dense(engine: OpenCLEngine, self: Array) -> Any:
    """The number itself: this waits for it."""
    if self.size != 1:
        raise ValueError(f"{list(self.shape)} is not a single number")
    number = engine.download(self).reshape(()).item()
    return float(number) if formats.is_floating(self.dtype) else number
