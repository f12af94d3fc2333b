"""Kernels that join and reorder arrays: cat, stack, repeat, flip, roll, im2col, pixel_shuffle."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy

from holdfast.compute.engines.opencl.conv.resample import Axis, axis_of, combine, transpose_axis
from holdfast.compute.engines.opencl.layout.padding import constant_pad
from holdfast.compute.engines.opencl.layout.views import (
    diagonal,
    make_copy,
    make_full,
    move_dim,
    select_index,
    slice_dim,
    to_shape,
)
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
        engine.write(slice_dim(made, axis, slice(begin, end)), one)
        begin = end
    return made


@kernel("stack")
def stack(engine: CLEngine, tensors: Any, dim: int = 0) -> Array:
    shape = shapes.stack([t.shape for t in tensors], dim)
    made = engine.alloc(shape, joined_dtype(tensors))
    axis = shapes.new_dim(dim, len(shape) - 1)
    for index, one in enumerate(tensors):
        engine.write(select_index(made, axis, index), one)
    return made


@kernel("_chunk_cat")
def chunk_cat(engine: CLEngine, tensors: Any, dim: int, num_chunks: int) -> Array:
    """Each tensor split into `num_chunks` flat chunks padded with zeros, concatenated per chunk."""
    if num_chunks < 1 or not tensors or not all(one.size for one in tensors):
        raise ValueError("non-empty tensors and at least one chunk are needed")
    parts = []
    for one in tensors:
        axis = normalize_dim(dim, one.ndim)
        length = -(-one.shape[axis] // num_chunks)
        made = make_full(
            engine, shapes.replace_size(one.shape, axis, num_chunks * length), one.dtype
        )
        engine.write(slice_dim(made, axis, slice(0, one.shape[axis])), one)
        lead = one.shape[:axis]
        rest = made.size // (math.prod(lead) * num_chunks)
        parts.append(made.view(one.dtype, (*lead, num_chunks, rest)))
    return cat(engine, parts, -1)


@kernel("repeat")
def repeat(engine: CLEngine, self: Array, repeats: Any) -> Array:
    shape, times = shapes.repeat(self.shape, repeats), shapes.as_list(repeats)
    made = engine.alloc(shape, self.dtype)
    if not made.size:
        return made
    own = (1,) * (len(times) - self.ndim) + self.shape
    steps = (0,) * (len(times) - self.ndim) + self.strides
    pairs = [n for pair in zip(times, own, strict=True) for n in pair]
    spread = [s for step in steps for s in (0, step)]
    engine.write(
        made.view(self.dtype, tuple(pairs)), self.view(self.dtype, tuple(pairs), tuple(spread))
    )
    return made


# ---- reordering


def _reverse(array: Array, dims: list[int]) -> Array:
    """A view with negative strides, which torch tensors cannot have: only to copy from."""
    for dim in dims if array.size and array.ndim else ():
        array = slice_dim(array, dim, slice(array.shape[dim] - 1, -1, -1))
    return array


@kernel("flip")
def flip(engine: CLEngine, self: Array, dims: Any) -> Array:
    axes = [normalize_dim(d, self.ndim) for d in shapes.as_list(dims)]
    if len(set(axes)) != len(axes):
        raise ValueError(f"{dims} names a dimension twice")
    return make_copy(engine, _reverse(self, axes))


@kernel("roll")
def roll(engine: CLEngine, self: Array, shifts: Any, dims: Any = ()) -> Array:
    by, axes = shapes.as_list(shifts), shapes.as_list(dims)
    if not axes and len(by) == 1:
        flat = to_shape(engine, self, (self.size,))
        return _roll(engine, flat, {0: by[0]}).view(self.dtype, self.shape)
    if len(by) != len(axes) or not by:
        raise ValueError(f"{len(by)} shifts for {len(axes)} dimensions")
    total: dict[int, int] = {}
    for shift, dim in zip(by, axes, strict=True):
        axis = shapes.existing_dim(self.shape, dim)
        total[axis] = total.get(axis, 0) + shift
    return _roll(engine, self, total)


def _roll(engine: CLEngine, self: Array, by: dict[int, int]) -> Array:
    made = engine.alloc(self.shape, self.dtype)
    if not made.size:
        return made
    halves = []
    for dim, shift in by.items():
        size = self.shape[dim]
        shift %= size
        stays, comes = slice(0, size - shift), slice(size - shift, size)
        pairs = [(stays, slice(shift, size)), (comes, slice(0, shift))]
        halves.append([(dim, *pair) for pair in pairs if pair[0].start < pair[0].stop])
    for parts in itertools.product(*halves):
        source, target = self, made
        for dim, here, there in parts:
            source, target = slice_dim(source, dim, here), slice_dim(target, dim, there)
        engine.write(target, source)
    return made


@kernel("rot90")
def rot90(engine: CLEngine, self: Array, k: int = 1, dims: Any = (0, 1)) -> Array:
    if len(dims) != 2:
        raise ValueError(f"rot90 takes two dimensions, not {len(dims)}")
    one, other = shapes.two_dims(self.shape, *dims)
    order = list(range(self.ndim))
    order[one], order[other] = other, one
    turned = (
        self,
        _reverse(self, [other]).transpose(order),
        _reverse(self, [one, other]),
        _reverse(self.transpose(order), [other]),
    )
    return make_copy(engine, turned[k % 4])


@kernel("diag_embed")
def diag_embed(
    engine: CLEngine, self: Array, offset: int = 0, dim1: int = -2, dim2: int = -1
) -> Array:
    made = make_full(engine, shapes.diag_embed(self.shape, offset, dim1, dim2), self.dtype)
    engine.write(diagonal(engine, made, offset, dim1, dim2), self)
    return made


# ---- patches


@kernel("im2col")
def im2col(
    engine: CLEngine, self: Array, kernel_size: Any, dilation: Any, padding: Any, stride: Any
) -> Array:
    shape = patches.columns_shape(self.shape, kernel_size, dilation, padding, stride)
    along = patches.patches(self.shape[-2:], kernel_size, dilation, padding, stride)
    around = [side for one in reversed(along) for side in (one.padding, one.padding)]
    whole = constant_pad(engine, self, around) if any(around) else self
    sizes = [one.kernel for one in along] + [one.outputs for one in along]
    steps = whole.strides[-2:]
    strides = [s * one.dilation for s, one in zip(steps, along, strict=True)]
    strides += [s * one.stride for s, one in zip(steps, along, strict=True)]
    view = whole.view(self.dtype, (*self.shape[:-2], *sizes), (*whole.strides[:-2], *strides))
    return make_copy(engine, view).view(self.dtype, shape)


@kernel("col2im")
def col2im(
    engine: CLEngine, self: Array, output_size: Any, kernel_size: Any, dilation: Any,
    padding: Any, stride: Any,
) -> Array:  # fmt: skip
    shape = patches.image_shape(self.shape, output_size, kernel_size, dilation, padding, stride)
    high, wide = patches.patches(shape[-2:], kernel_size, dilation, padding, stride)
    lead = shape[:-2]
    sizes = (high.kernel, wide.kernel, high.outputs, wide.outputs)
    split = to_shape(engine, self, (*lead, *sizes))
    order = [*range(len(lead)), *(len(lead) + i for i in (0, 2, 1, 3))]
    merged = (*lead, high.kernel * high.outputs, wide.kernel * wide.outputs)
    whole = make_copy(engine, split.transpose(order)).view(self.dtype, merged)
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
            return make_copy(engine, grad_in).view(grad_in.dtype, ())
        return make_full(engine, (), grad_in.dtype)
    axis = normalize_dim(dim, len(shape))
    count = grad_in.shape[axis]
    if not count * size or not math.prod(shape):
        return make_full(engine, shape, grad_in.dtype)
    side_by_side = move_dim(grad_in, grad_in.ndim - 1, axis + 1)
    outer, inner = math.prod(shape[:axis]), math.prod(shape[axis + 1 :])
    flat = to_shape(engine, side_by_side, (outer, count * size, inner))
    targets = numpy.arange(count)[:, None] * step + numpy.arange(size)
    folded = transpose_axis(axis_of(targets.reshape(-1, 1)), shape[axis])
    lines = axis_of(numpy.arange(inner)[:, None])
    return combine(engine, flat, [folded, lines]).view(grad_in.dtype, shape)


# ---- pixels and channels


def _reorder(
    engine: CLEngine, self: Array, split: tuple[int, ...], order: Any, shape: Any
) -> Array:
    lead = len(split) - len(order)
    axes = [*range(lead), *(lead + i for i in order)]
    made = make_copy(engine, to_shape(engine, self, split).transpose(axes))
    return made.view(self.dtype, tuple(shape))


@kernel("pixel_shuffle")
def pixel_shuffle(engine: CLEngine, self: Array, upscale_factor: int) -> Array:
    shape = patches.shuffled_shape(self.shape, upscale_factor)
    outer, (height, width) = self.shape[:-3], self.shape[-2:]
    split = (*outer, shape[-3], upscale_factor, upscale_factor, height, width)
    return _reorder(engine, self, split, (2, 0, 3, 1), shape)


@kernel("pixel_unshuffle")
def pixel_unshuffle(engine: CLEngine, self: Array, downscale_factor: int) -> Array:
    shape = patches.unshuffled_shape(self.shape, downscale_factor)
    outer, (height, width) = self.shape[:-2], shape[-2:]
    split = (*outer, height, downscale_factor, width, downscale_factor)
    return _reorder(engine, self, split, (1, 3, 0, 2), shape)


@kernel("channel_shuffle", "native_channel_shuffle")
def channel_shuffle(engine: CLEngine, self: Array, groups: int) -> Array:
    if self.ndim < 3:
        raise ValueError(f"the input has {self.ndim} dimensions, it takes 3 or more")
    batch, channels, *rest = self.shape
    if groups < 1 or channels % groups:
        raise ValueError(f"{channels} channels cannot be split into {groups} groups")
    split = (batch, groups, channels // groups, *rest)
    order = (1, 0, *range(2, 2 + len(rest)))
    return _reorder(engine, self, split, order, self.shape)
