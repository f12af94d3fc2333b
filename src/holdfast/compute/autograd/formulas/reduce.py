"""Gradients of reductions, cumulative ops and norms. Each can be differentiated again."""

from __future__ import annotations

import math
from typing import Any

import numpy

from holdfast.compute import dtype as dtypes
from holdfast.compute import functional as F
from holdfast.compute.ops.elementwise.complex_numbers import conjugate
from holdfast.compute.ops.rules import normalize_dim, normalize_dims


def restore_dims(value: Any, ndim: int, dim: Any, keepdim: bool) -> Any:
    """Restore the dimensions of size 1 that a reduction dropped."""
    if keepdim or not ndim:
        return value
    for axis in sorted(normalize_dims(dim, ndim)):
        value = F.unsqueeze(value, axis)
    return value


def spread(grad: Any, shape: tuple[int, ...], dim: Any, keepdim: bool) -> Any:
    """Expand a reduction's gradient over everything that was reduced."""
    return F.expand(restore_dims(grad, len(shape), dim, keepdim), shape)


def size_over(shape: tuple[int, ...], dim: Any) -> int:
    """The number of elements in each result of a reduction."""
    return math.prod(shape[axis] for axis in normalize_dims(dim, len(shape))) if shape else 1


def split_among_equals(grad: Any, self: Any, result: Any, dim: Any, keepdim: bool) -> Any:
    """Split an extreme's gradient equally among all elements equal to it."""
    result = restore_dims(result.detach(), self.ndim, dim, keepdim)
    chosen = F.eq(self.detach(), result)
    if dtypes.category(self.dtype) >= dtypes.FLOATING:
        chosen = F.logical_or(chosen, F.logical_and(F.isnan(result), F.isnan(self.detach())))
    count = F.sum(chosen, list(normalize_dims(dim, self.ndim)), True)
    return restore_dims(grad, self.ndim, dim, keepdim) * chosen / count


def gather_chosen(grad: Any, dim: int, indices: Any, keepdim: bool) -> Any:
    """Take the elements that a reduction chose from a gradient in the shape of its input."""
    if keepdim or not grad.ndim:
        return F.gather(grad, dim, indices)
    axis = normalize_dim(dim, grad.ndim)
    return F.squeeze(F.gather(grad, axis, F.unsqueeze(indices, axis)), axis)


def var_gradient(grad: Any, self: Any, dim: Any, correction: Any, keepdim: bool) -> Any:
    """Of a variance."""
    left = size_over(self.shape, dim) - (1 if correction is None else correction)
    apart = self - F.mean(self, list(normalize_dims(dim, self.ndim)), True)
    scale = 2 / left if left > 0 else (math.inf if left == 0 else 2 / left)
    return restore_dims(grad, self.ndim, dim, keepdim) * apart * scale


def sqrt_grad(grad: Any, result: Any) -> Any:
    """The gradient of a square root for its argument; 0 where that is 0, as in torch."""
    return F.masked_fill(grad / (result * 2), F.eq(result, 0), 0)


def logsumexp_gradient(grad: Any, self: Any, result: Any, dim: Any, keepdim: bool) -> Any:
    result = restore_dims(result, self.ndim, dim, keepdim)
    grad = restore_dims(grad, self.ndim, dim, keepdim)
    return grad * conjugate(F.exp(self - result))


# ---- products


def _zero_free(tensor: Any) -> bool:
    return int(numpy.count_nonzero(tensor.data)) == tensor.numel()


def prod_gradient(grad: Any, self: Any, result: Any, dim: Any, keepdim: bool) -> Any:
    """The product of the other factors, also where some are 0."""
    if _zero_free(self):
        value = restore_dims(grad * conjugate(result), self.ndim, dim, keepdim)
        return value / conjugate(self)
    if not self.ndim:
        return grad
    if dim is None:
        flat = F.reshape(self, [-1])
        return F.reshape(grad * conjugate(_others(flat, 0)), self.shape)
    others = _others(self, normalize_dim(dim, self.ndim))
    return restore_dims(grad, self.ndim, dim, keepdim) * conjugate(others)


def _others(self: Any, axis: int) -> Any:
    """For every element the product of all others along an axis."""
    size = self.shape[axis]
    if size <= 1:
        return F.ones_like(self)
    first = F.ones_like(F.narrow(self, axis, 0, 1))
    before = F.cumprod(F.cat([first, F.narrow(self, axis, 0, size - 1)], axis), axis)
    rest = F.flip(F.narrow(self, axis, 1, size - 1), [axis])
    after = F.flip(F.cumprod(F.cat([first, rest], axis), axis), [axis])
    return before * after


