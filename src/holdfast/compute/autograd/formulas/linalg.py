"""Gradients of matrix factorizations, solvers, determinants and Fourier transforms.

Each is made of ops, so it can be differentiated again. `g` before a name is that value's
gradient.
"""

from __future__ import annotations

from typing import Any

import numpy

from holdfast.compute import dtype as dtypes
from holdfast.compute import functional as F
from holdfast.compute.autograd.formulas.matrix import adjoint, eye_like, transposed
from holdfast.compute.ops.elementwise.complex_numbers import conjugate
from holdfast.compute.ops.matrix.linalg import is_vector


def _product(*matrices: Any) -> Any:
    found = matrices[-1]
    for matrix in reversed(matrices[:-1]):
        found = F.matmul(matrix, found)
    return found


def _column(vector: Any) -> Any:
    return F.unsqueeze(vector, -1)


def _diagonal(matrix: Any) -> Any:
    return F.diagonal(matrix, 0, -2, -1)


def _skew(matrix: Any) -> Any:
    return matrix - adjoint(matrix)


def _head(matrix: Any, dim: int, size: int) -> Any:
    return matrix if matrix.shape[dim] == size else F.narrow(matrix, dim, 0, size)


def _tail(matrix: Any, dim: int, start: int) -> Any:
    return F.narrow(matrix, dim, start, matrix.shape[dim] - start)


def _differences(values: Any) -> Any:
    """values[j] - values[i], with ones on the (unused) diagonal, to divide by."""
    found = F.unsqueeze(values, -2) - _column(values)
    return found + eye_like(values, (values.shape[-1],) * 2)


def _without_diagonal(matrix: Any) -> Any:
    return F.tril(matrix, -1) + F.triu(matrix, 1)


# ---- LU, equations, determinants


def _divided_left(factor: Any, of: Any, upper: bool, unit: bool = False) -> Any:
    return F.linalg_solve_triangular(factor, of, upper=upper, unitriangular=unit)


def _divided_right(factor: Any, of: Any, upper: bool) -> Any:
    return F.linalg_solve_triangular(factor, of, upper=upper, left=False)


def lu_gradient(g_l: Any, g_u: Any, p: Any, lower: Any, upper: Any) -> Any:
    """Of A = P L U."""
    rows, columns = lower.shape[-2], upper.shape[-1]
    least = min(rows, columns)
    l1, u1 = _head(lower, -2, least), _head(upper, -1, least)
    for_l = F.matmul(adjoint(l1), _head(g_l, -2, least))
    for_u = F.matmul(_head(g_u, -1, least), adjoint(u1))
    if rows > least:
        for_u = for_u - F.matmul(adjoint(_tail(lower, -2, least)), _tail(g_l, -2, least))
    if columns > least:
        for_l = for_l - F.matmul(_tail(g_u, -1, least), adjoint(_tail(upper, -1, least)))
    inner = F.tril(for_l, -1) + F.triu(for_u)
    inner = _divided_right(adjoint(u1), inner, upper=False)
    if rows > least:
        below = _divided_right(adjoint(u1), _tail(g_l, -2, least), upper=False)
        found = F.cat([_divided_left(adjoint(l1), inner, True, True), below], -2)
        return F.matmul(p, found)
    if columns > least:
        inner = F.cat([inner, _tail(g_u, -1, least)], -1)
    return F.matmul(p, _divided_left(adjoint(l1), inner, True, True))


def lu_factor_gradient(grad: Any, lu: Any, pivots: Any) -> Any:
    """Of L and U packed in one matrix."""
    p, lower, upper = F.lu_unpack(lu, pivots)
    least = min(lu.shape[-2:])
    g_l, g_u = F.tril(_head(grad, -1, least), -1), F.triu(_head(grad, -2, least))
    return lu_gradient(g_l, g_u, p, lower, upper)


def lu_unpack_gradient(g_l: Any, g_u: Any, shape: Any) -> Any:
    """Pack the gradients of L and U into one matrix."""
    rows, columns = shape[-2:]
    g_l, g_u = F.tril(g_l, -1), F.triu(g_u)
    if rows > columns:
        g_u = F.constant_pad_nd(g_u, [0, 0, 0, rows - columns], 0)
    elif columns > rows:
        g_l = F.constant_pad_nd(g_l, [0, columns - rows], 0)
    return g_l + g_u


