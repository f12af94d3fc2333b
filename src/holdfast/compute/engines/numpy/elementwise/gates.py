"""glu, which splits its input in halves, and rrelu, which draws random slopes."""

from __future__ import annotations

from typing import Any

import numpy

from holdfast.compute import dtype as dtypes
from holdfast.compute.engines.numpy.elementwise.activation import leaky_relu, sigmoid
from holdfast.compute.engines.numpy.kernels import kernel
from holdfast.compute.ops.rules import normalize_dim
from holdfast.compute.random import current


def _split_halves(self: Any, dim: int) -> tuple[Any, Any]:
    if not self.ndim:
        raise ValueError("a tensor without dimensions cannot be split")
    size = self.shape[dim]
    if size % 2:
        raise ValueError(f"dimension {dim} has size {size}, which is not even")
    kind = dtypes.working(self.dtype)
    first, second = numpy.split(self, 2, axis=dim)
    return first.astype(kind, copy=False), second.astype(kind, copy=False)


@kernel("glu")
def glu(self: Any, dim: int = -1) -> Any:
    values, gates = _split_halves(self, normalize_dim(dim, self.ndim))
    return (values * sigmoid(gates)).astype(self.dtype, copy=False)


@kernel("glu_backward")
def glu_backward(grad_output: Any, self: Any, dim: int) -> Any:
    values, gates = _split_halves(self, normalize_dim(dim, self.ndim))
    gates = sigmoid(gates)
    opened = grad_output * gates
    both = numpy.concatenate([opened, opened * values * (1 - gates)], axis=dim)
    return both.astype(self.dtype, copy=False)


@kernel("rrelu_with_noise")
def rrelu(
    self: Any, noise: Any, lower: Any = 0.125, upper: Any = 0.3333333333333333,
    training: bool = False,
) -> Any:  # fmt: skip
    if not training:
        return leaky_relu(self, (lower + upper) / 2)
    negative = self <= 0
    drawn = current().uniform64(int(numpy.count_nonzero(negative)))
    noise[...] = 1
    noise[negative] = drawn * (upper - lower) + lower
    return numpy.where(negative, self * noise, self)
