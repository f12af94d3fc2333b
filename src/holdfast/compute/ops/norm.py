"""Norms of vectors and matrices."""

from __future__ import annotations

import math
from typing import Any

from holdfast.base.errors import BadInput
from holdfast.compute import dtype as formats
from holdfast.compute.ops.lazy import functional as f
from holdfast.compute.ops.rules import Meta, normalized_dim, normalized_dims, rule
from holdfast.compute.ops.table import Op, composite, op
from holdfast.compute.schema import described


def _vector_norm(_: Op, bound: dict[str, Any]) -> Meta:
    of, keep = bound["self"], bound["keepdim"]
    dims = normalized_dims(bound["dim"], len(of.shape))
    shape = tuple(1 if d in dims else n for d, n in enumerate(of.shape) if keep or d not in dims)
    kind = of.dtype if bound["dtype"] is None else formats.dtype(bound["dtype"])
    return Meta(shape, formats.real_of(kind))


op("linalg_vector_norm(Tensor self, Scalar ord=2, int[1]? dim=None, bool keepdim=False, *, "
   "ScalarType? dtype=None) -> Tensor",
   rule(_vector_norm, "floating-point or complex numbers, at least one where ord is inf or < 0"),
   {"self": "vector_norm_gradient(grad, self, result, ord, dim, keepdim)"})  # fmt: skip


def _matrix_norm(of: Any, order: Any, dims: Any, keepdim: bool, dtype: Any) -> Any:
    rows, columns = (normalized_dim(d, of.ndim) for d in dims)
    if of.ndim < 2 or rows == columns:
        raise _refused(of, order, dims)
    if order in ("fro", None):
        return f.linalg_vector_norm(of, 2, [rows, columns], keepdim, dtype=dtype)
    of = of if dtype is None else of.to(dtype)
    if order in (1, -1, math.inf, -math.inf):
        along, over = (rows, columns) if abs(order) == 1 else (columns, rows)
        sums = f.linalg_vector_norm(of, 1, [along], True)
        found = (f.amax if order > 0 else f.amin)(sums, [over], True)
    elif order in ("nuc", 2, -2):
        values = f._linalg_svd(f.movedim(of, [rows, columns], [-2, -1]), False, False)[1]
        found = f.sum(values, [-1]) if order == "nuc" else _extreme(values, order)
        for d in sorted((rows, columns)):
            found = f.unsqueeze(found, d)
    else:
        raise _refused(of, order, dims)
    if keepdim:
        return found
    return f.squeeze(f.squeeze(found, max(rows, columns)), min(rows, columns))


def _extreme(values: Any, order: float) -> Any:
    return f.amax(values, [-1]) if order > 0 else f.amin(values, [-1])


def _refused(of: Any, order: Any, dims: Any) -> BadInput:
    return BadInput(
        f"cannot compute the norm {order!r} of {described(of)} over {dims}",
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
        return f.linalg_vector_norm(self, 2 if ord is None else ord, dims, keepdim, dtype=dtype)
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
        values = f._linalg_svd(of, False, False)[1]
        large, small = f.amax(values, [-1]), f.amin(values, [-1])
        return small / large if order == -2 else large / small
    inverse = f.linalg_inv_ex(of)[0]
    dims = (-2, -1)
    return _matrix_norm(of, order, dims, False, None) * _matrix_norm(
        inverse, order, dims, False, None
    )
