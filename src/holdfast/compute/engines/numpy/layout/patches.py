"""im2col and col2im, pixel and channel shuffles."""

from __future__ import annotations

from typing import Any

import numpy

from holdfast.compute import dtype as dtypes
from holdfast.compute.engines.numpy.kernels import kernel
from holdfast.compute.ops.layers import windows
from holdfast.compute.ops.layout import patches


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


@kernel("pixel_shuffle")
def pixel_shuffle(self: Any, upscale_factor: int) -> Any:
    shape = patches.shuffled_shape(self.shape, upscale_factor)
    outer, (height, width) = self.shape[:-3], self.shape[-2:]
    split = self.reshape(*outer, shape[-3], upscale_factor, upscale_factor, height, width)
    order = [*range(len(outer) + 1), *(len(outer) + i for i in (3, 1, 4, 2))]
    return split.transpose(order).copy().reshape(shape)


@kernel("pixel_unshuffle")
def pixel_unshuffle(self: Any, downscale_factor: int) -> Any:
    shape = patches.unshuffled_shape(self.shape, downscale_factor)
    outer, (height, width) = self.shape[:-3], shape[-2:]
    split = self.reshape(*outer, self.shape[-3], height, downscale_factor, width, downscale_factor)
    order = [*range(len(outer) + 1), *(len(outer) + i for i in (2, 4, 1, 3))]
    return split.transpose(order).copy().reshape(shape)


@kernel("channel_shuffle", "native_channel_shuffle")
def channel_shuffle(self: Any, groups: int) -> Any:
    if self.ndim < 3:
        raise ValueError(f"the input has {self.ndim} dimensions, it takes 3 or more")
    batch, channels, *rest = self.shape
    if groups < 1 or channels % groups:
        raise ValueError(f"{channels} channels cannot be split into {groups} groups")
    split = self.reshape(batch, groups, channels // groups, *rest)
    return split.swapaxes(1, 2).copy().reshape(self.shape)