def lu_solve_gradient(grad: Any, lu: Any, pivots: Any, x: Any, left: bool, adjoint_of: bool) -> Any:
    """Of the factors in A X = B, X A = B, and the same with A^H."""
    g_b = F.linalg_lu_solve(lu, pivots, grad, left=left, adjoint=not adjoint_of)
    first, second = (g_b, x) if left else (adjoint(x), adjoint(g_b))
    if adjoint_of:
        first, second = second, first
    g_a = -F.matmul(first, adjoint(second))
    p, lower, upper = F.lu_unpack(lu, pivots)
    moved = F.matmul(transposed(p), g_a)
    g_l = F.matmul(moved, adjoint(upper))
    return F.tril(g_l, -1) + F.triu(F.matmul(adjoint(lower), moved))


def solve_gradient(grad: Any, a: Any, b: Any, x: Any, left: bool) -> Any:
    """Of A X = B, or X A = B."""
    vector = is_vector(a, b)
    side, found = (_column(grad), _column(x)) if vector else (grad, x)
    g_b = F._linalg_solve_ex(adjoint(a), side, left=left)[0]
    g_a = -(F.matmul(g_b, adjoint(found)) if left else F.matmul(adjoint(found), g_b))
    return g_a, F.squeeze(g_b, -1) if vector else g_b


def det_gradient(grad: Any, a: Any, det: Any) -> Any:
    """The cofactors; by singular values if there is no inverse."""
    if not a.shape[-1]:
        return a * 0
    if numpy.all(det.data != 0):
        scale = grad * conjugate(det)
        return F.unsqueeze(_column(scale), -1) * adjoint(F.linalg_inv_ex(a)[0])
    u, s, vh = F._linalg_svd(a)
    eye = eye_like(s, (s.shape[-1],) * 2)
    others = F.unsqueeze(s, -2) * (1 - eye) + eye
    scale = grad * conjugate(F._linalg_det(u)[0] * F._linalg_det(vh)[0])
    middle = F.prod(others, -1) * _column(scale)
    return F.matmul(u * F.unsqueeze(middle, -2), vh)


def slogdet_gradient(g_sign: Any, g_log: Any, a: Any, sign: Any) -> Any:
    """Of log |det A|, and of the phase where A is complex."""
    if dtypes.is_complex(a.dtype):
        turned = conjugate(g_sign) * sign
        g_log = g_log - 1j * F.imag(turned)
    return F.unsqueeze(_column(g_log), -1) * adjoint(F.linalg_inv_ex(a)[0])


def _triangle(matrix: Any, upper: bool, unit: bool) -> Any:
    return F.triu(matrix, int(unit)) if upper else F.tril(matrix, -int(unit))


def triangular_gradient(
    grad: Any, a: Any, x: Any, upper: bool, left: bool, unit: bool, mask: Any
) -> Any:
    """Of a triangular A in A X = B, or X A = B."""
    g_b = F.linalg_solve_triangular(
        adjoint(a), grad, upper=not upper, left=left, unitriangular=unit
    )
    if not mask[0]:
        return None, g_b
    g_a = -(F.matmul(g_b, adjoint(x)) if left else F.matmul(adjoint(x), g_b))
    return _triangle(g_a, upper, unit), g_b


def old_triangular_gradient(
    grads: Any, a: Any, x: Any, upper: bool, transpose: bool, unit: bool, mask: Any
) -> Any:
    """Of `triangular_solve`, which also returns its coefficients."""
    matrix = conjugate(a) if transpose else adjoint(a)
    g_b = _divided_left(matrix, grads[0], upper == transpose, unit)
    if not mask[1]:
        return g_b, None
    g_a = -F.matmul(g_b, adjoint(x))
    g_a = transposed(g_a) if transpose else g_a
    return g_b, _triangle(g_a, upper, unit) + grads[1]


# ---- Cholesky


