"""Softmax and log_softmax, forward and backward, in blocks that stay in the cache."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy

from holdfast.compute import dtype as dtypes
from holdfast.compute.engines.numpy.kernels import kernel, widen
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


def _result_dtype(self: Any, half_to_float: bool) -> Any:
    if half_to_float and self.dtype != dtypes.FLOAT16:
        raise TypeError(f"half_to_float is for float16, not {self.dtype}")
    if dtypes.category(self.dtype) != dtypes.FLOATING:
        raise TypeError(f"softmax takes floating-point numbers, not {self.dtype}; name a dtype")
    return dtypes.FLOAT32 if half_to_float else self.dtype


def _subtract_max(values: Any, target: Any) -> Any:
    """Subtract the maximum of the middle axis, into `target` if it has the working dtype."""
    top = numpy.maximum.reduce(values, axis=1, keepdims=True)
    return numpy.subtract(values, top, out=working_block(target, values.dtype))


def _softmax(self: Any, dim: int, half_to_float: bool, logarithm: bool) -> Any:
    kind = _result_dtype(self, half_to_float)
    quick = c_rows.softmax(self, dim, logarithm)
    if quick is not None:
        return quick
    values = to_three_axes(self, dim)
    made = numpy.empty(values.shape, kind)
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


@kernel("_softmax")
def softmax(self: Any, dim: int, half_to_float: bool = False) -> Any:
    return _softmax(self, dim, half_to_float, logarithm=False)


@kernel("_log_softmax")
def log_softmax(self: Any, dim: int, half_to_float: bool = False) -> Any:
    return _softmax(self, dim, half_to_float, logarithm=True)


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


@kernel("_softmax_backward_data")
def softmax_backward(grad_output: Any, output: Any, dim: int, input_dtype: Any) -> Any:
    kind = dtypes.dtype(input_dtype)
    quick = c_rows.softmax_backward(grad_output, output, dim, kind)
    if quick is not None:
        return quick
    grads, outs = to_three_axes(grad_output, dim), to_three_axes(output, dim)
    made = numpy.empty(grads.shape, kind)
    for part in _blocks(grads.shape):
        grad, out = widen(grads[part]), widen(outs[part])
        target = made[part]
        product = numpy.multiply(grad, out, out=working_block(target, grad.dtype))
        inner = numpy.add.reduce(product, axis=1, keepdims=True)
        store_block(target, numpy.subtract(product, numpy.multiply(out, inner), out=product))
    return made.reshape(grad_output.shape)


@kernel("_log_softmax_backward_data")
def log_softmax_backward(grad_output: Any, output: Any, dim: int, input_dtype: Any) -> Any:
    kind = dtypes.dtype(input_dtype)
    quick = c_rows.softmax_backward(grad_output, output, dim, kind, logarithm=True)
    if quick is not None:
        return quick
    grads, outs = to_three_axes(grad_output, dim), to_three_axes(output, dim)
    made = numpy.empty(grads.shape, kind)
    for part in _blocks(grads.shape):
        grad = widen(grads[part])
        share = numpy.exp(widen(outs[part]))
        numpy.multiply(share, numpy.add.reduce(grad, axis=1, keepdims=True), out=share)
        made[part] = numpy.subtract(grad, share, out=share)
    return made.reshape(grad_output.shape)
