"""Kernels: eigenvalues, singular values, and what is made of them."""

from __future__ import annotations

from typing import Any

import numpy

from holdfast.compute import dtype as formats
from holdfast.compute.engines.numpy import scipy
from holdfast.compute.engines.numpy.kernels import kernel
from holdfast.compute.engines.numpy.linalg import (
    adjoint,
    matrices,
    one_batch,
)
from holdfast.compute.ops.linalg import is_vector


def _rows_times(values: Any, matrix: Any) -> Any:
    return values[..., :, None] * matrix


@kernel("_linalg_eigh")
def eigh(A: Any, UPLO: str = "L", compute_v: bool = True) -> Any:
    matrices(A, square=True)
    side: Any = UPLO.upper()
    if side not in ("L", "U"):
        raise ValueError(f"UPLO {UPLO!r} is neither 'L' nor 'U'")
    if not compute_v:
        return numpy.linalg.eigvalsh(A, side), numpy.empty((0,), A.dtype)
    values, vectors = numpy.linalg.eigh(A, side)
    return values, vectors


@kernel("linalg_eig")
def eig(self: Any) -> Any:
    kind = formats.complex_of(matrices(self, square=True).dtype)
    values, vectors = numpy.linalg.eig(self)
    return values.astype(kind, copy=False), vectors.astype(kind, copy=False)


@kernel("linalg_eigvals")
def eigvals(self: Any) -> Any:
    kind = formats.complex_of(matrices(self, square=True).dtype)
    return numpy.linalg.eigvals(self).astype(kind, copy=False)


@kernel("_linalg_svd")
def svd(
    A: Any, full_matrices: bool = False, compute_uv: bool = True, driver: str | None = None
) -> Any:
    matrices(A)
    none = numpy.empty((0,), A.dtype)
    if not compute_uv:
        return none, numpy.linalg.svd(A, compute_uv=False), none
    u, s, vh = numpy.linalg.svd(A, full_matrices)
    return u, s, vh


def _default_rtol(a: Any) -> float:
    return max(a.shape[-2:]) * float(numpy.finfo(a.dtype).eps)


@kernel("linalg_pinv.atol_rtol_tensor")
def pinv(self: Any, atol: Any = None, rtol: Any = None, hermitian: bool = False) -> Any:
    matrices(self, square=hermitian)
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
    return (adjoint(right) @ _rows_times(inverse, adjoint(left))).astype(self.dtype)


@kernel("linalg_lstsq")
def lstsq(self: Any, b: Any, rcond: float | None = None, driver: str | None = None) -> Any:
    driver = driver or "gelsy"
    if driver not in ("gels", "gelsy", "gelsd", "gelss"):
        raise ValueError(f"driver {driver!r} is none of 'gels', 'gelsy', 'gelsd', 'gelss'")
    rows, columns = matrices(self).shape[-2:]
    vector = is_vector(self, b)
    a, right = one_batch(self, b[..., None] if vector else b)
    u, s, vh = numpy.linalg.svd(a.astype(numpy.promote_types(a.dtype, "f8")), full_matrices=False)
    rtol = _default_rtol(self) if rcond is None else rcond
    kept = s > rtol * s.max(-1, keepdims=True, initial=0)
    inverse = numpy.where(kept, 1 / numpy.where(kept, s, 1), 0)
    found = adjoint(vh) @ _rows_times(inverse, adjoint(u) @ right)
    rank = kept.sum(-1)
    left_over = numpy.empty((0,), formats.real_of(self.dtype))
    full = driver == "gels" or bool(numpy.all(rank == columns))
    if rows > columns and driver != "gelsy" and full:
        rest = numpy.abs(a @ found - right)
        left_over = (rest * rest).sum(-2).astype(left_over.dtype)
    found = (found[..., 0] if vector else found).astype(self.dtype)
    ranks = numpy.empty((0,), "int64") if driver == "gels" else rank.astype("int64")
    singular = s.astype(formats.real_of(self.dtype))
    if driver in ("gels", "gelsy"):
        singular = numpy.empty((0,), singular.dtype)
    return found, left_over, ranks, singular


@kernel("linalg_matrix_exp")
def matrix_exp(self: Any) -> Any:
    kind = self.dtype
    if self.ndim < 2 or self.shape[-1] != self.shape[-2]:
        raise ValueError(f"{list(self.shape)} is no square matrix")
    if formats.category(kind) < formats.FLOATING:
        raise TypeError(f"{kind} has no fractions")
    if not self.size:
        return self.copy()
    # In float64: squaring again and again would cost float32 its last digits.
    wide = formats.COMPLEX128 if formats.is_complex(kind) else formats.FLOAT64
    return scipy.part("linalg").expm(self.astype(wide)).astype(kind)
