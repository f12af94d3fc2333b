"""Eigenvalues, singular values, pseudo-inverse, least squares, matrix exponential."""

from __future__ import annotations

from typing import Any

import numpy

from holdfast.compute import dtype as dtypes
from holdfast.compute.engines.numpy import scipy
from holdfast.compute.engines.numpy.kernels import kernel
from holdfast.compute.engines.numpy.matrix.linalg import adjoint, broadcast_batches, check_matrices
from holdfast.compute.ops.matrix.linalg import is_vector


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
