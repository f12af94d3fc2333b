"""cat, im2col and col2im, the gradient of unfold."""

from __future__ import annotations

from typing import Any

import numpy

from holdfast.compute import dtype as dtypes
from holdfast.compute.engines.layout.views import at
from holdfast.compute.engines.numpy.kernels import kernel
from holdfast.compute.ops.layers import windows
from holdfast.compute.ops.layout import patches, shapes
from holdfast.compute.ops.layout.assemble import joined_dtype
from holdfast.compute.ops.rules import normalize_dim


@kernel("cat")
def cat(tensors: Any, dim: int = 0) -> Any:
    shape = shapes.cat([t.shape for t in tensors], dim)
    kind, axis = joined_dtype(tensors), normalize_dim(dim, len(shape))
    real = [t for t in tensors if t.ndim == len(shape)]
    if all(t.dtype == kind for t in real):
        return numpy.concatenate(real, axis)
    return numpy.concatenate([t.astype(kind, copy=False) for t in real], axis)


@kernel("im2col")
def im2col(self: Any, kernel_size: Any, dilation: Any, padding: Any, stride: Any) -> Any:
    shape = patches.columns_shape(self.shape, kernel_size, dilation, padding, stride)
    high, wide = patches.patches(self.shape[-2:], kernel_size, dilation, padding, stride)
    out = numpy.zeros(
        (*self.shape[:-2], high.kernel, wide.kernel, high.outputs, wide.outputs), self.dtype
    )
    for row, rows, from_rows in windows.places(high):
        for column, cols, from_cols in windows.places(wide):
            out[..., row, column, rows, cols] = self[..., from_rows, from_cols]
    return out.reshape(shape)


@kernel("col2im")
def col2im(
    self: Any, output_size: Any, kernel_size: Any, dilation: Any, padding: Any, stride: Any
) -> Any:
    shape = patches.image_shape(self.shape, output_size, kernel_size, dilation, padding, stride)
    high, wide = patches.patches(shape[-2:], kernel_size, dilation, padding, stride)
    cut = self.reshape(*shape[:-2], high.kernel, wide.kernel, high.outputs, wide.outputs)
    out = numpy.zeros(shape, dtypes.working(self.dtype))
    for row, rows, into_rows in windows.places(high):
        for column, cols, into_cols in windows.places(wide):
            out[..., into_rows, into_cols] += cut[..., row, column, rows, cols]
    return out.astype(self.dtype, copy=False)


@kernel("unfold_backward")
def unfold_backward(grad_in: Any, input_sizes: Any, dim: int, size: int, step: int) -> Any:
    kind = dtypes.working(grad_in.dtype)
    made = numpy.zeros(input_sizes, kind)
    if not made.ndim:
        return (grad_in.reshape(()) if size else made).astype(grad_in.dtype)
    axis = normalize_dim(dim, made.ndim)
    count = grad_in.shape[axis]
    # One pass for each offset in a window: elements of one pass never overlap.
    for offset in range(size if count else 0):
        part = slice(offset, offset + (count - 1) * step + 1, step)
        made[at(axis, part)] += grad_in[..., offset]
    return made.astype(grad_in.dtype, copy=False)
