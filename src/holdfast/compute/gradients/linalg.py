"""Gradients of factorizations, from the mathematics: A = L U, A = Q R, A = U S V^H …

Covers: what the lines of `ops.linalg`, `ops.norm` and `ops.fft` call.
Promise: each takes tensors and is made of ops, so that it can be differentiated again. `g` before
a name is the gradient of that.
"""

from __future__ import annotations

from typing import Any

import numpy

from holdfast.compute import dtype as formats
from holdfast.compute import functional as f
from holdfast.compute.gradients.matrix import adjoint, conjugate, eye_like, transposed


def _product(*matrices: Any) -> Any:
    found = matrices[-1]
    for matrix in reversed(matrices[:-1]):
        found = f.matmul(matrix, found)
    return found


def _column(vector: Any) -> Any:
    return f.unsqueeze(vector, -1)


def _diagonal(matrix: Any) -> Any:
    return f.diagonal(matrix, 0, -2, -1)


def _embedded(values: Any) -> Any:
    """A diagonal matrix."""
    return f.diag_embed(values)


def _identity(of: Any, size: int) -> Any:
    return eye_like(of, (size, size))


def _skew(matrix: Any) -> Any:
    return matrix - adjoint(matrix)


def _head(matrix: Any, dim: int, size: int) -> Any:
    return matrix if matrix.shape[dim] == size else f.narrow(matrix, dim, 0, size)


def _tail(matrix: Any, dim: int, start: int) -> Any:
    return f.narrow(matrix, dim, start, matrix.shape[dim] - start)


def _differences(values: Any) -> Any:
    """values[j] - values[i], with ones on the diagonal, where a quotient by it is not used."""
    found = f.unsqueeze(values, -2) - _column(values)
    return found + _identity(values, values.shape[-1])


def _without_diagonal(matrix: Any) -> Any:
    return f.tril(matrix, -1) + f.triu(matrix, 1)


# ---- LU, equations, determinants


def _divided_left(factor: Any, of: Any, upper: bool, unit: bool = False) -> Any:
    return f.linalg_solve_triangular(factor, of, upper=upper, unitriangular=unit)


def _divided_right(factor: Any, of: Any, upper: bool) -> Any:
    return f.linalg_solve_triangular(factor, of, upper=upper, left=False)


def lu_gradient(g_l: Any, g_u: Any, p: Any, lower: Any, upper: Any) -> Any:
    """Of A = P L U."""
    rows, columns = lower.shape[-2], upper.shape[-1]
    least = min(rows, columns)
    l1, u1 = _head(lower, -2, least), _head(upper, -1, least)
    for_l = f.matmul(adjoint(l1), _head(g_l, -2, least))
    for_u = f.matmul(_head(g_u, -1, least), adjoint(u1))
    if rows > least:
        for_u = for_u - f.matmul(adjoint(_tail(lower, -2, least)), _tail(g_l, -2, least))
    if columns > least:
        for_l = for_l - f.matmul(_tail(g_u, -1, least), adjoint(_tail(upper, -1, least)))
    inner = f.tril(for_l, -1) + f.triu(for_u)
    inner = _divided_right(adjoint(u1), inner, upper=False)
    if rows > least:
        below = _divided_right(adjoint(u1), _tail(g_l, -2, least), upper=False)
        found = f.cat([_divided_left(adjoint(l1), inner, True, True), below], -2)
        return f.matmul(p, found)
    if columns > least:
        inner = f.cat([inner, _tail(g_u, -1, least)], -1)
    return f.matmul(p, _divided_left(adjoint(l1), inner, True, True))


def lu_factor_gradient(grad: Any, lu: Any, pivots: Any) -> Any:
    """Of L and U in one matrix."""
    p, lower, upper = f.lu_unpack(lu, pivots)
    least = min(lu.shape[-2:])
    g_l, g_u = f.tril(_head(grad, -1, least), -1), f.triu(_head(grad, -2, least))
    return lu_gradient(g_l, g_u, p, lower, upper)


def lu_unpack_gradient(g_l: Any, g_u: Any, shape: Any) -> Any:
    """Back into one matrix."""
    rows, columns = shape[-2:]
    g_l, g_u = f.tril(g_l, -1), f.triu(g_u)
    if rows > columns:
        g_u = f.constant_pad_nd(g_u, [0, 0, 0, rows - columns], 0)
    elif columns > rows:
        g_l = f.constant_pad_nd(g_l, [0, columns - rows], 0)
    return g_l + g_u


