"""Public linear-algebra functions, made of `linalg`'s ops: inverses, solvers, determinants, ranks.

A matrix that cannot be factored raises BadInput.
"""

from __future__ import annotations

import math
from typing import Any

import numpy

from holdfast.base.errors import BadInput
from holdfast.compute import dtype as dtypes
from holdfast.compute import functional as F
from holdfast.compute.ops.elementwise.complex_numbers import conjugate
from holdfast.compute.ops.schema import describe
from holdfast.compute.ops.table import composite

# ---- inverses and solutions


@composite("linalg_inv(Tensor A) -> Tensor")
def linalg_inv(A: Any) -> Any:
    return F.linalg_inv_ex(A, check_errors=True)[0]


@composite("inverse(Tensor self) -> Tensor")
def inverse(self: Any) -> Any:
    return linalg_inv(self)


@composite("linalg_solve(Tensor A, Tensor B, *, bool left=True) -> Tensor")
def linalg_solve(A: Any, B: Any, left: bool = True) -> Any:
    return F._linalg_solve_ex(A, B, left=left, check_errors=True)[0]


@composite(
    "linalg_solve_ex(Tensor A, Tensor B, *, bool left=True, bool check_errors=False) -> "
    "(Tensor result, Tensor info)"
)
def linalg_solve_ex(A: Any, B: Any, left: bool = True, check_errors: bool = False) -> Any:
    found = F._linalg_solve_ex(A, B, left=left, check_errors=check_errors)
    return found[0], found[3]


@composite(
    "linalg_pinv.atol_rtol_float(Tensor self, *, float? atol=None, float? rtol=None, "
    "bool hermitian=False) -> Tensor"
)
def linalg_pinv(
    self: Any, atol: float | None = None, rtol: float | None = None, hermitian: bool = False
) -> Any:
    a, r = (None if v is None else _number(self, v) for v in (atol, rtol))
    return F.linalg_pinv(self, atol=a, rtol=r, hermitian=hermitian)


@composite("linalg_pinv(Tensor self, float rcond, bool hermitian=False) -> Tensor")
def linalg_pinv_rcond(self: Any, rcond: float, hermitian: bool = False) -> Any:
    return linalg_pinv(self, 0.0, rcond, hermitian)


@composite("pinverse(Tensor self, float rcond=1e-15) -> Tensor")
def pinverse(self: Any, rcond: float = 1e-15) -> Any:
    return linalg_pinv(self, 0.0, rcond)


def _number(of: Any, value: float) -> Any:
    return of._full(value, ((), dtypes.real_of(of.dtype), of.device))


@composite("lu_solve(Tensor self, Tensor LU_data, Tensor LU_pivots) -> Tensor")
def lu_solve(self: Any, LU_data: Any, LU_pivots: Any) -> Any:
    return F.linalg_lu_solve(LU_data, LU_pivots, self)


@composite("linalg_tensorinv(Tensor self, int ind=2) -> Tensor")
def tensorinv(self: Any, ind: int = 2) -> Any:
    before, after = self.shape[:ind], self.shape[ind:]
    if math.prod(before) != math.prod(after) or ind < 1:
        raise BadInput(
            f"cannot compute tensorinv({describe(self)}, ind={ind})",
            expected="as many elements in the first `ind` dimensions as in the others",
        )
    matrix = F.reshape(self, (math.prod(before), math.prod(after)))
    return F.reshape(linalg_inv(matrix), (*after, *before))


@composite("linalg_tensorsolve(Tensor self, Tensor other, int[]? dims=None) -> Tensor")
def tensorsolve(self: Any, other: Any, dims: Any = None) -> Any:
    if dims is not None:
        moved = [d % self.ndim for d in dims]
        self = F.permute(self, [d for d in range(self.ndim) if d not in moved] + moved)
    shape = self.shape[other.ndim :]
    count = other.numel()
    if math.prod(shape) != count:
        raise BadInput(
            f"cannot compute tensorsolve({describe(self)}, {describe(other)})",
            expected="as many unknowns as there are elements on the right side",
        )
    matrix, side = F.reshape(self, (count, count)), F.reshape(other, (count,))
    return F.reshape(linalg_solve(matrix, side), shape)


# ---- determinants


@composite("linalg_det(Tensor A) -> Tensor")
def linalg_det(A: Any) -> Any:
    return F._linalg_det(A)[0]


@composite("det(Tensor self) -> Tensor")
def det(self: Any) -> Any:
    return F._linalg_det(self)[0]


@composite("linalg_slogdet(Tensor A) -> (Tensor sign, Tensor logabsdet)")
def linalg_slogdet(A: Any) -> Any:
    return tuple(F._linalg_slogdet(A)[:2])


@composite("slogdet(Tensor self) -> (Tensor sign, Tensor logabsdet)")
def slogdet(self: Any) -> Any:
    return linalg_slogdet(self)


@composite("logdet(Tensor self) -> Tensor")
def logdet(self: Any) -> Any:
    sign, size = linalg_slogdet(self)
    return F.log(sign) + size


# ---- factorizations


@composite("linalg_cholesky(Tensor self, *, bool upper=False) -> Tensor")
def linalg_cholesky(self: Any, upper: bool = False) -> Any:
    return F.linalg_cholesky_ex(self, upper=upper, check_errors=True)[0]


