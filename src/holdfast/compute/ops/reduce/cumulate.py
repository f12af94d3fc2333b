"""Cumulative ops along a dimension, and reductions of segments."""

from __future__ import annotations

from typing import Any

from holdfast.compute import dtype as dtypes
from holdfast.compute import functional as F
from holdfast.compute.ops.reduce.reduce import check_order
from holdfast.compute.ops.rules import (
    LIKE_SELF,
    Meta,
    checked,
    like,
    normalize_dim,
    rule,
    with_indices,
)
from holdfast.compute.ops.table import Op, composite, op


def _infer_cumulative(op: Op, bound: dict[str, Any]) -> Meta:
    of = bound["self"]
    return Meta(tuple(of.shape), dtypes.dtype_or(bound["dtype"], dtypes.of_sums(of.dtype)))


op("cumsum(Tensor self, int dim, *, ScalarType? dtype=None) -> Tensor", rule(_infer_cumulative),
   {"self": "reverse_cumsum(grad, dim)"})  # fmt: skip
op("cumprod(Tensor self, int dim, *, ScalarType? dtype=None) -> Tensor", rule(_infer_cumulative),
   {"self": "cumprod_gradient(grad, self, result, dim)"})  # fmt: skip
for _name in ("cummax", "cummin"):
    op(f"{_name}(Tensor self, int dim) -> (Tensor values, Tensor indices)",
       checked(with_indices(LIKE_SELF), check_order),
       {"self": "scatter_sum(grad, self.shape, dim, result1)"})  # fmt: skip
op("logcumsumexp(Tensor self, int dim) -> Tensor", LIKE_SELF,
   {"self": "logcumsumexp_gradient(grad, self, result, dim)"})  # fmt: skip


def _infer_segments(op: Op, bound: dict[str, Any]) -> Meta | None:
    data, axis = bound["data"], bound["axis"]
    if bound["offsets"] is not None:
        count = bound["offsets"].shape[-1] - 1
    elif bound["lengths"] is not None:
        count = bound["lengths"].shape[-1]
    else:
        return None
    return Meta((*data.shape[:axis], count, *data.shape[axis + 1 :]), data.dtype)


op("segment_reduce(Tensor data, str reduce, *, Tensor? lengths=None, Tensor? indices=None,"
   " Tensor? offsets=None, int axis=0, bool unsafe=False, Scalar? initial=None) -> Tensor",
   rule(_infer_segments),
   {"data": "_segment_reduce_backward(grad, result, data, reduce, lengths=lengths,"
            " offsets=offsets, axis=axis, initial=initial)"})  # fmt: skip
op("_segment_reduce_backward(Tensor grad, Tensor output, Tensor data, str reduce, *,"
   " Tensor? lengths=None, Tensor? offsets=None, int axis=0, Scalar? initial=None) -> Tensor",
   like("data"))  # fmt: skip


# ---- areas under a curve


def _strips(y: Any, width: Any, dim: int) -> Any:
    """Areas between neighbours along a dimension."""
    axis = normalize_dim(dim, y.ndim)
    size = y.shape[axis] - 1
    return (F.narrow(y, axis, 0, size) + F.narrow(y, axis, 1, size)) * width / 2


def _widths(y: Any, x: Any, dim: int) -> Any:
    if x.ndim == 1 and y.ndim > 1:
        shape = [1] * y.ndim
        shape[normalize_dim(dim, y.ndim)] = x.shape[0]
        x = F.reshape(x, shape)
    axis = normalize_dim(dim, x.ndim)
    size = x.shape[axis] - 1
    return F.narrow(x, axis, 1, size) - F.narrow(x, axis, 0, size)


for _name, _join in (
    ("trapezoid", lambda strips, dim: F.sum(strips, [dim])),
    ("cumulative_trapezoid", lambda strips, dim: F.cumsum(strips, dim)),  # not yet in the table
):

    def _by_x(y: Any, x: Any, *, dim: int = -1, join: Any = _join) -> Any:
        return join(_strips(y, _widths(y, x, dim), dim), dim)

    def _by_dx(y: Any, *, dx: Any = 1, dim: int = -1, join: Any = _join) -> Any:
        return join(_strips(y, dx, dim), dim)

    composite(f"{_name}.x(Tensor y, Tensor x, *, int dim=-1) -> Tensor")(_by_x)
    composite(f"{_name}.dx(Tensor y, *, Scalar dx=1, int dim=-1) -> Tensor")(_by_dx)
