"""LU, solve, inverse and determinant, with LAPACK from SciPy; helpers for batches of matrices.

As in torch, pivots are int32 and count from 1, and `info` is LAPACK's, as int32.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy

from holdfast.compute import dtype as dtypes
from holdfast.compute.engines.numpy import scipy
from holdfast.compute.engines.numpy.kernels import kernel
from holdfast.compute.ops.matrix.linalg import check_matrices, is_vector

# ---- helpers


def lapack(name: str, array: Any) -> Any:
    """LAPACK's routine for the dtype of an array."""
    return scipy.submodule("linalg").get_lapack_funcs((name,), (array,))[0]


def map_matrices(function: Callable[..., Any], *arrays: Any, cores: tuple[int, ...] = ()) -> Any:
    """Apply `function` to every matrix of batches of one shape and stack its results.

    `cores`: how many dimensions each argument has without the batch; 2 by default.
    """
    ranks = [*cores, *[2] * (len(arrays) - len(cores))]
    batch = arrays[0].shape[: arrays[0].ndim - ranks[0]]
    if not batch:
        return function(*arrays)
    flat = [a.reshape(math.prod(batch), *a.shape[len(batch) :]) for a in arrays]
    if not math.prod(batch):
        sample = function(*(numpy.ones(a.shape[1:], a.dtype) for a in flat))
        return tuple(numpy.empty((*batch, *one.shape), one.dtype) for one in sample)
    found = [function(*items) for items in zip(*flat, strict=True)]
    return tuple(
        numpy.stack(parts).reshape(*batch, *parts[0].shape) for parts in zip(*found, strict=True)
    )


def broadcast_batches(*arrays: Any, cores: tuple[int, ...] = ()) -> list[Any]:
    """Broadcast the batch dimensions of the arguments; `cores` as in `map_matrices`."""
    ranks = [*cores, *[2] * (len(arrays) - len(cores))]
    split = [a.ndim - r for a, r in zip(arrays, ranks, strict=True)]
    batch = numpy.broadcast_shapes(*(a.shape[:s] for a, s in zip(arrays, split, strict=True)))
    return [
        numpy.broadcast_to(a, (*batch, *a.shape[s:])) for a, s in zip(arrays, split, strict=True)
    ]


def adjoint(array: Any) -> Any:
    """The conjugate transpose."""
    return array.swapaxes(-1, -2).conj()


def raise_for_info(info: Any, name: str, reason: str) -> None:
    """Raise ValueError if LAPACK reported a failure."""
    info = numpy.asarray(info)
    if info.any():
        first = tuple(int(i) for i in numpy.argwhere(info)[0])
        where = f"matrix {list(first)} of the batch, " if first else ""
        raise ValueError(f"{name}: {reason} ({where}LAPACK's info: {int(info[first])})")


@kernel("_linalg_check_errors")
def check_errors(info: Any, api_name: str, is_matrix: bool) -> None:
    reason = "is singular or not positive definite, or the computation did not converge"
    raise_for_info(info, api_name, f"the input {reason}")


# ---- LU


def _factor_lu(a: Any) -> Any:
    if not a.size:
        pivots = numpy.arange(1, min(a.shape) + 1, dtype=numpy.int32)
        return a.copy(), pivots, numpy.zeros((), numpy.int32)
    lu, pivots, info = lapack("getrf", a)(a)
    return lu, (pivots + 1).astype(numpy.int32), numpy.asarray(info, numpy.int32)


@kernel("linalg_lu_factor_ex")
def lu_factor_ex(A: Any, pivot: bool = True, check_errors: bool = False) -> Any:
    if not pivot:
        raise ValueError("LU without pivots is not computed on a CPU")
    lu, pivots, info = map_matrices(_factor_lu, check_matrices(A))
    if check_errors:
        raise_for_info(info, "lu_factor", "a diagonal element of U is zero")
    return lu, pivots, info


def _row_order(pivots: Any, count: int) -> Any:
    """The order of rows after the exchanges that `pivots` lists."""
    order = numpy.broadcast_to(numpy.arange(count), (*pivots.shape[:-1], count)).copy()
    for row in range(pivots.shape[-1]):
        other = pivots[..., row : row + 1].astype(numpy.int64) - 1
        mine = order[..., row : row + 1].copy()
        theirs = numpy.take_along_axis(order, other, -1)
        numpy.put_along_axis(order, other, mine, -1)
        order[..., row : row + 1] = theirs
    return order


@kernel("lu_unpack")
def lu_unpack(
    LU_data: Any, LU_pivots: Any, unpack_data: bool = True, unpack_pivots: bool = True
) -> Any:
    rows, columns = LU_data.shape[-2:]
    least = min(rows, columns)
    none = numpy.empty((0,), LU_data.dtype)
    p, lower, upper = none, none, none
    if unpack_data:
        lower = numpy.tril(LU_data[..., :least], -1)
        diagonal = numpy.arange(least)
        lower[..., diagonal, diagonal] = 1
        upper = numpy.triu(LU_data[..., :least, :])
    if unpack_pivots:
        order = _row_order(LU_pivots, rows)
        p = (numpy.arange(rows)[:, None] == order[..., None, :]).astype(LU_data.dtype)
    return p, lower, upper


@kernel("linalg_lu")
def linalg_lu(A: Any, pivot: bool = True) -> Any:
    lu, pivots, _ = lu_factor_ex(A, pivot)
    return lu_unpack(lu, pivots)


