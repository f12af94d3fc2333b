"""Factorizations, solvers and determinants: ATen's ops. `solve` has the public functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy

from holdfast.compute import dtype as dtypes
from holdfast.compute import functional as F
from holdfast.compute.ops.elementwise.complex_numbers import conjugate
from holdfast.compute.ops.rules import LIKE_SELF, Meta, Rule, like, meta_of, rule
from holdfast.compute.ops.table import Op, op

_INT32 = dtypes.DTYPES["int32"]
_SQUARE = "square matrices, also a batch of them, of float32, float64, complex64 or complex128"
_ANY = "matrices, also a batch of them, of float32, float64, complex64 or complex128"
_EQUATION = (
    "one dtype, a square matrix, and right sides with as many rows (columns, where left=False) "
    "as it has"
)


_LAPACK_DTYPES = (dtypes.FLOAT32, dtypes.FLOAT64, dtypes.COMPLEX64, dtypes.COMPLEX128)


def check_matrices(array: Any, *, square: bool = False) -> Any:
    """Return `array`; raise ValueError or TypeError unless it is matrices that LAPACK takes."""
    if array.ndim < 2:
        raise ValueError(f"{array.ndim} dimensions are fewer than 2")
    if square and array.shape[-1] != array.shape[-2]:
        raise ValueError(f"{array.shape[-2]} x {array.shape[-1]} is not square")
    if array.dtype not in _LAPACK_DTYPES:
        raise TypeError(f"matrices of {array.dtype} are not factored")
    return array


def _by(shape: Callable[[Any, dict[str, Any]], Any], expects: str = _SQUARE) -> Rule:
    """A rule from a function of the first argument and all arguments."""

    def infer(of: Op, bound: dict[str, Any]) -> Meta | tuple[Meta, ...] | None:
        return shape(bound[of.schema.parameters[0].name], bound)

    return rule(infer, expects)


def _resize(a: Any, *last: int, kind: Any = None) -> Meta:
    """The batch of `a` with other last dimensions."""
    return Meta((*a.shape[:-2], *last), kind or a.dtype)


def _values(a: Any, kind: Any = None) -> Meta:
    """One element for each row or column, whichever are fewer."""
    return _resize(a, min(a.shape[-2:]), kind=kind)


def _none(a: Any) -> Meta:
    return Meta((0,), a.dtype)


def _real(meta: Meta) -> Meta:
    return Meta(meta.shape, dtypes.real_of(meta.dtype))


def _complex(meta: Meta) -> Meta:
    return Meta(meta.shape, dtypes.complex_of(meta.dtype))


def _together(a: Any, b: Any) -> Meta:
    """The right-hand sides, with the batch dimensions of both broadcast."""
    batch = numpy.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    return Meta((*batch, *b.shape[-2:]), b.dtype)


def is_vector(a: Any, b: Any) -> bool:
    """Whether the right-hand side is one vector for each matrix."""
    return b.ndim == 1 or (a.ndim - 1 == b.ndim and tuple(b.shape) == tuple(a.shape[:-1]))


def _solution(a: Any, b: Any) -> Meta:
    if not is_vector(a, b):
        return _together(a, b)
    return Meta(_together(a, Meta((*b.shape, 1), b.dtype)).shape[:-1], b.dtype)


def _parts_of_lu(a: Any, data: bool = True, pivots: bool = True) -> tuple[Meta, ...]:
    rows, columns = a.shape[-2:]
    least = min(rows, columns)
    return (
        _resize(a, rows, rows) if pivots else _none(a),
        _resize(a, rows, least) if data else _none(a),
        _resize(a, least, columns) if data else _none(a),
    )


def _parts_of_qr(a: Any, mode: str) -> tuple[Meta, ...]:
    rows, columns = a.shape[-2:]
    inner = rows if mode == "complete" else min(rows, columns)
    return (_none(a) if mode == "r" else _resize(a, rows, inner)), _resize(a, inner, columns)


def _parts_of_svd(a: Any, full: bool, vectors: bool) -> tuple[Meta, ...]:
    rows, columns = a.shape[-2:]
    least = min(rows, columns)
    if not vectors:
        return _none(a), _real(_values(a)), _none(a)
    left = _resize(a, rows, rows if full else least)
    return left, _real(_values(a)), _resize(a, columns if full else least, columns)


# ---- LU, equations, determinants

op("_linalg_check_errors(Tensor info, str api_name, *, bool is_matrix) -> ()")
op("linalg_lu_factor_ex(Tensor A, *, bool pivot=True, bool check_errors=False) -> "
   "(Tensor LU, Tensor pivots, Tensor info)",
   _by(lambda a, _: (meta_of(a), _values(a, _INT32), _resize(a, kind=_INT32)), _ANY),
   {"A": "lu_factor_gradient(grad, result0, result1)"})  # fmt: skip
op("lu_unpack(Tensor LU_data, Tensor LU_pivots, bool unpack_data=True, bool unpack_pivots=True) "
   "-> (Tensor P, Tensor L, Tensor U)",
   _by(lambda a, b: _parts_of_lu(a, b["unpack_data"], b["unpack_pivots"]), _ANY),
   {"LU_data": "lu_unpack_gradient(grads[1], grads[2], LU_data.shape) if unpack_data else None",
    })  # fmt: skip
op("linalg_lu(Tensor A, *, bool pivot=True) -> (Tensor P, Tensor L, Tensor U)",
   _by(lambda a, _: _parts_of_lu(a), _ANY),
   {"A": "lu_gradient(grads[1], grads[2], result0, result1, result2)"})  # fmt: skip
op("linalg_lu_solve(Tensor LU, Tensor pivots, Tensor B, *, bool left=True, bool adjoint=False) "
   "-> Tensor", _by(lambda a, b: _together(a, b["B"]), _EQUATION),
   {"LU": "lu_solve_gradient(grad, LU, pivots, result, left, adjoint)",
    "B": "linalg_lu_solve(LU, pivots, grad, left=left, adjoint=not adjoint)"})  # fmt: skip
op("_linalg_solve_ex(Tensor A, Tensor B, *, bool left=True, bool check_errors=False) -> "
   "(Tensor result, Tensor LU, Tensor pivots, Tensor info)",
   _by(lambda a, b: (_solution(a, b["B"]), meta_of(a), _values(a, _INT32),
                     _resize(a, kind=_INT32)), _EQUATION),
   {"A, B": "solve_gradient(grad, A, B, result0, left)"})  # fmt: skip
op("linalg_inv_ex(Tensor A, *, bool check_errors=False) -> (Tensor inverse, Tensor info)",
   _by(lambda a, _: (meta_of(a), _resize(a, kind=_INT32))),
   {"A": "-matmul(adjoint(result0), matmul(grad, adjoint(result0)))"})  # fmt: skip
op("_linalg_det(Tensor A) -> (Tensor result, Tensor LU, Tensor pivots)",
   _by(lambda a, _: (_resize(a), meta_of(a), _values(a, _INT32))),
   {"A": "det_gradient(grad, A, result0)"})  # fmt: skip
op("_linalg_slogdet(Tensor A) -> (Tensor sign, Tensor logabsdet, Tensor LU, Tensor pivots)",
   _by(lambda a, _: (_resize(a), _real(_resize(a)), meta_of(a), _values(a, _INT32))),
   {"A": "slogdet_gradient(grads[0], grads[1], A, result0)"})  # fmt: skip
op("linalg_solve_triangular(Tensor self, Tensor B, *, bool upper, bool left=True, "
   "bool unitriangular=False) -> Tensor", _by(lambda a, b: _together(a, b["B"]), _EQUATION),
   {"self, B": "triangular_gradient(grad, self, result, upper, left, unitriangular, mask)",
    })  # fmt: skip
op("triangular_solve(Tensor self, Tensor A, bool upper=True, bool transpose=False, "
   "bool unitriangular=False) -> (Tensor solution, Tensor cloned_coefficient)",
   _by(lambda b, of: (_together(of["A"], b), _together(b, of["A"])), _EQUATION),
   {"self, A": "old_triangular_gradient(grads, A, result0, upper, transpose, unitriangular, mask)",
    })  # fmt: skip

# ---- Cholesky, LDL

op("cholesky(Tensor self, bool upper=False) -> Tensor", LIKE_SELF,
   {"self": "cholesky_gradient(grad, result, upper)"})  # fmt: skip
op("linalg_cholesky_ex(Tensor self, *, bool upper=False, bool check_errors=False) -> "
   "(Tensor L, Tensor info)", _by(lambda a, _: (meta_of(a), _resize(a, kind=_INT32))),
   {"self": "cholesky_gradient(grad, result0, upper)"})  # fmt: skip
op("cholesky_inverse(Tensor self, bool upper=False) -> Tensor", LIKE_SELF,
   {"self": "cholesky_inverse_gradient(grad, self, result, upper)"})  # fmt: skip
op("cholesky_solve(Tensor self, Tensor input2, bool upper=False) -> Tensor",
   _by(lambda b, of: _together(of["input2"], b), _EQUATION),
   {"self": "cholesky_solve(grad, input2, upper)",
    "input2": "cholesky_solve_gradient(grad, input2, result, upper)"})  # fmt: skip
op("linalg_ldl_factor_ex(Tensor self, *, bool hermitian=False, bool check_errors=False) -> "
   "(Tensor LD, Tensor pivots, Tensor info)",
   _by(lambda a, _: (meta_of(a), _values(a, _INT32), _resize(a, kind=_INT32))))  # fmt: skip
op("linalg_ldl_solve(Tensor LD, Tensor pivots, Tensor B, *, bool hermitian=False) -> Tensor",
   _by(lambda a, b: _together(a, b["B"]), _EQUATION))  # fmt: skip

# ---- QR


def _adjoint(matrix: Any) -> Any:
    return conjugate(F.transpose(matrix, -2, -1))


def _reflect(out: Any, vectors: Any, tau: Any, order: Any) -> Any:
    """(1 - tau v v^H) from the left, for every column v in that order."""
    for place in order:
        v = F.narrow(vectors, -1, place, 1)
        scale = F.unsqueeze(F.narrow(tau, -1, place, 1), -1)
        out = out - F.matmul(scale * v, F.matmul(_adjoint(v), out))
    return out


def _vectors(of: Any) -> Any:
    """The vectors below LAPACK's diagonal, with the implicit ones on it."""
    return F.tril(of, -1) + _identity(of)


