"""Cholesky, LDL and QR factorizations; eigenvalues, SVD, least squares, matrix exponential."""

from __future__ import annotations

from typing import Any

import numpy

from holdfast.compute import dtype as dtypes
from holdfast.compute.engines.numpy import scipy
from holdfast.compute.engines.numpy.kernels import kernel
from holdfast.compute.engines.numpy.matrix.linalg import (
    adjoint,
    broadcast_batches,
    lapack,
    map_matrices,
    raise_for_info,
)
from holdfast.compute.ops.matrix.linalg import check_matrices, is_vector

_INT32 = numpy.dtype("int32")


# ---- Cholesky


def _cholesky(a: Any, upper: bool) -> Any:
    if not a.size:
        return a.copy(), numpy.zeros((), _INT32)
    found, info = lapack("potrf", a)(a, lower=not upper, clean=1)
    return found, numpy.asarray(info, _INT32)


@kernel("linalg_cholesky_ex")
def cholesky_ex(self: Any, upper: bool = False, check_errors: bool = False) -> Any:
    found, info = map_matrices(lambda a: _cholesky(a, upper), check_matrices(self, square=True))
    if check_errors:
        raise_for_info(info, "cholesky", "the matrix is not positive definite")
    return found, info


@kernel("cholesky")
def cholesky(self: Any, upper: bool = False) -> Any:
    return cholesky_ex(self, upper, True)[0]


@kernel("cholesky_solve")
def cholesky_solve(self: Any, input2: Any, upper: bool = False) -> Any:
    def one(b: Any, factor: Any) -> Any:
        if not b.size:
            return (b.copy(),)
        return (lapack("potrs", factor)(factor, b, lower=not upper)[0],)

    return map_matrices(one, *broadcast_batches(self, check_matrices(input2, square=True)))[0]


@kernel("cholesky_inverse")
def cholesky_inverse(self: Any, upper: bool = False) -> Any:
    identity = numpy.eye(self.shape[-1], dtype=self.dtype)
    return cholesky_solve(numpy.broadcast_to(identity, self.shape), self, upper)


# ---- LDL


def _ldl(a: Any, hermitian: bool) -> Any:
    if not a.size:
        return a.copy(), numpy.empty(a.shape[:1], _INT32), numpy.zeros((), _INT32)
    routine = "hetrf" if hermitian and a.dtype.kind == "c" else "sytrf"
    found, pivots, info = lapack(routine, a)(a, lower=1)
    return numpy.tril(found), pivots.astype(_INT32), numpy.asarray(info, _INT32)


@kernel("linalg_ldl_factor_ex")
def ldl_factor_ex(self: Any, hermitian: bool = False, check_errors: bool = False) -> Any:
    found = map_matrices(lambda a: _ldl(a, hermitian), check_matrices(self, square=True))
    if check_errors:
        raise_for_info(found[2], "ldl_factor", "a diagonal block of D is zero")
    return found


@kernel("linalg_ldl_solve")
def ldl_solve(LD: Any, pivots: Any, B: Any, hermitian: bool = False) -> Any:
    check_matrices(LD, square=True)
    conjugated = hermitian and LD.dtype.kind == "c"
    cores = (2, 1, 2)
    arrays = broadcast_batches(LD, pivots, B, cores=cores)
    return map_matrices(lambda *of: (_solve_ldl(of, conjugated),), *arrays, cores=cores)[0]


def _solve_ldl(of: Any, conjugated: bool) -> Any:
    """Solve with L, D and L^T as LAPACK's sytrf returns them; SciPy before 1.17 has no solver.

    A negative pivot stands for two rows, with a 2 x 2 block of D.
    """
    factor, pivots, right = of
    x = right.copy()
    blocks = _blocks(pivots)
    for start, size in blocks:
        last, end = start + size - 1, start + size
        _exchange(x, last, abs(int(pivots[start])) - 1)
        x[end:] -= factor[end:, start:end] @ x[start:end]
        block = numpy.tril(factor[start:end, start:end])
        low = numpy.tril(block, -1)
        if conjugated:
            block = low + low.conj().T + numpy.diag(numpy.real(numpy.diagonal(block)))
        else:
            block = block + low.T
        x[start:end] = numpy.linalg.solve(block, x[start:end])
    for start, size in reversed(blocks):
        last, end = start + size - 1, start + size
        side = factor[end:, start:end].T
        x[start:end] -= (side.conj() if conjugated else side) @ x[end:]
        _exchange(x, last, abs(int(pivots[start])) - 1)
    return x


def _blocks(pivots: Any) -> list[tuple[int, int]]:
    """(first row, 1 or 2 rows) of each block of D."""
    found, row = [], 0
    while row < len(pivots):
        size = 1 if pivots[row] > 0 or row + 1 == len(pivots) else 2
        found.append((row, size))
        row += size
    return found


def _exchange(x: Any, one: int, other: int) -> None:
    if one != other:
        x[[one, other]] = x[[other, one]]


# ---- QR


def _geqrf(a: Any) -> Any:
    if not a.size:
        return a.copy(), numpy.zeros((min(a.shape),), a.dtype)
    found, tau, _, _ = lapack("geqrf", a)(a)
    return found, tau


@kernel("geqrf")
def geqrf(self: Any) -> Any:
    return map_matrices(_geqrf, check_matrices(self))


