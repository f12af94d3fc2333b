"""cat, im2col and col2im, the gradient of unfold."""

from __future__ import annotations

import math
from typing import Any

import numpy

from holdfast.compute.engines.layout.assemble import constant_pad
from holdfast.compute.engines.layout.views import at
from holdfast.compute.engines.opencl.conv.resample import Axis, axis_of, combine, transpose_axis
from holdfast.compute.engines.opencl.layout.views import make_full, move_dim
from holdfast.compute.engines.opencl.runtime.array import Array
from holdfast.compute.engines.opencl.runtime.engine_protocol import CLEngine
from holdfast.compute.engines.opencl.runtime.kernel_table import kernel
from holdfast.compute.ops.layers import windows
from holdfast.compute.ops.layout import patches, shapes
from holdfast.compute.ops.layout.assemble import joined_dtype
from holdfast.compute.ops.rules import normalize_dim


@kernel("cat")
def cat(engine: CLEngine, tensors: Any, dim: int = 0) -> Array:
    shape = shapes.cat([t.shape for t in tensors], dim)
    axis = normalize_dim(dim, len(shape))
    made = engine.alloc(shape, joined_dtype(tensors))
    begin = 0
    for one in tensors:
        if one.ndim != len(shape):
            continue  # torch accepts an empty tensor of any shape
        end = begin + one.shape[axis]
        made[at(axis, slice(begin, end))] = one
        begin = end
    return made


# ---- patches


@kernel("im2col")
def im2col(
    engine: CLEngine, self: Array, kernel_size: Any, dilation: Any, padding: Any, stride: Any
) -> Array:
    shape = patches.columns_shape(self.shape, kernel_size, dilation, padding, stride)
    along = patches.patches(self.shape[-2:], kernel_size, dilation, padding, stride)
    around = [side for one in reversed(along) for side in (one.padding, one.padding)]
    whole = constant_pad(self, around) if any(around) else self
    sizes = [one.kernel for one in along] + [one.outputs for one in along]
    steps = whole.strides[-2:]
    strides = [s * one.dilation for s, one in zip(steps, along, strict=True)]
    strides += [s * one.stride for s, one in zip(steps, along, strict=True)]
    view = whole.view(self.dtype, (*self.shape[:-2], *sizes), (*whole.strides[:-2], *strides))
    return view.copy().view(self.dtype, shape)


@kernel("col2im")
def col2im(
    engine: CLEngine, self: Array, output_size: Any, kernel_size: Any, dilation: Any,
    padding: Any, stride: Any,
) -> Array:  # fmt: skip
    shape = patches.image_shape(self.shape, output_size, kernel_size, dilation, padding, stride)
    high, wide = patches.patches(shape[-2:], kernel_size, dilation, padding, stride)
    lead = shape[:-2]
    sizes = (high.kernel, wide.kernel, high.outputs, wide.outputs)
    split = self.reshape((*lead, *sizes))
    order = [*range(len(lead)), *(len(lead) + i for i in (0, 2, 1, 3))]
    merged = (*lead, high.kernel * high.outputs, wide.kernel * wide.outputs)
    whole = split.transpose(order).copy().view(self.dtype, merged)
    return combine(engine, whole, [_overlap_axis(high), _overlap_axis(wide)])


def _overlap_axis(window: windows.Window) -> Axis:
    """The adjoint axis: for each input index, the (kernel offset, window) pairs that read it."""
    offset = numpy.arange(window.kernel)[:, None] * window.dilation - window.padding
    positions = offset + numpy.arange(window.outputs) * window.stride
    return transpose_axis(axis_of(positions.reshape(-1, 1)), window.size)


@kernel("unfold_backward")
def unfold_backward(
    engine: CLEngine, grad_in: Array, input_sizes: Any, dim: int, size: int, step: int
) -> Array:
    shape = tuple(input_sizes)
    if not shape:
        if size:
            return grad_in.copy().view(grad_in.dtype, ())
        return make_full(engine, (), grad_in.dtype)
    axis = normalize_dim(dim, len(shape))
    count = grad_in.shape[axis]
    if not count * size or not math.prod(shape):
        return make_full(engine, shape, grad_in.dtype)
    side_by_side = move_dim(grad_in, grad_in.ndim - 1, axis + 1)
    outer, inner = math.prod(shape[:axis]), math.prod(shape[axis + 1 :])
    flat = side_by_side.reshape((outer, count * size, inner))
    targets = numpy.arange(count)[:, None] * step + numpy.arange(size)
    folded = transpose_axis(axis_of(targets.reshape(-1, 1)), shape[axis])
    lines = axis_of(numpy.arange(inner)[:, None])
    return combine(engine, flat, [folded, lines]).view(grad_in.dtype, shape)
