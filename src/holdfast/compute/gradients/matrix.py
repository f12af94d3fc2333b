"""Gradients of matrix products that take more than a line.

Promise: each takes tensors and is made of ops, so that it can be differentiated again.
"""

from __future__ import annotations

import math
from typing import Any

from holdfast.compute import dtype as formats
from holdfast.compute import functional as f


def transposed(matrix: Any) -> Any:
    """Rows and columns exchanged, of every matrix of a batch."""
    return f.transpose(matrix, -2, -1)


def adjoint(matrix: Any) -> Any:
    """Transposed and conjugated."""
    flipped = f.transpose(matrix, -2, -1)
    return f._conj(flipped) if formats.is_complex(matrix.dtype) else flipped


def conjugate(value: Any) -> Any:
    """The complex conjugate; real numbers are their own."""
    return f._conj(value) if formats.is_complex(value.dtype) else value


def times(tensor: Any, number: Any) -> Any:
    """The product with a number, which is mostly 1."""
    return tensor if number == 1 else tensor * number


def matmul_first(grad: Any, self: Any, other: Any) -> Any:
    """The gradient of `matmul` for its first argument, summed to its shape by the tape."""
    if other.ndim == 1:
        return f.unsqueeze(grad, -1) * conjugate(other)
    if self.ndim > 1:
        return f.matmul(grad, adjoint(other))
    if other.ndim == 2:
        return f.matmul(conjugate(other), grad)
    return f.squeeze(f.matmul(conjugate(other), f.unsqueeze(grad, -1)), -1)


def matmul_second(grad: Any, self: Any, other: Any) -> Any:
    """The gradient of `matmul` for its second argument, summed to its shape by the tape."""
    if self.ndim == 1 and other.ndim == 1:
        return conjugate(self) * grad
    if self.ndim == 1:
        return f.unsqueeze(conjugate(self), -1) * f.unsqueeze(grad, -2)
    if other.ndim == 1:
        return f.matmul(f.reshape(grad, (-1,)), _rows(conjugate(self)))
    if other.ndim == 2 and self.ndim > 2:
        # One long product instead of a sum over the batch.
        rows, grad = _rows(self), _rows(grad)
        return f.matmul(adjoint(rows), grad)
    return f.matmul(adjoint(self), grad)


def _rows(tensor: Any) -> Any:
    return f.reshape(tensor, (math.prod(tensor.shape[:-1]), tensor.shape[-1]))


def linear_input(grad: Any, weight: Any) -> Any:
    """The gradient of `linear` for its input."""
    if weight.ndim == 1:
        return f.unsqueeze(grad, -1) * conjugate(weight)
    return f.matmul(grad, conjugate(weight))


def linear_weight(grad: Any, input: Any, weight: Any) -> Any:
    """The gradient of `linear` for its weight."""
    if weight.ndim == 1:
        return matmul_second(grad, input, weight)
    if input.ndim == 1:
        return f.unsqueeze(grad, -1) * conjugate(input)
    return f.mm(transposed(_rows(grad)), conjugate(_rows(input)))


def eye_like(grad: Any, shape: tuple[int, ...]) -> Any:
    """Ones on the diagonal of a matrix, in the format and place of `grad`."""
    ones = grad._filled(1, (tuple(shape), grad.dtype, grad.device))
    return f.triu(f.tril(ones))


def blocks_of(grad: Any, tensors: Any) -> list[Any]:
    """The parts of a matrix that `block_diag` put there."""
    found, row, column = [], 0, 0
    for tensor in tensors:
        rows, columns = (1, 1, *tensor.shape)[-2:]
        part = f.narrow(f.narrow(grad, 0, row, rows), 1, column, columns)
        found.append(f.reshape(part, tensor.shape))
        row, column = row + rows, column + columns
    return found