@kernel("linalg_qr")
def qr(A: Any, mode: str = "reduced") -> Any:
    check_matrices(A)
    if mode not in ("reduced", "complete", "r"):
        raise ValueError(f"mode must be 'reduced', 'complete' or 'r', not {mode!r}")
    if mode == "r":
        return numpy.empty((0,), A.dtype), numpy.linalg.qr(A, "r")
    q, r = numpy.linalg.qr(A, mode)
    return q, r


# ---- eigenvalues and singular values


def _scale_rows(values: Any, matrix: Any) -> Any:
    return values[..., :, None] * matrix


@kernel("_linalg_eigh")
def eigh(A: Any, UPLO: str = "L", compute_v: bool = True) -> Any:
    check_matrices(A, square=True)
    side: Any = UPLO.upper()
    if side not in ("L", "U"):
        raise ValueError(f"UPLO must be 'L' or 'U', not {UPLO!r}")
    if not compute_v:
        return numpy.linalg.eigvalsh(A, side), numpy.empty((0,), A.dtype)
    values, vectors = numpy.linalg.eigh(A, side)
    return values, vectors


@kernel("linalg_eig")
def eig(self: Any) -> Any:
    kind = dtypes.complex_of(check_matrices(self, square=True).dtype)
    values, vectors = numpy.linalg.eig(self)
    return values.astype(kind, copy=False), vectors.astype(kind, copy=False)


@kernel("linalg_eigvals")
def eigvals(self: Any) -> Any:
    kind = dtypes.complex_of(check_matrices(self, square=True).dtype)
    return numpy.linalg.eigvals(self).astype(kind, copy=False)


@kernel("_linalg_svd")
def svd(
    A: Any, full_matrices: bool = False, compute_uv: bool = True, driver: str | None = None
) -> Any:
    check_matrices(A)
    none = numpy.empty((0,), A.dtype)
    if not compute_uv:
        return none, numpy.linalg.svd(A, compute_uv=False), none
    u, s, vh = numpy.linalg.svd(A, full_matrices)
    return u, s, vh


def _default_rtol(a: Any) -> float:
    return max(a.shape[-2:]) * float(numpy.finfo(a.dtype).eps)


@kernel("linalg_pinv.atol_rtol_tensor")
def pinv(self: Any, atol: Any = None, rtol: Any = None, hermitian: bool = False) -> Any:
    check_matrices(self, square=hermitian)
    if not self.size:
        return numpy.empty((*self.shape[:-2], self.shape[-1], self.shape[-2]), self.dtype)
    if rtol is None:
        rtol = _default_rtol(self)
        if atol is not None:
            rtol = numpy.where(atol > 0, 0.0, rtol)
    atol = numpy.asarray(0.0 if atol is None else atol)
    if hermitian:
        signed, left = numpy.linalg.eigh(self)
        values, right = numpy.abs(signed), adjoint(left)
    else:
        left, signed, right = numpy.linalg.svd(self, full_matrices=False)
        values = signed
    least = numpy.maximum(atol, numpy.asarray(rtol) * values.max(-1))
    kept = values > least[..., None]
    inverse = numpy.where(kept, 1 / numpy.where(kept, signed, 1), 0)
    return (adjoint(right) @ _scale_rows(inverse, adjoint(left))).astype(self.dtype)


@kernel("linalg_lstsq")
def lstsq(self: Any, b: Any, rcond: float | None = None, driver: str | None = None) -> Any:
    driver = driver or "gelsy"
    if driver not in ("gels", "gelsy", "gelsd", "gelss"):
        raise ValueError(f"driver must be 'gels', 'gelsy', 'gelsd' or 'gelss', not {driver!r}")
    rows, columns = check_matrices(self).shape[-2:]
    vector = is_vector(self, b)
    a, right = broadcast_batches(self, b[..., None] if vector else b)
    u, s, vh = numpy.linalg.svd(a.astype(numpy.promote_types(a.dtype, "f8")), full_matrices=False)
    rtol = _default_rtol(self) if rcond is None else rcond
    kept = s > rtol * s.max(-1, keepdims=True, initial=0)
    inverse = numpy.where(kept, 1 / numpy.where(kept, s, 1), 0)
    found = adjoint(vh) @ _scale_rows(inverse, adjoint(u) @ right)
    rank = kept.sum(-1)
    left_over = numpy.empty((0,), dtypes.real_of(self.dtype))
    full = driver == "gels" or bool(numpy.all(rank == columns))
    if rows > columns and driver != "gelsy" and full:
        rest = numpy.abs(a @ found - right)
        left_over = (rest * rest).sum(-2).astype(left_over.dtype)
    found = (found[..., 0] if vector else found).astype(self.dtype)
    ranks = numpy.empty((0,), "int64") if driver == "gels" else rank.astype("int64")
    singular = s.astype(dtypes.real_of(self.dtype))
    if driver in ("gels", "gelsy"):
        singular = numpy.empty((0,), singular.dtype)
    return found, left_over, ranks, singular


@kernel("linalg_matrix_exp")
def matrix_exp(self: Any) -> Any:
    kind = self.dtype
    if self.ndim < 2 or self.shape[-1] != self.shape[-2]:
        raise ValueError(f"the matrix must be square, not {list(self.shape)}")
    if dtypes.category(kind) < dtypes.FLOATING:
        raise TypeError(f"matrix_exp needs a floating-point or complex dtype, not {kind}")
    if not self.size:
        return self.copy()
    # In float64: repeated squaring would cost float32 its last digits.
    wide = dtypes.COMPLEX128 if dtypes.is_complex(kind) else dtypes.FLOAT64
    return scipy.submodule("linalg").expm(self.astype(wide)).astype(kind)