def lu_solve_gradient(grad: Any, lu: Any, pivots: Any, x: Any, left: bool, adjoint_of: bool) -> Any:
    """Of the factors in A X = B, X A = B, and the same with A^H."""
    g_b = f.linalg_lu_solve(lu, pivots, grad, left=left, adjoint=not adjoint_of)
    first, second = (g_b, x) if left else (adjoint(x), adjoint(g_b))
    if adjoint_of:
        first, second = second, first
    g_a = -f.matmul(first, adjoint(second))
    p, lower, upper = f.lu_unpack(lu, pivots)
    moved = f.matmul(transposed(p), g_a)
    g_l = f.matmul(moved, adjoint(upper))
    return f.tril(g_l, -1) + f.triu(f.matmul(adjoint(lower), moved))


def _is_vector(a: Any, b: Any) -> bool:
    return b.ndim == 1 or (a.ndim - 1 == b.ndim and b.shape == a.shape[:-1])


def solve_gradient(grad: Any, a: Any, b: Any, x: Any, left: bool) -> Any:
    """Of A X = B, or X A = B."""
    vector = _is_vector(a, b)
    side, found = (_column(grad), _column(x)) if vector else (grad, x)
    g_b = f._linalg_solve_ex(adjoint(a), side, left=left)[0]
    g_a = -(f.matmul(g_b, adjoint(found)) if left else f.matmul(adjoint(found), g_b))
    return g_a, f.squeeze(g_b, -1) if vector else g_b


def det_gradient(grad: Any, a: Any, det: Any) -> Any:
    """The cofactors; by the singular values where there is no inverse."""
    if not a.shape[-1]:
        return a * 0
    if numpy.all(det.data != 0):
        scale = grad * conjugate(det)
        return f.unsqueeze(_column(scale), -1) * adjoint(f.linalg_inv_ex(a)[0])
    u, s, vh = f._linalg_svd(a)
    size = s.shape[-1]
    others = f.unsqueeze(s, -2) * (1 - _identity(s, size)) + _identity(s, size)
    scale = f._linalg_det(u)[0] * f._linalg_det(vh)[0]
    scale = grad * conjugate(scale)
    middle = f.prod(others, -1) * _column(scale)
    return f.matmul(u * f.unsqueeze(middle, -2), vh)


def slogdet_gradient(g_sign: Any, g_log: Any, a: Any, sign: Any) -> Any:
    """Of log |det A|, and of the phase where A is complex."""
    if formats.is_complex(a.dtype):
        turned = conjugate(g_sign) * sign
        g_log = g_log - 1j * f.imag(turned)
    return f.unsqueeze(_column(g_log), -1) * adjoint(f.linalg_inv_ex(a)[0])


def _triangle(matrix: Any, upper: bool, unit: bool) -> Any:
    return f.triu(matrix, int(unit)) if upper else f.tril(matrix, -int(unit))


def triangular_gradient(
    grad: Any, a: Any, x: Any, upper: bool, left: bool, unit: bool, mask: Any
) -> Any:
    """Of a triangular A in A X = B, or X A = B."""
    g_b = f.linalg_solve_triangular(
        adjoint(a), grad, upper=not upper, left=left, unitriangular=unit
    )
    if not mask[0]:
        return None, g_b
    g_a = -(f.matmul(g_b, adjoint(x)) if left else f.matmul(adjoint(x), g_b))
    return _triangle(g_a, upper, unit), g_b


def old_triangular_gradient(
    grads: Any, a: Any, x: Any, upper: bool, transpose: bool, unit: bool, mask: Any
) -> Any:
    """Of `triangular_solve`, which gives its coefficients back as well."""
    matrix = conjugate(a) if transpose else adjoint(a)
    g_b = _divided_left(matrix, grads[0], upper == transpose, unit)
    if not mask[1]:
        return g_b, None
    g_a = -f.matmul(g_b, adjoint(x))
    g_a = transposed(g_a) if transpose else g_a
    return g_b, _triangle(g_a, upper, unit) + grads[1]


# ---- Cholesky


