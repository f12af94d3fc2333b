"""Cholesky, LDL and QR factorizations, and solving and multiplying with them."""

from __future__ import annotations

from typing import Any

import numpy

from holdfast.compute.engines.numpy.kernels import kernel
from holdfast.compute.engines.numpy.matrix.linalg import (
    adjoint,
    broadcast_batches,
    check_matrices,
    fill_diagonal_with_ones,
    lapack,
    map_matrices,
    raise_for_info,
)

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


def _reflectors(a: Any) -> Any:
    """The vectors below the diagonal, with the ones on it that LAPACK does not store."""
    vectors = numpy.tril(a, -1)
    fill_diagonal_with_ones(vectors)
    return vectors


def _reflect(out: Any, vectors: Any, tau: Any, order: Any) -> Any:
    """Multiply by (1 - tau v v^H) from the left, for every column v in that order."""
    for column in order:
        v = vectors[..., column : column + 1]
        out = out - (tau[..., column, None, None] * v) @ (adjoint(v) @ out)
    return out


@kernel("linalg_householder_product")
def householder_product(input: Any, tau: Any) -> Any:
    check_matrices(input)
    rows, columns = input.shape[-2:]
    if columns > rows or tau.shape[-1] > columns:
        raise ValueError(
            f"{tau.shape[-1]} reflections, {columns} columns, {rows} rows: none may exceed the next"
        )
    start = numpy.broadcast_to(numpy.eye(rows, columns, dtype=input.dtype), input.shape)
    out = _reflect(start, _reflectors(input), tau, reversed(range(tau.shape[-1])))
    return out.copy() if out is start else out


@kernel("ormqr")
def ormqr(self: Any, input2: Any, input3: Any, left: bool = True, transpose: bool = False) -> Any:
    vectors = _reflectors(check_matrices(self))
    count = input2.shape[-1]
    # From the right, C Q is the adjoint of Q^H C^H.
    side = input3 if left else adjoint(input3)
    transpose = transpose == left
    order = range(count) if transpose else reversed(range(count))
    found = _reflect(side, vectors, input2.conj() if transpose else input2, order)
    if not count:
        return input3.copy()
    return found if left else numpy.ascontiguousarray(adjoint(found))
