"""Distances of pairs, and between all rows."""

from __future__ import annotations

from typing import Any

import numpy

from holdfast.compute import dtype as dtypes
from holdfast.compute import functional as F
from holdfast.compute.ops.rules import Meta, like, rule
from holdfast.compute.ops.table import Op, composite, op

# ---- distances of pairs


@composite("pairwise_distance(Tensor x1, Tensor x2, float p=2., float eps=1e-06,"
           " bool keepdim=False) -> Tensor")  # fmt: skip
def pairwise_distance(
    x1: Any, x2: Any, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False
) -> Any:
    return F.norm(x1 - x2 + eps, p, [max(x1.ndim, x2.ndim, 1) - 1], keepdim)


@composite("cosine_similarity(Tensor x1, Tensor x2, int dim=1, float eps=1e-08) -> Tensor")
def cosine_similarity(x1: Any, x2: Any, dim: int = 1, eps: float = 1e-8) -> Any:
    shape = list(numpy.broadcast_shapes(tuple(x1.shape), tuple(x2.shape)))
    one, other = (F.expand(x, shape) for x in (x1, x2))
    sizes = (F.clamp_min(F.norm(x, 2, [dim], True), eps) for x in (one, other))
    return F.sum(one / next(sizes) * (other / next(sizes)), [dim])


# ---- distances of all rows


def _check_rows(x1: Any, x2: Any) -> None:
    if x1.ndim < 2 or x2.ndim < 2 or x1.shape[-1] != x2.shape[-1]:
        raise ValueError("distances are between rows of equal length, in at least 2 dimensions")


def _check_pairs(x1: Any, x2: Any, p: float, compute_mode: Any) -> None:
    if p < 0:
        raise ValueError(f"p is not negative; it is {p}")
    _check_rows(x1, x2)


def _check_triangle(self: Any, p: float = 2.0) -> None:
    if self.ndim != 2:
        raise ValueError(f"pdist takes a matrix, not {self.ndim} dimensions")
    _check_pairs(self, self, p, None)


def _infer_pairs(op: Op, bound: dict[str, Any]) -> Meta:
    one, other = bound["x1"].shape, bound["x2"].shape
    batch = numpy.broadcast_shapes(tuple(one[:-2]), tuple(other[:-2]))
    last = one[-1] if op.name == "_cdist_backward" else other[-2]
    return Meta((*batch, one[-2], last), bound["x1"].dtype)


def _euclidean_dist(x1: Any, x2: Any) -> Any:
    _check_rows(x1, x2)
    one, other = (x.to(dtypes.result_type(x1, x2)) for x in (x1, x2))
    return F._cdist_forward(one, other, 2.0, 1)


op("_cdist_forward(Tensor x1, Tensor x2, float p, int? compute_mode) -> Tensor",
   rule(_infer_pairs, check=_check_pairs),
   {"x1": "_cdist_backward(grad, x1, x2, p, result)",
    "x2": "_cdist_backward(transpose(grad, -1, -2), x2, x1, p, transpose(result, -1, -2))"
    })  # fmt: skip
op("_cdist_backward(Tensor grad, Tensor x1, Tensor x2, float p, Tensor cdist) -> Tensor",
   rule(_infer_pairs, check=lambda grad, x1, x2, p, cdist: _check_rows(x1, x2)))  # fmt: skip
op("_euclidean_dist(Tensor x1, Tensor x2) -> Tensor", rule(_infer_pairs),
   {"x1": "euclidean_gradient(grad, x1, x2, result)",
    "x2": "euclidean_gradient(transpose(grad, -1, -2), x2, x1, transpose(result, -1, -2))"
    }, _euclidean_dist)  # fmt: skip


def _infer_triangle(_: Op, bound: dict[str, Any]) -> Meta:
    rows = bound["self"].shape[0]
    return Meta((rows * (rows - 1) // 2,), bound["self"].dtype)


op("_pdist_forward(Tensor self, float p=2.) -> Tensor",
   rule(_infer_triangle, check=_check_triangle),
   {"self": "_pdist_backward(grad, self, p, result)"})  # fmt: skip
op("_pdist_backward(Tensor grad, Tensor self, float p, Tensor pdist) -> Tensor", like("self"))


@composite("cdist(Tensor x1, Tensor x2, float p=2., int? compute_mode=None) -> Tensor")
def cdist(x1: Any, x2: Any, p: float = 2.0, compute_mode: Any = None) -> Any:
    return F._cdist_forward(x1, x2, p, compute_mode)