def cholesky_gradient(grad: Any, factor: Any, upper: bool) -> Any:
    """Of A = L L^H."""
    if upper:
        grad, factor = adjoint(grad), adjoint(factor)
    inner = f.matmul(adjoint(factor), grad)
    low = f.tril(inner, -1)
    inner = low + adjoint(low) + f.tril(f.triu(inner))
    inner = _divided_left(adjoint(factor), inner, upper=True)
    return _divided_right(factor, inner, upper=False) * 0.5


def cholesky_inverse_gradient(grad: Any, factor: Any, inverse: Any, upper: bool) -> Any:
    """Of (L L^H)^-1."""
    common = -_product(inverse, grad + adjoint(grad), inverse)
    return f.matmul(factor, common) if upper else f.matmul(common, factor)


def cholesky_solve_gradient(grad: Any, factor: Any, x: Any, upper: bool) -> Any:
    """Of the factor in L L^H X = B."""
    common = -f.matmul(f.cholesky_solve(grad, factor, upper), adjoint(x))
    common = common + adjoint(common)
    return f.matmul(factor, common) if upper else f.matmul(common, factor)


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
    y = f.matmul(q, v)
    g_left = _tall_qr_gradient(g_q + f.matmul(y, adjoint(g_v)), _head(g_r, -1, rows), q, u)
    return f.cat([g_left, f.matmul(q, g_v)], -1)


def _tall_qr_gradient(g_q: Any, g_r: Any, q: Any, r: Any) -> Any:
    inner = f.matmul(r, adjoint(g_r)) - f.matmul(adjoint(g_q), q)
    low = f.tril(inner, -1)
    middle = f.tril(f.triu(inner))
    middle = (middle + adjoint(middle)) * 0.5
    found = g_q + f.matmul(q, low + adjoint(low) + middle)
    return _divided_right(adjoint(r), found, upper=False)


# ---- eigenvalues, singular values


def eigh_gradient(
    grads: Any, given: Any, a: Any, values: Any, vectors: Any, side: str, computed: bool
) -> Any:
    """Of A = V diag(w) V^H."""
    if not computed:
        vectors = f._linalg_eigh(a, side)[1]
    inner = _embedded(grads[0]).to(a.dtype)
    if computed and given[1]:
        turned = f.matmul(adjoint(vectors), grads[1])
        inner = inner + _without_diagonal(turned / _differences(values))
    found = _product(vectors, inner, adjoint(vectors))
    return (found + adjoint(found)) * 0.5


def eig_gradient(grads: Any, given: Any, a: Any, values: Any, vectors: Any) -> Any:
    """Of A = V diag(w) V^-1, where the columns of V have length 1."""
    inner = _embedded(grads[0])
    back = adjoint(vectors)
    if given[1]:
        turned = f.matmul(back, grads[1])
        length = f.unsqueeze(f.real(_diagonal(turned)), -2)
        turned = turned - f.matmul(back, vectors * length)
        inner = inner + _without_diagonal(turned / conjugate(_differences(values)))
    return f._linalg_solve_ex(back, f.matmul(inner, back))[0]


def eigvals_gradient(grad: Any, a: Any) -> Any:
    """Of the eigenvalues alone."""
    values, vectors = f.linalg_eig(a)
    return eig_gradient((grad, None), (True, False), a, values, vectors)


def svd_gradient(grads: Any, given: Any, a: Any, u: Any, s: Any, vh: Any, computed: bool) -> Any:
    """Of A = U diag(s) V^H, whatever signs or phases the vectors have."""
    count = s.shape[-1]
    if not computed:
        u, _, vh = f._linalg_svd(a)
        return f.matmul(u * f.unsqueeze(grads[1], -2), vh)
    u, vh = _head(u, -1, count), _head(vh, -2, count)
    g_u, g_vh = _head(grads[0], -1, count), _head(grads[2], -2, count)
    inner = _embedded(grads[1]).to(a.dtype)
    squares = _differences(s * s)
    if given[0]:
        turned = f.matmul(adjoint(u), g_u)
        inner = inner + _without_diagonal(_skew(turned) / squares) * f.unsqueeze(s, -2)
        if formats.is_complex(a.dtype):
            inner = inner + _embedded(1j * f.imag(_diagonal(turned)) / s)
    if given[2]:
        turned = f.matmul(vh, adjoint(g_vh))
        inner = inner + _column(s) * _without_diagonal(_skew(turned) / squares)
    found = _product(u, inner, vh)
    if given[0] and a.shape[-2] > count:
        rest = g_u - _product(u, adjoint(u), g_u)
        found = found + f.matmul(rest / f.unsqueeze(s, -2), vh)
    if given[2] and a.shape[-1] > count:
        rest = g_vh - _product(g_vh, adjoint(vh), vh)
        found = found + f.matmul(u, rest / _column(s))
    return found