def _solve_lu(lu: Any, pivots: Any, b: Any, left: bool, adjoint: bool) -> Any:
    if not b.size or not lu.size:
        return (b.copy(),)
    # From the right, X A = B is solved as A^T X^T = B^T.
    side = b if left else b.T
    flip = adjoint and not left
    trans = (2 if adjoint else 0) if left else (0 if adjoint else 1)
    found = lapack("getrs", lu)(lu, pivots - 1, side.conj() if flip else side, trans=trans)[0]
    found = found.conj() if flip else found
    return (found if left else found.T,)


@kernel("linalg_lu_solve")
def lu_solve(LU: Any, pivots: Any, B: Any, left: bool = True, adjoint: bool = False) -> Any:
    check_matrices(LU, square=True)
    _check_dtypes(LU, B)
    lu, piv, b = broadcast_batches(LU, pivots, B, cores=(2, 1, 2))
    return map_matrices(
        lambda f, p, r: _solve_lu(f, p, r, left, adjoint), lu, piv, b, cores=(2, 1, 2)
    )[0]


def _check_dtypes(one: Any, other: Any) -> None:
    if one.dtype != other.dtype:
        raise TypeError(f"both sides must have one dtype, not {one.dtype} and {other.dtype}")


# ---- equations


@kernel("_linalg_solve_ex")
def solve_ex(A: Any, B: Any, left: bool = True, check_errors: bool = False) -> Any:
    check_matrices(A, square=True)
    vector = is_vector(A, B)
    lu, pivots, info = map_matrices(_factor_lu, A)
    if check_errors:
        raise_for_info(info, "solve", "the matrix is singular")
    right = B[..., None] if vector else B
    if right.shape[-2 if left else -1] != A.shape[-1]:
        raise ValueError(f"{list(A.shape)} and {list(B.shape)} are not one equation")
    out = lu_solve(lu, pivots, right, left)
    return (out[..., 0] if vector else out), lu, pivots, info


@kernel("linalg_inv_ex")
def inv_ex(A: Any, check_errors: bool = False) -> Any:
    check_matrices(A, square=True)
    try:
        out, info = numpy.linalg.inv(A), numpy.zeros(A.shape[:-2], numpy.int32)
    except numpy.linalg.LinAlgError:
        out, info = map_matrices(_inverse, A)
    if check_errors:
        raise_for_info(info, "inv", "the matrix is singular")
    return out, info


def _inverse(a: Any) -> Any:
    _, _, info = _factor_lu(a)
    return (numpy.full_like(a, numpy.nan) if info else numpy.linalg.inv(a)), info


def _parity(pivots: Any) -> Any:
    """1 for an even number of row exchanges, -1 for an odd one."""
    moved = pivots != numpy.arange(1, pivots.shape[-1] + 1)
    return 1 - 2 * (moved.sum(-1) % 2)


def _transpose_contiguous(a: Any) -> Any:
    """Transpose a C-contiguous real matrix: torch's gradients expect its LU factors."""
    check_matrices(a, square=True)
    return a.swapaxes(-1, -2) if a.flags.c_contiguous and a.dtype.kind != "c" else a


@kernel("_linalg_det")
def det(A: Any) -> Any:
    lu, pivots, _ = map_matrices(_factor_lu, _transpose_contiguous(A))
    found = numpy.diagonal(lu, 0, -2, -1).prod(-1) * _parity(pivots)
    return found.astype(A.dtype), lu, pivots


@kernel("_linalg_slogdet")
def slogdet(A: Any) -> Any:
    lu, pivots, _ = map_matrices(_factor_lu, _transpose_contiguous(A))
    diagonal = numpy.diagonal(lu, 0, -2, -1)
    sign = numpy.sign(diagonal).prod(-1) * _parity(pivots)
    with numpy.errstate(divide="ignore"):
        size = numpy.log(numpy.abs(diagonal)).sum(-1)
    return sign.astype(A.dtype), size.astype(dtypes.real_of(A.dtype)), lu, pivots


def _triangular(a: Any, b: Any, upper: bool, left: bool, unit: bool) -> Any:
    if not b.size:
        return (b.copy(),)
    solve = scipy.submodule("linalg").get_blas_funcs("trsm", (a, b))
    return (solve(1, a, b, side=not left, lower=not upper, diag=unit),)


@kernel("linalg_solve_triangular")
def solve_triangular(
    self: Any, B: Any, upper: bool, left: bool = True, unitriangular: bool = False
) -> Any:
    check_matrices(self, square=True)
    _check_dtypes(self, B)
    if B.ndim < 2 or B.shape[-2 if left else -1] != self.shape[-1]:
        raise ValueError(f"{list(self.shape)} and {list(B.shape)} are not one equation")
    a, b = broadcast_batches(self, B)
    return map_matrices(lambda m, r: _triangular(m, r, upper, left, unitriangular), a, b)[0]


@kernel("triangular_solve")
def triangular_solve(
    self: Any, A: Any, upper: bool = True, transpose: bool = False, unitriangular: bool = False
) -> Any:
    a = A.swapaxes(-1, -2) if transpose else A
    found = solve_triangular(a, self, upper != transpose, True, unitriangular)
    return found, broadcast_batches(A, self)[0].copy()
