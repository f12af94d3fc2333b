"""Softmax, its logarithm, and their gradients.

Promise: a few passes over blocks that stay in the cache; narrow floats are computed in float32.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy

from holdfast.compute import dtype as formats
from holdfast.compute.engines.numpy import rows
from holdfast.compute.engines.numpy.kernels import kernel, widened
from holdfast.compute.engines.numpy.reducing import BLOCK, place, settle, sheets, spans


def _parts(shape: tuple[int, ...]) -> Iterator[tuple[slice, slice, slice]]:
    """Blocks of (before, dim, after) that hold the middle axis whole."""
    before, size, after = shape
    every = slice(None)
    if size * after <= BLOCK or after == 1:
        for some in spans(before, size * after):
            yield some, every, every
        return
    for row in range(before):
        for columns in spans(after, size):
            yield slice(row, row + 1), every, columns


def _kind(self: Any, half_to_float: bool) -> Any:
    if half_to_float and self.dtype != formats.FLOAT16:
        raise TypeError(f"half_to_float is for float16, not {self.dtype}")
    if formats.category(self.dtype) != formats.FLOATING:
        raise TypeError(f"softmax takes floating-point numbers, not {self.dtype}; name a dtype")
    return formats.FLOAT32 if half_to_float else self.dtype


def _below(values: Any, target: Any) -> Any:
    """Distances from the largest number along the middle axis, in `target` if it can hold them."""
    top = numpy.maximum.reduce(values, axis=1, keepdims=True)
    return numpy.subtract(values, top, out=place(target, values.dtype))


@kernel("_softmax")
def softmax(self: Any, dim: int, half_to_float: bool = False) -> Any:
    kind = _kind(self, half_to_float)
    quick = rows.softmax(self, dim)
    if quick is not None:
        return quick
    values = sheets(self, dim)
    made = numpy.empty(values.shape, kind)
    if not values.size:
        return made.reshape(self.shape)
    with numpy.errstate(invalid="ignore"):
        for part in _parts(values.shape):
            target = made[part]
            block = _below(widened(values[part]), target)
            numpy.exp(block, out=block)
            numpy.divide(block, numpy.add.reduce(block, axis=1, keepdims=True), out=block)
            settle(target, block)
    return made.reshape(self.shape)


@kernel("_log_softmax")
def log_softmax(self: Any, dim: int, half_to_float: bool = False) -> Any:
    kind = _kind(self, half_to_float)
    quick = rows.softmax(self, dim, logarithm=True)
    if quick is not None:
        return quick
    values = sheets(self, dim)
    made = numpy.empty(values.shape, kind)
    if not values.size:
        return made.reshape(self.shape)
    with numpy.errstate(invalid="ignore"):
        for part in _parts(values.shape):
            target = made[part]
            block = _below(widened(values[part]), target)
            added = numpy.add.reduce(numpy.exp(block), axis=1, keepdims=True)
            numpy.subtract(block, numpy.log(added, out=added), out=block)
            settle(target, block)
    return made.reshape(self.shape)


@kernel("_safe_softmax")
def safe_softmax(self: Any, dim: int, dtype: Any = None) -> Any:
    """As softmax, with zeros where everything is minus infinity."""
    kind = formats.asked(dtype, self.dtype)
    self = self.astype(kind, copy=False)
    made = softmax(self, dim)
    found = sheets(made, dim)
    hidden = numpy.isneginf(sheets(widened(self), dim)).all(axis=1, keepdims=True)
    if hidden.any():
        numpy.copyto(found, found.dtype.type(0), where=hidden)
    return made


@kernel("_softmax_backward_data")
def softmax_backward(grad_output: Any, output: Any, dim: int, input_dtype: Any) -> Any:
    kind = formats.dtype(input_dtype)
    quick = rows.softmax_backward(grad_output, output, dim, kind)
    if quick is not None:
        return quick
    grads, outs = sheets(grad_output, dim), sheets(output, dim)
    made = numpy.empty(grads.shape, kind)
    for part in _parts(grads.shape):
        grad, out = widened(grads[part]), widened(outs[part])
        target = made[part]
        product = numpy.multiply(grad, out, out=place(target, grad.dtype))
        inner = numpy.add.reduce(product, axis=1, keepdims=True)
        settle(target, numpy.subtract(product, numpy.multiply(out, inner), out=product))
    return made.reshape(grad_output.shape)


@kernel("_log_softmax_backward_data")
def log_softmax_backward(grad_output: Any, output: Any, dim: int, input_dtype: Any) -> Any:
    kind = formats.dtype(input_dtype)
    quick = rows.softmax_backward(grad_output, output, dim, kind, logarithm=True)
    if quick is not None:
        return quick
    grads, outs = sheets(grad_output, dim), sheets(output, dim)
    made = numpy.empty(grads.shape, kind)
    for part in _parts(grads.shape):
        grad = widened(grads[part])
        share = numpy.exp(widened(outs[part]))
        numpy.multiply(share, numpy.add.reduce(grad, axis=1, keepdims=True), out=share)
        made[part] = numpy.subtract(grad, share, out=share)
    return made.reshape(grad_output.shape)
