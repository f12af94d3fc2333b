"""Norms of vectors and matrices."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from holdfast.base.errors import BadInput
from holdfast.compute import dtype as dtypes
from holdfast.compute import functional as F
from holdfast.compute.ops.rules import Meta, normalize_dim, reduction, rule
from holdfast.compute.ops.schema import describe
from holdfast.compute.ops.table import Op, composite, op

_REAL = reduction("real")
_NORM = replace(
    _REAL, expects="floating-point or complex numbers, at least one where ord is inf or < 0"
)

# ---- of vectors

op("linalg_vector_norm(Tensor self, Scalar ord=2, int[1]? dim=None, bool keepdim=False, *, "
   "ScalarType? dtype=None) -> Tensor",
   _NORM, {"self": "norm_gradient(grad, self, ord, result, dim, keepdim)"})  # fmt: skip
op("norm.Scalar(Tensor self, Scalar p=2) -> Tensor", _REAL,
   {"self": "norm_gradient(grad, self, p, result, None, False)"})  # fmt: skip
op("norm.ScalarOpt_dim(Tensor self, Scalar? p, int[1] dim, bool keepdim=False) -> Tensor", _REAL,
   {"self": "norm_gradient(grad, self, p, result, dim, keepdim)"})  # fmt: skip
op("norm.ScalarOpt_dim_dtype(Tensor self, Scalar? p, int[1] dim, bool keepdim, *,"
   " ScalarType dtype) -> Tensor", _REAL,
   {"self": "norm_gradient(grad, self.to(dtype), p, result, dim, keepdim)"})  # fmt: skip
op("norm.ScalarOpt_dtype(Tensor self, Scalar? p, *, ScalarType dtype) -> Tensor", _REAL,
   {"self": "norm_gradient(grad, self.to(dtype), p, result, None, False)"})  # fmt: skip


@composite("frobenius_norm.dim(Tensor self, int[1] dim, bool keepdim=False) -> Tensor")
def frobenius_norm(self: Any, dim: Any, keepdim: bool = False) -> Any:
    return F.norm(self, 2, dim, keepdim)


def _infer_single(op: Op, bound: dict[str, Any]) -> Meta:
    return Meta((), dtypes.real_of(dtypes.result_type(bound["self"], bound["other"])))


op("dist(Tensor self, Tensor other, Scalar p=2) -> Tensor", rule(_infer_single),
   {"self": "norm_gradient(grad, self - other, p, result, None, False)",
    "other": "norm_gradient(0 - grad, self - other, p, result, None, False)"})  # fmt: skip


@composite("renorm(Tensor self, Scalar p, int dim, Scalar maxnorm) -> Tensor")
def renorm(self: Any, p: Any, dim: int, maxnorm: Any) -> Any:
    axis = normalize_dim(dim, self.ndim)
    sizes = F.norm(self, p, [d for d in range(self.ndim) if d != axis], True)
    factor = F.where(F.gt(sizes, maxnorm), maxnorm / (sizes + 1e-7), F.ones_like(sizes))
    return self * factor


# ---- of matrices


def _matrix_norm(of: Any, order: Any, dims: Any, keepdim: bool, dtype: Any) -> Any:
    rows, columns = (normalize_dim(d, of.ndim) for d in dims)
    if of.ndim < 2 or rows == columns:
        raise _refused(of, order, dims)
    if order in ("fro", None):
        return F.linalg_vector_norm(of, 2, [rows, columns], keepdim, dtype=dtype)
    of = of if dtype is None else of.to(dtype)
    if order in (1, -1, math.inf, -math.inf):
        along, over = (rows, columns) if abs(order) == 1 else (columns, rows)
        sums = F.linalg_vector_norm(of, 1, [along], True)
        found = (F.amax if order > 0 else F.amin)(sums, [over], True)
    elif order in ("nuc", 2, -2):
        values = F._linalg_svd(F.movedim(of, [rows, columns], [-2, -1]), False, False)[1]
        found = F.sum(values, [-1]) if order == "nuc" else _extreme(values, order)
        for d in sorted((rows, columns)):
            found = F.unsqueeze(found, d)
    else:
        raise _refused(of, order, dims)
    if keepdim:
        return found
    return F.squeeze(F.squeeze(found, max(rows, columns)), min(rows, columns))


def _extreme(values: Any, order: float) -> Any:
    return F.amax(values, [-1]) if order > 0 else F.amin(values, [-1])


def _refused(of: Any, order: Any, dims: Any) -> BadInput:
    return BadInput(
        f"cannot compute the norm {order!r} of {describe(of)} over {dims}",
        expected="'fro', 'nuc', 1, -1, 2, -2, inf or -inf, and two dimensions",
    )


@composite(
    "linalg_matrix_norm(Tensor self, Scalar ord, int[] dim=[-2,-1], bool keepdim=False, *, "
    "ScalarType? dtype=None) -> Tensor"
)
def matrix_norm(
    self: Any, ord: Any, dim: Any = (-2, -1), keepdim: bool = False, dtype: Any = None
) -> Any:
    return _matrix_norm(self, ord, dim, keepdim, dtype)


@composite(
    'linalg_matrix_norm.str_ord(Tensor self, str ord="fro", int[] dim=[-2,-1], '
    "bool keepdim=False, *, ScalarType? dtype=None) -> Tensor"
)
def matrix_norm_named(
    self: Any, ord: str = "fro", dim: Any = (-2, -1), keepdim: bool = False, dtype: Any = None
) -> Any:
    return _matrix_norm(self, ord, dim, keepdim, dtype)


@composite(
    "linalg_norm(Tensor self, Scalar? ord=None, int[1]? dim=None, bool keepdim=False, *, "
    "ScalarType? dtype=None) -> Tensor"
)
def norm(
    self: Any, ord: Any = None, dim: Any = None, keepdim: bool = False, dtype: Any = None
) -> Any:
    dims = [dim] if isinstance(dim, int) else dim
    count = self.ndim if dims is None else len(dims)
    if ord is None or count == 1:
        return F.linalg_vector_norm(self, 2 if ord is None else ord, dims, keepdim, dtype=dtype)
    if count != 2:
        raise _refused(self, ord, dims)
    return _matrix_norm(self, ord, dims or (-2, -1), keepdim, dtype)


@composite(
    "linalg_norm.ord_str(Tensor self, str ord, int[1]? dim=None, bool keepdim=False, *, "
    "ScalarType? dtype=None) -> Tensor"
)
def norm_named(
    self: Any, ord: str, dim: Any = None, keepdim: bool = False, dtype: Any = None
) -> Any:
    return _matrix_norm(self, ord, dim or (-2, -1), keepdim, dtype)


@composite("nuclear_norm(Tensor self, bool keepdim=False) -> Tensor")
def nuclear_norm(self: Any, keepdim: bool = False) -> Any:
    return _matrix_norm(self, "nuc", (-2, -1), keepdim, None)


@composite("linalg_cond(Tensor self, Scalar? p=None) -> Tensor")
def cond(self: Any, p: Any = None) -> Any:
    return _cond(self, p)


@composite("linalg_cond.p_str(Tensor self, str p) -> Tensor")
def cond_named(self: Any, p: str) -> Any:
    return _cond(self, p)


def _cond(of: Any, order: Any) -> Any:
    if order in (None, 2, -2):
        values = F._linalg_svd(of, False, False)[1]
        large, small = F.amax(values, [-1]), F.amin(values, [-1])
        return small / large if order == -2 else large / small
    inverse = F.linalg_inv_ex(of)[0]
    dims = (-2, -1)
    return _matrix_norm(of, order, dims, False, None) * _matrix_norm(
        inverse, order, dims, False, None
    )