def _identity(of: Any) -> Any:
    return F.tril(F.triu(F.ones_like(of)))


def _householder_product(input: Any, tau: Any) -> Any:
    rows, columns = check_matrices(input).shape[-2:]
    if columns > rows or tau.shape[-1] > columns:
        raise ValueError(
            f"{tau.shape[-1]} reflections, {columns} columns, {rows} rows: none may exceed the next"
        )
    start = _identity(input)
    if not tau.shape[-1]:
        return start + input * 0  # a result of its arguments, though it is the same for all
    return _reflect(start, _vectors(input), tau, reversed(range(tau.shape[-1])))


def _ormqr(self: Any, input2: Any, input3: Any, left: bool = True, transpose: bool = False) -> Any:
    check_matrices(self)
    # From the right, C Q is the adjoint of Q^H C^H.
    side = input3 if left else _adjoint(input3)
    back = transpose == left
    count = input2.shape[-1]
    order = range(count) if back else reversed(range(count))
    start = side if count else F.clone(side)  # a result is never an argument itself
    found = _reflect(start, _vectors(self), conjugate(input2) if back else input2, order)
    return found if left else _adjoint(found)


op("geqrf(Tensor self) -> (Tensor a, Tensor tau)", _by(lambda a, _: (meta_of(a), _values(a)), _ANY))
op("linalg_qr(Tensor A, str mode='reduced') -> (Tensor Q, Tensor R)",
   _by(lambda a, b: _parts_of_qr(a, b["mode"]), _ANY),
   {"A": "qr_gradient(grads, given, result0, result1, mode)"})  # fmt: skip