def cumprod_gradient(grad: Any, self: Any, result: Any, dim: int) -> Any:
    if not self.ndim or not self.numel():
        return grad
    axis = normalize_dim(dim, self.ndim)
    if _zero_free(self):
        return reverse_cumsum(grad * conjugate(result), axis) / conjugate(self)
    size = self.shape[axis]
    # s[k] sums the terms after index k: s[k] = grad[k] + x[k + 1] * s[k + 1].
    tail = F.narrow(grad, axis, size - 1, 1)
    tails = [tail]
    for place in range(size - 2, -1, -1):
        tail = F.narrow(grad, axis, place, 1) + conjugate(F.narrow(self, axis, place + 1, 1)) * tail
        tails.append(tail)
    first = F.ones_like(F.narrow(self, axis, 0, 1))
    before = F.cat([first, F.narrow(result, axis, 0, size - 1)], axis)
    return F.cat(tails[::-1], axis) * conjugate(before)


# ---- running sums


def reverse_cumsum(grad: Any, dim: int) -> Any:
    """Sums from each element to the end."""
    if not grad.ndim or not grad.numel():
        return grad
    axis = normalize_dim(dim, grad.ndim)
    return F.flip(F.cumsum(F.flip(grad, [axis]), axis), [axis])


def scatter_sum(grad: Any, shape: tuple[int, ...], dim: int, indices: Any) -> Any:
    """Add gradients at the indices they came from."""
    if not shape:
        return grad
    return F.scatter_add(F.new_zeros(grad, shape), dim, indices, grad)


def logcumsumexp_gradient(grad: Any, self: Any, result: Any, dim: int) -> Any:
    """Of cumulative sums of exponentials, in logarithms to avoid overflow."""
    if not self.ndim or not self.numel():
        return grad
    axis = normalize_dim(dim, self.ndim)
    low = F.full_like(grad, -math.inf)

    def part(sign: int) -> Any:
        logged = F.where(F.gt(grad * sign, 0), F.log(F.abs(grad)), low)
        running = F.flip(F.logcumsumexp(F.flip(logged - result, [axis]), axis), [axis])
        return F.exp(running + self)

    return part(1) - part(-1)


# ---- norms


def norm_gradient(grad: Any, self: Any, p: Any, result: Any, dim: Any, keepdim: bool) -> Any:
    """Of a p-norm over dimensions; 0 where the norm is 0, as in torch."""
    power = 2.0 if p is None else float(p)
    grad = restore_dims(grad, self.ndim, dim, keepdim)
    norm = restore_dims(result, self.ndim, dim, keepdim)
    if power == 0:
        return F.zeros_like(self)
    if power == 1:
        return F.sgn(self) * grad
    if power == 2:
        return grad * F.masked_fill(self / norm, F.eq(norm, 0), 0)
    if math.isinf(power):
        size = F.abs(self)
        found = F.logical_or(F.eq(size, norm), F.isnan(norm) * F.isnan(size))
        count = F.sum(found, list(normalize_dims(dim, self.ndim)), True)
        return F.sgn(self) * (grad * found / count)
    if power < 1:
        inner = F.sgn(self) * F.masked_fill(F.pow(F.abs(self), power - 1), F.eq(self, 0), 0)
        return inner * grad * F.pow(norm, 1 - power)
    scale = F.masked_fill(grad / F.pow(norm, power - 1), F.eq(norm, 0), 0)
    if power < 2:
        return F.sgn(self) * F.pow(F.abs(self), power - 1) * scale
    return self * F.pow(F.abs(self), power - 2) * scale


def euclidean_gradient(grad: Any, one: Any, other: Any, result: Any) -> Any:
    """Of distances between all rows, for the first argument."""
    ratio = F.masked_fill(grad / result, F.eq(result, 0), 0)
    return one * F.sum(ratio, [-1], True) - F.matmul(ratio, other)


def embedding_double_backward(grad: Any, indices: Any, padding_idx: int, by_frequency: bool) -> Any:
    """Of an embedding's backward: look up the same rows in the gradient."""
    found = F.embedding(grad, indices)
    if by_frequency:
        flat = indices.data.reshape(-1)
        counts = numpy.bincount(flat, minlength=1)[flat].reshape(indices.shape)
        found = found / found._new(counts[..., None])
    if padding_idx >= 0:
        found = F.masked_fill(found, F.unsqueeze(F.eq(indices, padding_idx), -1), 0)
    return found
