"""Norms of vectors and matrices."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from holdfast.base.errors import BadInput
from holdfast.compute import dtype as dtypes
from holdfast.compute import functional as F
from holdfast.compute.ops.rules import Meta, checked, normalize_dim, normalize_dims, reduction, rule
from holdfast.compute.ops.schema import describe
from holdfast.compute.ops.table import Op, composite, composites, op


def _refuse_integers(kind: Any) -> None:
    if dtypes.category(kind) < dtypes.FLOATING:
        raise TypeError(f"a norm of {kind} needs floating-point or complex numbers")


def _check_norm(self: Any, *_: Any, dtype: Any = None, **__: Any) -> None:
    _refuse_integers(dtypes.dtype_or(dtype, self.dtype))


def _check_vector_norm(
    self: Any, ord: Any = 2, dim: Any = None, keepdim: bool = False, *, dtype: Any = None
) -> None:
    if (ord < 0 or ord == math.inf) and not all(
        self.shape[d] for d in (normalize_dims(dim, self.ndim) if self.ndim else ())
    ):
        raise ValueError(f"the norm of order {ord} of no elements is not defined")
    _check_norm(self, dtype=dtype)


_REAL = checked(reduction("real"), _check_norm)
_NORM = replace(
    _REAL,
    expects="floating-point or complex numbers, at least one where ord is inf or < 0",
    check=_check_vector_norm,
)

# ---- of vectors

op("linalg_vector_norm(Tensor self, Scalar ord=2, int[1]? dim=None, bool keepdim=False, *, "
   "ScalarType? dtype=None) -> Tensor",
   _NORM, {"self": "norm_gradient(grad, self, ord, result, dim, keepdim)"})  # fmt: skip
for _given, _of, _over in (
    ("Scalar(Tensor self, Scalar p=2)", "self", "None, False"),
    ("ScalarOpt_dim(Tensor self, Scalar? p, int[1] dim, bool keepdim=False)", "self",
     "dim, keepdim"),
    ("ScalarOpt_dim_dtype(Tensor self, Scalar? p, int[1] dim, bool keepdim, *, ScalarType dtype)",
     "self.to(dtype)", "dim, keepdim"),
    ("ScalarOpt_dtype(Tensor self, Scalar? p, *, ScalarType dtype)", "self.to(dtype)",
     "None, False"),
):  # fmt: skip
    op(f"norm.{_given} -> Tensor", _REAL,
       {"self": f"norm_gradient(grad, {_of}, p, result, {_over})"})  # fmt: skip


@composite("frobenius_norm.dim(Tensor self, int[1] dim, bool keepdim=False) -> Tensor")
def frobenius_norm(self: Any, dim: Any, keepdim: bool = False) -> Any:
    return F.norm(self, 2, dim, keepdim)


def _infer_single(op: Op, bound: dict[str, Any]) -> Meta:
    return Meta((), dtypes.real_of(dtypes.result_type(bound["self"], bound["other"])))


def _check_dist(self: Any, other: Any, p: Any = 2) -> None:
    _refuse_integers(dtypes.result_type(self, other))


op("dist(Tensor self, Tensor other, Scalar p=2) -> Tensor", rule(_infer_single, check=_check_dist),
   {"self": "norm_gradient(grad, self - other, p, result, None, False)",
    "other": "norm_gradient(0 - grad, self - other, p, result, None, False)"})  # fmt: skip


def _check_renorm(self: Any, p: Any, dim: int, maxnorm: Any) -> None:
    if self.ndim < 2:
        raise ValueError("renorm takes at least 2 dimensions")
    if p <= 0 or maxnorm < 0:
        raise ValueError(f"p is positive and maxnorm not negative; they are {p} and {maxnorm}")


def _renorm(self: Any, p: Any, dim: int, maxnorm: Any) -> Any:
    _check_renorm(self, p, dim, maxnorm)
    axis = normalize_dim(dim, self.ndim)
    sizes = F.norm(self, p, [d for d in range(self.ndim) if d != axis], True)
    return self * F.where(sizes > maxnorm, maxnorm / (sizes + 1e-7), F.ones_like(sizes))


op("renorm(Tensor self, Scalar p, int dim, Scalar maxnorm) -> Tensor", rule(check=_check_renorm),
   decomposition=_renorm)  # fmt: skip


# ---- of matrices


def _matrix_norm(
    self: Any, ord: Any = "fro", dim: Any = (-2, -1), keepdim: bool = False, dtype: Any = None
) -> Any:
    of, order, dims = self, ord, dim
    rows, columns = (normalize_dim(d, of.ndim) for d in dims)
    if of.ndim < 2 or rows == columns:
        raise _refuse(of, order, dims)
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
        raise _refuse(of, order, dims)
    if keepdim:
        return found
    return F.squeeze(F.squeeze(found, max(rows, columns)), min(rows, columns))


def _extreme(values: Any, order: float) -> Any:
    return F.amax(values, [-1]) if order > 0 else F.amin(values, [-1])


def _refuse(of: Any, order: Any, dims: Any) -> BadInput:
    return BadInput(
        f"cannot compute the norm {order!r} of {describe(of)} over {dims}",
        expected="'fro', 'nuc', 1, -1, 2, -2, inf or -inf, and two dimensions",
    )


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
        raise _refuse(self, ord, dims)
    return _matrix_norm(self, ord, dims or (-2, -1), keepdim, dtype)


_REST = "bool keepdim=False, *, ScalarType? dtype=None) -> Tensor"
composites(
    {
        f"linalg_matrix_norm(Tensor self, Scalar ord, int[] dim=[-2,-1], {_REST}": _matrix_norm,
        f'linalg_matrix_norm.str_ord(Tensor self, str ord="fro", int[] dim=[-2,-1], {_REST}': (
            _matrix_norm
        ),
        f"linalg_norm.ord_str(Tensor self, str ord, int[1]? dim=None, {_REST}": (
            lambda self, ord, dim=None, keepdim=False, dtype=None: _matrix_norm(
                self, ord, dim or (-2, -1), keepdim, dtype
            )
        ),
        "nuclear_norm(Tensor self, bool keepdim=False) -> Tensor": (
            lambda self, keepdim=False: _matrix_norm(self, "nuc", (-2, -1), keepdim)
        ),
    }
)


@composite("linalg_cond.p_str(Tensor self, str p) -> Tensor")
@composite("linalg_cond(Tensor self, Scalar? p=None) -> Tensor")
def cond(self: Any, p: Any = None) -> Any:
    if p in (None, 2, -2):
        values = F._linalg_svd(self, False, False)[1]
        large, small = F.amax(values, [-1]), F.amin(values, [-1])
        return small / large if p == -2 else large / small
    return _matrix_norm(self, p) * _matrix_norm(F.linalg_inv_ex(self)[0], p)