def cholesky_gradient(grad: Any, factor: Any, upper: bool) -> Any:
    """Of A = L L^H."""
    if upper:
        grad, factor = adjoint(grad), adjoint(factor)
    inner = F.matmul(adjoint(factor), grad)
    low = F.tril(inner, -1)
    inner = low + adjoint(low) + F.tril(F.triu(inner))
    inner = _divided_left(adjoint(factor), inner, upper=True)
    return _divided_right(factor, inner, upper=False) * 0.5


def cholesky_inverse_gradient(grad: Any, factor: Any, inverse: Any, upper: bool) -> Any:
    """Of (L L^H)^-1."""
    common = -_product(inverse, grad + adjoint(grad), inverse)
    return F.matmul(factor, common) if upper else F.matmul(common, factor)


def cholesky_solve_gradient(grad: Any, factor: Any, x: Any, upper: bool) -> Any:
    """Of the factor in L L^H X = B."""
    common = -F.matmul(F.cholesky_solve(grad, factor, upper), adjoint(x))
    common = common + adjoint(common)
    return F.matmul(factor, common) if upper else F.matmul(common, factor)


# ---- QR


def qr_gradient(grads: Any, given: Any, q: Any, r: Any, mode: str) -> Any:
    """Of A = Q R, where Q has no more columns than A has independent ones."""
    rows, columns = (q.shape[-2], r.shape[-1]) if mode != "r" else (0, 0)
    if mode == "r" or (mode == "complete" and rows > columns):
        raise ValueError(f"QR with mode={mode!r} has no gradient here: mode='reduced' has one")
    g_q, g_r = grads
    if rows >= columns:
        return _tall_qr_gradient(g_q, g_r, q, r)
    # The columns on the right are Q times a part of R.
    u, v = _head(r, -1, rows), _tail(r, -1, rows)
    g_v = _tail(g_r, -1, rows)
    y = F.matmul(q, v)
    g_left = _tall_qr_gradient(g_q + F.matmul(y, adjoint(g_v)), _head(g_r, -1, rows), q, u)
    return F.cat([g_left, F.matmul(q, g_v)], -1)


def _tall_qr_gradient(g_q: Any, g_r: Any, q: Any, r: Any) -> Any:
    inner = F.matmul(r, adjoint(g_r)) - F.matmul(adjoint(g_q), q)
    low = F.tril(inner, -1)
    middle = F.tril(F.triu(inner))
    middle = (middle + adjoint(middle)) * 0.5
    found = g_q + F.matmul(q, low + adjoint(low) + middle)
    return _divided_right(adjoint(r), found, upper=False)


# ---- eigenvalues, singular values


def eigh_gradient(
    grads: Any, given: Any, a: Any, values: Any, vectors: Any, side: str, computed: bool
) -> Any:
    """Of A = V diag(w) V^H."""
    if not computed:
        vectors = F._linalg_eigh(a, side)[1]
    inner = F.diag_embed(grads[0]).to(a.dtype)
    if computed and given[1]:
        turned = F.matmul(adjoint(vectors), grads[1])
        inner = inner + _without_diagonal(turned / _differences(values))
    found = _product(vectors, inner, adjoint(vectors))
    return (found + adjoint(found)) * 0.5


def eig_gradient(grads: Any, given: Any, a: Any, values: Any, vectors: Any) -> Any:
    """Of A = V diag(w) V^-1, where the columns of V have length 1."""
    inner = F.diag_embed(grads[0])
    back = adjoint(vectors)
    if given[1]:
        turned = F.matmul(back, grads[1])
        length = F.unsqueeze(F.real(_diagonal(turned)), -2)
        turned = turned - F.matmul(back, vectors * length)
        inner = inner + _without_diagonal(turned / conjugate(_differences(values)))
    return F._linalg_solve_ex(back, F.matmul(inner, back))[0]


def eigvals_gradient(grad: Any, a: Any) -> Any:
    """Of the eigenvalues alone."""
    values, vectors = F.linalg_eig(a)
    return eig_gradient((grad, None), (True, False), a, values, vectors)


