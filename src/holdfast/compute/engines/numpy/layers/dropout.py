"""Dropout and its backward op."""

from __future__ import annotations

from typing import Any

import numpy

from holdfast.compute import dtype as dtypes
from holdfast.compute.engines.numpy.kernels import cast, kernel, to_floating
from holdfast.compute.engines.numpy.random import bernoulli_p


@kernel("native_dropout")
def native_dropout(input: Any, p: float, train: Any) -> Any:
    if train is False or not input.size:
        return input.copy(), numpy.ones(input.shape, bool)
    if p == 1:
        return numpy.zeros_like(input), numpy.zeros(input.shape, bool)
    kept = bernoulli_p(numpy.empty_like(input, bool), 1 - p)
    return native_dropout_backward(input, kept, 1 / (1 - p)), kept


@kernel("native_dropout_backward")
def native_dropout_backward(grad_output: Any, mask: Any, scale: float) -> Any:
    wide = to_floating(grad_output)
    made = numpy.asarray(numpy.multiply(wide, mask))
    numpy.multiply(made, wide.dtype.type(scale), out=made)
    return cast(made, dtypes.with_fractions(grad_output.dtype))