@composite("linalg_lu_factor(Tensor A, *, bool pivot=True) -> (Tensor LU, Tensor pivots)")
def linalg_lu_factor(A: Any, pivot: bool = True) -> Any:
    return tuple(F.linalg_lu_factor_ex(A, pivot=pivot, check_errors=True)[:2])


@composite("linalg_ldl_factor(Tensor self, *, bool hermitian=False) -> (Tensor LD, Tensor pivots)")
def linalg_ldl_factor(self: Any, hermitian: bool = False) -> Any:
    return tuple(F.linalg_ldl_factor_ex(self, hermitian=hermitian, check_errors=True)[:2])


@composite("qr(Tensor self, bool some=True) -> (Tensor Q, Tensor R)")
def qr(self: Any, some: bool = True) -> Any:
    return F.linalg_qr(self, "reduced" if some else "complete")


@composite("orgqr(Tensor self, Tensor input2) -> Tensor")
def orgqr(self: Any, input2: Any) -> Any:
    return F.linalg_householder_product(self, input2)


@composite('linalg_eigh(Tensor self, str UPLO="L") -> (Tensor eigenvalues, Tensor eigenvectors)')
def linalg_eigh(self: Any, UPLO: str = "L") -> Any:
    return F._linalg_eigh(self, UPLO)


@composite('linalg_eigvalsh(Tensor self, str UPLO="L") -> Tensor')
def linalg_eigvalsh(self: Any, UPLO: str = "L") -> Any:
    return F._linalg_eigh(self, UPLO, False)[0]


@composite(
    "linalg_svd(Tensor A, bool full_matrices=True, *, str? driver=None) -> "
    "(Tensor U, Tensor S, Tensor Vh)"
)
def linalg_svd(A: Any, full_matrices: bool = True, driver: str | None = None) -> Any:
    return F._linalg_svd(A, full_matrices, True, driver=driver)


@composite("linalg_svdvals(Tensor A, *, str? driver=None) -> Tensor")
def linalg_svdvals(A: Any, driver: str | None = None) -> Any:
    return F._linalg_svd(A, False, False, driver=driver)[1]


@composite(
    "svd(Tensor self, bool some=True, bool compute_uv=True) -> (Tensor U, Tensor S, Tensor V)"
)
def svd(self: Any, some: bool = True, compute_uv: bool = True) -> Any:
    if not compute_uv:
        shapes = [(*self.shape[:-2], n, n) for n in self.shape[-2:]]
        u, v = (self._full(0, (shape, self.dtype, self.device)) for shape in shapes)
        return u, linalg_svdvals(self), v
    u, s, vh = F._linalg_svd(self, not some, True)
    return u, s, conjugate(F.transpose(vh, -2, -1))


@composite(
    "linalg_matrix_rank.atol_rtol_float(Tensor self, *, float? atol=None, float? rtol=None, "
    "bool hermitian=False) -> Tensor"
)
def linalg_matrix_rank(
    self: Any, atol: Any = None, rtol: Any = None, hermitian: bool = False
) -> Any:
    return _rank(self, atol, rtol, hermitian)


@composite(
    "linalg_matrix_rank.atol_rtol_tensor(Tensor input, *, Tensor? atol=None, Tensor? rtol=None, "
    "bool hermitian=False) -> Tensor"
)
def linalg_matrix_rank_tensor(
    input: Any, atol: Any = None, rtol: Any = None, hermitian: bool = False
) -> Any:
    return _rank(input, atol, rtol, hermitian)


@composite("linalg_matrix_rank(Tensor self, float tol, bool hermitian=False) -> Tensor")
def linalg_matrix_rank_tol(self: Any, tol: float, hermitian: bool = False) -> Any:
    return _rank(self, tol, 0.0, hermitian)


def _rank(of: Any, atol: Any, rtol: Any, hermitian: bool) -> Any:
    values = F.abs(linalg_eigvalsh(of)) if hermitian else linalg_svdvals(of)
    if not values.shape[-1]:
        return F.sum(F.gt(values, 0), [-1])
    absolute = _tolerance(of, 0.0 if atol is None else atol)
    if rtol is None:
        rtol = max(of.shape[-2:]) * float(numpy.finfo(of.dtype).eps)
        relative = F.where(F.gt(absolute, 0), _tolerance(of, 0.0), _tolerance(of, rtol))
    else:
        relative = _tolerance(of, rtol)
    least = F.maximum(absolute, F.amax(values, [-1], True) * relative)
    return F.sum(F.gt(values, least), [-1])


def _tolerance(of: Any, value: Any) -> Any:
    return F.unsqueeze(value if hasattr(value, "ndim") else _number(of, value), -1)


@composite("linalg_vander(Tensor x, *, int? N=None) -> Tensor")
def linalg_vander(x: Any, N: int | None = None) -> Any:
    x = x if x.ndim else F.reshape(x, (1,))
    count = x.shape[-1] if N is None else N
    powers = [F.ones_like(x)]
    while len(powers) < count:
        powers.append(powers[-1] * x)
    return F.stack(powers, -1)


@composite("cross(Tensor self, Tensor other, int? dim=None) -> Tensor")
def cross(self: Any, other: Any, dim: int | None = None) -> Any:
    if dim is None:
        threes = [d for d, size in enumerate(self.shape) if size == 3]
        if not threes:
            raise BadInput(
                f"cannot compute cross({describe(self)}, {describe(other)})",
                expected="a dimension with 3 elements",
            )
        dim = threes[0]
    return F.linalg_cross(self, other, dim=dim)
