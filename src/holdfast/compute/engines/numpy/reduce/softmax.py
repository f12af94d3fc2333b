"""Softmax and log_softmax, forward and backward, in blocks that stay in the cache."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import numpy

from holdfast.compute import dtype as dtypes
from holdfast.compute.engines.numpy.kernels import kernel, register, widen
from holdfast.compute.engines.numpy.reduce import c_rows
from holdfast.compute.engines.numpy.reduce.axes import (
    BLOCK,
    spans,
    store_block,
    to_three_axes,
    working_block,
)


def _blocks(shape: tuple[int, ...]) -> Iterator[tuple[slice, slice, slice]]:
    """Blocks of (before, dim, after) that contain the whole middle axis."""
    before, size, after = shape
    every = slice(None)
    if size * after <= BLOCK or after == 1:
        for some in spans(before, size * after):
            yield some, every, every
        return
    for row in range(before):
        for columns in spans(after, size):
            yield slice(row, row + 1), every, columns


def _subtract_max(values: Any, target: Any) -> Any:
    """Subtract the maximum of the middle axis, into `target` if it has the working dtype."""
    top = numpy.maximum.reduce(values, axis=1, keepdims=True)
    return numpy.subtract(values, top, out=working_block(target, values.dtype))


def _softmax(logarithm: bool, self: Any, dim: int, half_to_float: bool = False) -> Any:
    quick = c_rows.softmax(self, dim, logarithm)
    if quick is not None:
        return quick
    values = to_three_axes(self, dim)
    made = numpy.empty(values.shape, dtypes.FLOAT32 if half_to_float else self.dtype)
    if not values.size:
        return made.reshape(self.shape)
    with numpy.errstate(invalid="ignore"):
        for part in _blocks(values.shape):
            target = made[part]
            block = _subtract_max(widen(values[part]), target)
            if logarithm:
                added = numpy.add.reduce(numpy.exp(block), axis=1, keepdims=True)
                numpy.subtract(block, numpy.log(added, out=added), out=block)
            else:
                numpy.exp(block, out=block)
                numpy.divide(block, numpy.add.reduce(block, axis=1, keepdims=True), out=block)
            store_block(target, block)
    return made.reshape(self.shape)


softmax, log_softmax = (functools.partial(_softmax, logarithm) for logarithm in (False, True))
register("_softmax", softmax)
register("_log_softmax", log_softmax)


@kernel("_safe_softmax")
def safe_softmax(self: Any, dim: int, dtype: Any = None) -> Any:
    """Softmax, with zeros for rows that are all minus infinity."""
    kind = dtypes.dtype_or(dtype, self.dtype)
    self = self.astype(kind, copy=False)
    made = softmax(self, dim)
    found = to_three_axes(made, dim)
    hidden = numpy.isneginf(to_three_axes(widen(self), dim)).all(axis=1, keepdims=True)
    if hidden.any():
        numpy.copyto(found, found.dtype.type(0), where=hidden)
    return made


def _backward(logarithm: bool, grad_output: Any, output: Any, dim: int, input_dtype: Any) -> Any:
    kind = dtypes.dtype(input_dtype)
    quick = c_rows.softmax_backward(grad_output, output, dim, kind, logarithm)
    if quick is not None:
        return quick
    grads, outs = to_three_axes(grad_output, dim), to_three_axes(output, dim)
    made = numpy.empty(grads.shape, kind)
    for part in _blocks(grads.shape):
        grad, out = widen(grads[part]), widen(outs[part])
        if logarithm:
            share = numpy.exp(out)
            numpy.multiply(share, numpy.add.reduce(grad, axis=1, keepdims=True), out=share)
            made[part] = numpy.subtract(grad, share, out=share)
            continue
        target = made[part]
        product = numpy.multiply(grad, out, out=working_block(target, grad.dtype))
        inner = numpy.add.reduce(product, axis=1, keepdims=True)
        store_block(target, numpy.subtract(product, numpy.multiply(out, inner), out=product))
    return made.reshape(grad_output.shape)


softmax_backward, log_softmax_backward = (
    functools.partial(_backward, logarithm) for logarithm in (False, True)
)
register("_softmax_backward_data", softmax_backward)
register("_log_softmax_backward_data", log_softmax_backward)
