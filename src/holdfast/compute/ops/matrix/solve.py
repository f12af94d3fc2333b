"""Public linear-algebra functions, made of `linalg`'s ops: inverses, solvers, determinants, ranks.

A matrix that cannot be factored raises BadInput.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy

from holdfast.base.errors import BadInput
from holdfast.compute import dtype as dtypes
from holdfast.compute import functional as F
from holdfast.compute.ops.elementwise.complex_numbers import conjugate
from holdfast.compute.ops.schema import describe
from holdfast.compute.ops.table import composite

# ---- ops of `linalg` with other arguments or fewer results

_FORMS: dict[str, Callable[..., Any]] = {
    "linalg_inv(Tensor A) -> Tensor": lambda A: F.linalg_inv_ex(A, check_errors=True)[0],
    "inverse(Tensor self) -> Tensor": lambda self: F.linalg_inv(self),
    "linalg_solve(Tensor A, Tensor B, *, bool left=True) -> Tensor": lambda A, B, left=True: (
        F._linalg_solve_ex(A, B, left=left, check_errors=True)[0]
    ),
    "linalg_pinv(Tensor self, float rcond, bool hermitian=False) -> Tensor": (
        lambda self, rcond, hermitian=False: F.linalg_pinv(
            self, atol=0.0, rtol=rcond, hermitian=hermitian
        )
    ),
    "pinverse(Tensor self, float rcond=1e-15) -> Tensor": (
        lambda self, rcond=1e-15: F.linalg_pinv(self, atol=0.0, rtol=rcond)
    ),
    "lu_solve(Tensor self, Tensor LU_data, Tensor LU_pivots) -> Tensor": (
        lambda self, LU_data, LU_pivots: F.linalg_lu_solve(LU_data, LU_pivots, self)
    ),
    "linalg_det(Tensor A) -> Tensor": lambda A: F._linalg_det(A)[0],
    "det(Tensor self) -> Tensor": lambda self: F._linalg_det(self)[0],
    "linalg_slogdet(Tensor A) -> (Tensor sign, Tensor logabsdet)": (
        lambda A: tuple(F._linalg_slogdet(A)[:2])
    ),
    "slogdet(Tensor self) -> (Tensor sign, Tensor logabsdet)": (
        lambda self: F.linalg_slogdet(self)
    ),
    "linalg_cholesky(Tensor self, *, bool upper=False) -> Tensor": (
        lambda self, upper=False: F.linalg_cholesky_ex(self, upper=upper, check_errors=True)[0]
    ),
    "linalg_lu_factor(Tensor A, *, bool pivot=True) -> (Tensor LU, Tensor pivots)": (
        lambda A, pivot=True: tuple(F.linalg_lu_factor_ex(A, pivot=pivot, check_errors=True)[:2])
    ),
    "linalg_ldl_factor(Tensor self, *, bool hermitian=False) -> (Tensor LD, Tensor pivots)": (
        lambda self, hermitian=False: tuple(
            F.linalg_ldl_factor_ex(self, hermitian=hermitian, check_errors=True)[:2]
        )
    ),
    "qr(Tensor self, bool some=True) -> (Tensor Q, Tensor R)": (
        lambda self, some=True: F.linalg_qr(self, "reduced" if some else "complete")
    ),
    "orgqr(Tensor self, Tensor input2) -> Tensor": (
        lambda self, input2: F.linalg_householder_product(self, input2)
    ),
    'linalg_eigh(Tensor self, str UPLO="L") -> (Tensor eigenvalues, Tensor eigenvectors)': (
        lambda self, UPLO="L": F._linalg_eigh(self, UPLO)
    ),
    'linalg_eigvalsh(Tensor self, str UPLO="L") -> Tensor': (
        lambda self, UPLO="L": F._linalg_eigh(self, UPLO, False)[0]
    ),
    "linalg_svdvals(Tensor A, *, str? driver=None) -> Tensor": (
        lambda A, driver=None: F._linalg_svd(A, False, False, driver=driver)[1]
    ),
    "linalg_matrix_rank(Tensor self, float tol, bool hermitian=False) -> Tensor": (
        lambda self, tol, hermitian=False: F.linalg_matrix_rank(
            self, atol=tol, rtol=0.0, hermitian=hermitian
        )
    ),
}
for _text, _function in _FORMS.items():
    composite(_text)(_function)


@composite("linalg_solve_ex(Tensor A, Tensor B, *, bool left=True, bool check_errors=False) -> "
           "(Tensor result, Tensor info)")  # fmt: skip
def _solve_ex(A: Any, B: Any, left: bool = True, check_errors: bool = False) -> Any:
    found = F._linalg_solve_ex(A, B, left=left, check_errors=check_errors)
    return found[0], found[3]


@composite("linalg_svd(Tensor A, bool full_matrices=True, *, str? driver=None) -> "
           "(Tensor U, Tensor S, Tensor Vh)")  # fmt: skip
def _svd(A: Any, full_matrices: bool = True, driver: str | None = None) -> Any:
    return F._linalg_svd(A, full_matrices, True, driver=driver)


@composite("linalg_pinv.atol_rtol_float(Tensor self, *, float? atol=None, float? rtol=None, "
           "bool hermitian=False) -> Tensor")  # fmt: skip
def _pinv(
    self: Any, atol: float | None = None, rtol: float | None = None, hermitian: bool = False
) -> Any:
    a, r = (None if v is None else _number(self, v) for v in (atol, rtol))
    return F.linalg_pinv(self, atol=a, rtol=r, hermitian=hermitian)


def _number(of: Any, value: float) -> Any:
    return of._full(value, ((), dtypes.real_of(of.dtype), of.device))


# ---- made of several


@composite("linalg_tensorinv(Tensor self, int ind=2) -> Tensor")
def _tensorinv(self: Any, ind: int = 2) -> Any:
    before, after = self.shape[:ind], self.shape[ind:]
    if math.prod(before) != math.prod(after) or ind < 1:
        raise BadInput(
            f"cannot compute tensorinv({describe(self)}, ind={ind})",
            expected="as many elements in the first `ind` dimensions as in the others",
        )
    matrix = F.reshape(self, (math.prod(before), math.prod(after)))
    return F.reshape(F.linalg_inv(matrix), (*after, *before))


@composite("linalg_tensorsolve(Tensor self, Tensor other, int[]? dims=None) -> Tensor")
def _tensorsolve(self: Any, other: Any, dims: Any = None) -> Any:
    if dims is not None:
        moved = [d % self.ndim for d in dims]
        self = F.permute(self, [d for d in range(self.ndim) if d not in moved] + moved)
    shape, count = self.shape[other.ndim :], other.numel()
    if math.prod(shape) != count:
        raise BadInput(
            f"cannot compute tensorsolve({describe(self)}, {describe(other)})",
            expected="as many unknowns as there are elements on the right side",
        )
    matrix, side = F.reshape(self, (count, count)), F.reshape(other, (count,))
    return F.reshape(F.linalg_solve(matrix, side), shape)


@composite("logdet(Tensor self) -> Tensor")
def _logdet(self: Any) -> Any:
    sign, size = F.linalg_slogdet(self)
    return F.log(sign) + size


@composite(
    "svd(Tensor self, bool some=True, bool compute_uv=True) -> (Tensor U, Tensor S, Tensor V)"
)
def _old_svd(self: Any, some: bool = True, compute_uv: bool = True) -> Any:
    if not compute_uv:
        shapes = [(*self.shape[:-2], n, n) for n in self.shape[-2:]]
        u, v = (self._full(0, (shape, self.dtype, self.device)) for shape in shapes)
        return u, F.linalg_svdvals(self), v
    u, s, vh = F._linalg_svd(self, not some, True)
    return u, s, conjugate(F.transpose(vh, -2, -1))


@composite(
    "linalg_matrix_rank.atol_rtol_tensor(Tensor input, *, Tensor? atol=None, Tensor? rtol=None, "
    "bool hermitian=False) -> Tensor"
)
def _rank_tensor(input: Any, atol: Any = None, rtol: Any = None, hermitian: bool = False) -> Any:
    return _rank(input, atol, rtol, hermitian)


@composite("linalg_matrix_rank.atol_rtol_float(Tensor self, *, float? atol=None, float? rtol=None, "
           "bool hermitian=False) -> Tensor")  # fmt: skip
def _rank(self: Any, atol: Any = None, rtol: Any = None, hermitian: bool = False) -> Any:
    values = F.abs(F.linalg_eigvalsh(self)) if hermitian else F.linalg_svdvals(self)
    if not values.shape[-1]:
        return F.sum(F.gt(values, 0), [-1])
    absolute = _tolerance(self, 0.0 if atol is None else atol)
    if rtol is None:
        rtol = max(self.shape[-2:]) * float(numpy.finfo(self.dtype).eps)
        relative = F.where(F.gt(absolute, 0), _tolerance(self, 0.0), _tolerance(self, rtol))
    else:
        relative = _tolerance(self, rtol)
    least = F.maximum(absolute, F.amax(values, [-1], True) * relative)
    return F.sum(F.gt(values, least), [-1])


def _tolerance(of: Any, value: Any) -> Any:
    return F.unsqueeze(value if hasattr(value, "ndim") else _number(of, value), -1)


@composite("linalg_vander(Tensor x, *, int? N=None) -> Tensor")
def _vander(x: Any, N: int | None = None) -> Any:
    x = x if x.ndim else F.reshape(x, (1,))
    count = x.shape[-1] if N is None else N
    powers = [F.ones_like(x)]
    while len(powers) < count:
        powers.append(powers[-1] * x)
    return F.stack(powers, -1)


@composite("cross(Tensor self, Tensor other, int? dim=None) -> Tensor")
def _cross(self: Any, other: Any, dim: int | None = None) -> Any:
    if dim is None:
        threes = [d for d, size in enumerate(self.shape) if size == 3]
        if not threes:
            raise BadInput(
                f"cannot compute cross({describe(self)}, {describe(other)})",
                expected="a dimension with 3 elements",
            )
        dim = threes[0]
    return F.linalg_cross(self, other, dim=dim)