def svd_gradient(grads: Any, given: Any, a: Any, u: Any, s: Any, vh: Any, computed: bool) -> Any:
    """Of A = U diag(s) V^H, for any signs or phases of the vectors."""
    count = s.shape[-1]
    if not computed:
        u, _, vh = F._linalg_svd(a)
        return F.matmul(u * F.unsqueeze(grads[1], -2), vh)
    u, vh = _head(u, -1, count), _head(vh, -2, count)
    g_u, g_vh = _head(grads[0], -1, count), _head(grads[2], -2, count)
    inner = F.diag_embed(grads[1]).to(a.dtype)
    squares = _differences(s * s)
    if given[0]:
        turned = F.matmul(adjoint(u), g_u)
        inner = inner + _without_diagonal(_skew(turned) / squares) * F.unsqueeze(s, -2)
        if dtypes.is_complex(a.dtype):
            inner = inner + F.diag_embed(1j * F.imag(_diagonal(turned)) / s)
    if given[2]:
        turned = F.matmul(vh, adjoint(g_vh))
        inner = inner + _column(s) * _without_diagonal(_skew(turned) / squares)
    found = _product(u, inner, vh)
    if given[0] and a.shape[-2] > count:
        rest = g_u - _product(u, adjoint(u), g_u)
        found = found + F.matmul(rest / F.unsqueeze(s, -2), vh)
    if given[2] and a.shape[-1] > count:
        rest = g_vh - _product(g_vh, adjoint(vh), vh)
        found = found + F.matmul(u, rest / _column(s))
    return found


def pinv_gradient(grad: Any, a: Any, p: Any) -> Any:
    """Of the pseudo-inverse, for constant rank."""
    g_h, p_h = adjoint(grad), adjoint(p)
    found = -_product(p_h, grad, p_h)
    right = _product(g_h, p, p_h)
    left = _product(p_h, p, g_h)
    found = found + right - _product(a, p, right)
    return found + left - F.matmul(F.matmul(left, p), a)


def lstsq_gradient(g_x: Any, g_rest: Any, given: Any, a: Any, b: Any, x: Any) -> Any:
    """Of least squares, and of the residuals."""
    vector = is_vector(a, b)
    side, found = (_column(b), _column(x)) if vector else (b, x)
    g_x = _column(g_x) if vector else g_x
    inverse = F.linalg_pinv(a, atol=None, rtol=None)
    g_a = pinv_gradient(F.matmul(g_x, adjoint(side)), a, inverse)
    g_b = F.matmul(adjoint(inverse), g_x)
    if given[1] and g_rest.numel():
        rest = (F.matmul(a, found) - side) * 2 * F.unsqueeze(g_rest, -2)
        g_a, g_b = g_a + F.matmul(rest, adjoint(found)), g_b - rest
    return g_a, F.squeeze(g_b, -1) if vector else g_b


def matrix_exp_gradient(grad: Any, a: Any) -> Any:
    """The upper right of exp([[A^H, G], [0, A^H]])."""
    size = a.shape[-1]
    back = adjoint(a)
    above = F.cat([back, grad], -1)
    below = F.cat([F.zeros_like(back), back], -1)
    whole = F.linalg_matrix_exp(F.cat([above, below], -2))
    return F.narrow(F.narrow(whole, -2, 0, size), -1, size, size)


# ---- Fourier transforms


def fft_r2c_gradient(grad: Any, shape: Any, dim: Any, normalization: int, onesided: bool) -> Any:
    """Of a real input: the real part of the inverse transform."""
    if onesided:
        last = dim[-1] % len(shape)
        missing = shape[last] - grad.shape[last]
        grad = F.constant_pad_nd(grad, [0, 0] * (len(shape) - 1 - last) + [0, missing], 0)
    return F.real(F._fft_c2c(grad, dim, normalization, False))


def fft_c2r_gradient(grad: Any, dim: Any, normalization: int) -> Any:
    """Of half a spectrum: an element that stands for two counts twice."""
    found = F._fft_r2c(grad, dim, normalization, True)
    last = dim[-1] % grad.ndim
    weights = numpy.ones(found.shape[last], dtypes.real_of(found.dtype))
    weights[1 : 1 + grad.shape[last] - found.shape[last]] = 2
    shape = [1] * grad.ndim
    shape[last] = -1
    return found * grad._new(weights.reshape(shape))