op("linalg_householder_product(Tensor input, Tensor tau) -> Tensor", like("input", expects=_ANY),
   decomposition=_householder_product)  # fmt: skip
op("ormqr(Tensor self, Tensor input2, Tensor input3, bool left=True, bool transpose=False) -> "
   "Tensor", like("input3", expects=_ANY), decomposition=_ormqr)  # fmt: skip

# ---- eigenvalues and singular values

op("_linalg_eigh(Tensor A, str UPLO='L', bool compute_v=True) -> "
   "(Tensor eigenvalues, Tensor eigenvectors)",
   _by(lambda a, b: (_real(_values(a)), meta_of(a) if b["compute_v"] else _none(a))),
   {"A": "eigh_gradient(grads, given, A, result0, result1, UPLO, compute_v)"})  # fmt: skip
op("linalg_eig(Tensor self) -> (Tensor eigenvalues, Tensor eigenvectors)",
   _by(lambda a, _: (_complex(_values(a)), _complex(meta_of(a)))),
   {"self": "eig_gradient(grads, given, self, result0, result1)"})  # fmt: skip
op("linalg_eigvals(Tensor self) -> Tensor", _by(lambda a, _: _complex(_values(a))),
   {"self": "eigvals_gradient(grad, self)"})  # fmt: skip
op("_linalg_svd(Tensor A, bool full_matrices=False, bool compute_uv=True, *, str? driver=None) "
   "-> (Tensor U, Tensor S, Tensor Vh)",
   _by(lambda a, b: _parts_of_svd(a, b["full_matrices"], b["compute_uv"]), _ANY),
   {"A": "svd_gradient(grads, given, A, result0, result1, result2, compute_uv)"})  # fmt: skip
op("linalg_pinv.atol_rtol_tensor(Tensor self, *, Tensor? atol=None, Tensor? rtol=None, "
   "bool hermitian=False) -> Tensor",
   _by(lambda a, _: _resize(a, a.shape[-1], a.shape[-2]), _ANY),
   {"self": "pinv_gradient(grad, self, result)"})  # fmt: skip
op("linalg_lstsq(Tensor self, Tensor b, float? rcond=None, *, str? driver=None) -> "
   "(Tensor solution, Tensor residuals, Tensor rank, Tensor singular_values)",
   rule(expects=f"{_ANY}, and right sides with as many rows"),
   {"self, b": "lstsq_gradient(grads[0], grads[1], given, self, b, result0)"})  # fmt: skip
op("linalg_matrix_exp(Tensor self) -> Tensor", like("self", expects=_SQUARE),
   {"self": "matrix_exp_gradient(grad, self)"})  # fmt: skip
