"""Gradients of matrix products and distances. Each is made of ops, so it can be differentiated
again.
"""

from __future__ import annotations

import math
from typing import Any

from holdfast.compute import functional as F
from holdfast.compute.ops.elementwise.complex_numbers import conjugate
from holdfast.compute.ops.layers import attention as _attention


def transposed(matrix: Any) -> Any:
    """Exchange rows and columns of every matrix of a batch."""
    return F.transpose(matrix, -2, -1)


def adjoint(matrix: Any) -> Any:
    """The conjugate transpose."""
    return conjugate(transposed(matrix))


def times(tensor: Any, number: Any) -> Any:
    """Multiply by a scalar, which is mostly 1."""
    return tensor if number == 1 else tensor * number


def matmul_first(grad: Any, ndim: int, other: Any) -> Any:
    """The gradient of `matmul` for its first argument, summed to its shape by the tape."""
    if other.ndim == 1:
        return F.unsqueeze(grad, -1) * conjugate(other)
    if ndim > 1:
        return F.matmul(grad, adjoint(other))
    if other.ndim == 2:
        return F.matmul(conjugate(other), grad)
    return F.squeeze(F.matmul(conjugate(other), F.unsqueeze(grad, -1)), -1)


def matmul_second(grad: Any, self: Any, ndim: int) -> Any:
    """The gradient of `matmul` for its second argument, summed to its shape by the tape."""
    if self.ndim == 1 and ndim == 1:
        return conjugate(self) * grad
    if self.ndim == 1:
        return F.unsqueeze(conjugate(self), -1) * F.unsqueeze(grad, -2)
    if ndim == 1:
        return F.matmul(F.reshape(grad, (-1,)), _rows(conjugate(self)))
    if ndim == 2 and self.ndim > 2:
        # One long product instead of a sum over the batch.
        rows, grad = _rows(self), _rows(grad)
        return F.matmul(adjoint(rows), grad)
    return F.matmul(adjoint(self), grad)


def _rows(tensor: Any) -> Any:
    return F.reshape(tensor, (math.prod(tensor.shape[:-1]), tensor.shape[-1]))


def linear_input(grad: Any, weight: Any) -> Any:
    """The gradient of `linear` for its input."""
    if weight.ndim == 1:
        return F.unsqueeze(grad, -1) * conjugate(weight)
    return F.matmul(grad, conjugate(weight))


def linear_weight(grad: Any, input: Any, ndim: int) -> Any:
    """The gradient of `linear` for its weight."""
    if ndim == 1:
        return matmul_second(grad, input, ndim)
    if input.ndim == 1:
        return F.unsqueeze(grad, -1) * conjugate(input)
    return F.mm(transposed(_rows(grad)), conjugate(_rows(input)))


def eye_like(grad: Any, shape: tuple[int, ...]) -> Any:
    """An identity matrix with the dtype and device of `grad`."""
    ones = grad._full(1, (tuple(shape), grad.dtype, grad.device))
    return F.triu(F.tril(ones))


def attention_mask_gradient(
    grad: Any, query: Any, key: Any, value: Any, causal: bool, mask: Any, scale: float | None
) -> Any:
    """The mask's gradient is that of the scores, to which it is added."""
    return _attention.slopes_of(grad, query, key, value, causal, mask, scale)[1]