def pinv_gradient(grad: Any, a: Any, p: Any) -> Any:
    """Of the pseudo-inverse, where the rank does not change."""
    g_h, p_h = adjoint(grad), adjoint(p)
    found = -_product(p_h, grad, p_h)
    right = _product(g_h, p, p_h)
    left = _product(p_h, p, g_h)
    found = found + right - _product(a, p, right)
    return found + left - f.matmul(f.matmul(left, p), a)


def lstsq_gradient(g_x: Any, g_rest: Any, given: Any, a: Any, b: Any, x: Any) -> Any:
    """Of the least squares, and of what is left over."""
    vector = _is_vector(a, b)
    side, found = (_column(b), _column(x)) if vector else (b, x)
    g_x = _column(g_x) if vector else g_x
    inverse = f.linalg_pinv(a, atol=None, rtol=None)
    g_a = pinv_gradient(f.matmul(g_x, adjoint(side)), a, inverse)
    g_b = f.matmul(adjoint(inverse), g_x)
    if given[1] and g_rest.numel():
        rest = (f.matmul(a, found) - side) * 2 * f.unsqueeze(g_rest, -2)
        g_a, g_b = g_a + f.matmul(rest, adjoint(found)), g_b - rest
    return g_a, f.squeeze(g_b, -1) if vector else g_b


def matrix_exp_gradient(grad: Any, a: Any) -> Any:
    """The upper right of exp([[A^H, G], [0, A^H]])."""
    size = a.shape[-1]
    back = adjoint(a)
    above = f.cat([back, grad], -1)
    below = f.cat([f.zeros_like(back), back], -1)
    whole = f.linalg_matrix_exp(f.cat([above, below], -2))
    return f.narrow(f.narrow(whole, -2, 0, size), -1, size, size)


# ---- norms


def vector_norm_gradient(grad: Any, x: Any, norm: Any, order: Any, dim: Any, keepdim: bool) -> Any:
    """0 where the norm has no gradient, as torch has it."""
    from holdfast.compute.gradients.shared import unreduced

    grad = unreduced(grad, x.shape, dim, keepdim)
    norm = unreduced(norm, x.shape, dim, keepdim)
    if order == 0:
        return f.zeros_like(x)
    if order == 1:
        return f.sgn(x) * grad
    if order == 2:
        return f.masked_fill(x * (grad / norm), f.eq(norm, 0), 0)
    size = f.abs(x)
    if order in (float("inf"), float("-inf")):
        largest = f.eq(size, norm).to(grad.dtype)
        axes = list(range(x.ndim)) if dim is None or dim == [] else dim
        count = f.sum(largest, axes, keepdim=True) if x.ndim else largest
        return f.sgn(x) * (largest / count * grad)
    slope = f.sgn(x) * f.pow(size, order - 1) * (grad * f.pow(norm, 1 - order))
    return f.masked_fill(slope, f.eq(norm if order > 1 else x, 0), 0)


# ---- Fourier transforms


def fft_r2c_gradient(grad: Any, shape: Any, dim: Any, normalization: int, onesided: bool) -> Any:
    """Of real numbers: the transform back, of which the real part counts."""
    if onesided:
        last = dim[-1] % len(shape)
        missing = shape[last] - grad.shape[last]
        grad = f.constant_pad_nd(grad, [0, 0] * (len(shape) - 1 - last) + [0, missing], 0)
    return f.real(f._fft_c2c(grad, dim, normalization, False))


def fft_c2r_gradient(grad: Any, dim: Any, normalization: int) -> Any:
    """Of half a signal: what stands for two numbers counts twice."""
    found = f._fft_r2c(grad, dim, normalization, True)
    last = dim[-1] % grad.ndim
    weights = numpy.ones(found.shape[last], formats.real_of(found.dtype))
    weights[1 : 1 + grad.shape[last] - found.shape[last]] = 2
    shape = [1] * grad.ndim
    shape[last] = -1
    return found * grad._new(weights.reshape(shape))
