"""Kernels that put arrays together, turn them round, or take images apart into patches.

Covers: cat, stack, repeat, flip, roll, rot90, diag_embed, patches as columns and
back, pixels as channels.
Leaves to others: views (`views`), sums along dimensions (`resample`).
Promise: cat, stack, repeat, flip, roll and rot90 copy each number once.
"""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING, Any

import numpy

from holdfast.compute.engines.opencl.array import Array
from holdfast.compute.engines.opencl.kernels import kernel
from holdfast.compute.engines.opencl.padding import constant_pad
from holdfast.compute.engines.opencl.resample import Axis, adjoint, axis_of, combined
from holdfast.compute.engines.opencl.views import (
    cut,
    diagonal,
    filled,
    fresh,
    moved,
    picked,
    shaped,
)
from holdfast.compute.ops import patches, shapes, windows
from holdfast.compute.ops.assemble import joined_format
from holdfast.compute.ops.rules import normalized_dim

if TYPE_CHECKING:
    from holdfast.compute.engines.opencl.engine import OpenCLEngine


@kernel("cat")
def cat(engine: OpenCLEngine, tensors: Any, dim: int = 0) -> Array:
    shape = shapes.joined([t.shape for t in tensors], dim)
    place = normalized_dim(dim, len(shape))
    made = engine.alloc(shape, joined_format(tensors))
    begin = 0
    for one in tensors:
        if one.ndim != len(shape):
            continue  # an empty one of any shape, which torch lets pass
        end = begin + one.shape[place]
        engine.write(cut(made, place, slice(begin, end)), one)
        begin = end
    return made


@kernel("stack")
def stack(engine: OpenCLEngine, tensors: Any, dim: int = 0) -> Array:
    shape = shapes.stacked([t.shape for t in tensors], dim)
    made = engine.alloc(shape, joined_format(tensors))
    place = shapes.new_dim(dim, len(shape) - 1)
    for index, one in enumerate(tensors):
        engine.write(picked(made, place, index), one)
    return made


@kernel("_chunk_cat")
def chunk_cat(engine: OpenCLEngine, tensors: Any, dim: int, num_chunks: int) -> Array:
    """Every tensor in `num_chunks` flat parts, filled up with zeros; the parts side by side."""
    if num_chunks < 1 or not tensors or not all(one.size for one in tensors):
        raise ValueError("tensors with numbers in them, and one chunk or more, are needed")
    parts = []
    for one in tensors:
        place = normalized_dim(dim, one.ndim)
        length = -(-one.shape[place] // num_chunks)
        made = filled(engine, shapes.replaced(one.shape, place, num_chunks * length), one.dtype)
        engine.write(cut(made, place, slice(0, one.shape[place])), one)
        lead = one.shape[:place]
        rest = made.size // (math.prod(lead) * num_chunks)
        parts.append(made.viewed(one.dtype, (*lead, num_chunks, rest)))
    return cat(engine, parts, -1)


@kernel("repeat")
def repeat(engine: OpenCLEngine, self: Array, repeats: Any) -> Array:
    shape, times = shapes.repeated(self.shape, repeats), shapes.listed(repeats)
    made = engine.alloc(shape, self.dtype)
    if not made.size:
        return made
    own = (1,) * (len(times) - self.ndim) + self.shape
    steps = (0,) * (len(times) - self.ndim) + self.strides
    pairs = [n for pair in zip(times, own, strict=True) for n in pair]
    spread = [s for step in steps for s in (0, step)]
    engine.write(
        made.viewed(self.dtype, tuple(pairs)),
        self.viewed(self.dtype, tuple(pairs), tuple(spread)),
    )
    return made


# ---- turned round


def _backwards(array: Array, dims: list[int]) -> Array:
    """A view that goes from the end to the beginning: only for copying, views of torch never do."""
    for dim in dims if array.size and array.ndim else ():
        array = cut(array, dim, slice(array.shape[dim] - 1, -1, -1))
    return array


@kernel("flip")
def flip(engine: OpenCLEngine, self: Array, dims: Any) -> Array:
    places = [normalized_dim(d, self.ndim) for d in shapes.listed(dims)]
    if len(set(places)) != len(places):
        raise ValueError(f"{dims} names a dimension twice")
    return fresh(engine, _backwards(self, places))


@kernel("roll")
def roll(engine: OpenCLEngine, self: Array, shifts: Any, dims: Any = ()) -> Array:
    by, places = shapes.listed(shifts), shapes.listed(dims)
    if not places and len(by) == 1:
        flat = shaped(engine, self, (self.size,))
        return _rolled(engine, flat, {0: by[0]}).viewed(self.dtype, self.shape)
    if len(by) != len(places) or not by:
        raise ValueError(f"{len(by)} shifts for {len(places)} dimensions")
    total: dict[int, int] = {}
    for shift, dim in zip(by, places, strict=True):
        place = shapes.existing(self.shape, dim)
        total[place] = total.get(place, 0) + shift
    return _rolled(engine, self, total)


def _rolled(engine: OpenCLEngine, self: Array, by: dict[int, int]) -> Array:
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
            source, target = cut(source, dim, here), cut(target, dim, there)
        engine.write(target, source)
    return made


@kernel("rot90")
def rot90(engine: OpenCLEngine, self: Array, k: int = 1, dims: Any = (0, 1)) -> Array:
    if len(dims) != 2:
        raise ValueError(f"a turn has two dimensions, not {len(dims)}")
    one, other = shapes.two_dims(self.shape, *dims)
    order = list(range(self.ndim))
    order[one], order[other] = other, one
    turned = (
        self,
        _backwards(self, [other]).transpose(order),
        _backwards(self, [one, other]),
        _backwards(self.transpose(order), [other]),
    )
    return fresh(engine, turned[k % 4])


@kernel("diag_embed")
def diag_embed(
    engine: OpenCLEngine, self: Array, offset: int = 0, dim1: int = -2, dim2: int = -1
) -> Array:
    made = filled(engine, shapes.embedded(self.shape, offset, dim1, dim2), self.dtype)
    engine.write(diagonal(engine, made, offset, dim1, dim2), self)
    return made


# ---- patches


@kernel("im2col")
def columns(
    engine: OpenCLEngine, self: Array, kernel_size: Any, dilation: Any, padding: Any, stride: Any
) -> Array:
    shape = patches.columns_shape(self.shape, kernel_size, dilation, padding, stride)
    along = patches.patches(self.shape[-2:], kernel_size, dilation, padding, stride)
    around = [side for one in reversed(along) for side in (one.padding, one.padding)]
    whole = constant_pad(engine, self, around) if any(around) else self
    sizes = [one.kernel for one in along] + [one.outputs for one in along]
    steps = whole.strides[-2:]
    strides = [s * one.dilation for s, one in zip(steps, along, strict=True)]
    strides += [s * one.stride for s, one in zip(steps, along, strict=True)]
    view = whole.viewed(self.dtype, (*self.shape[:-2], *sizes), (*whole.strides[:-2], *strides))
    return fresh(engine, view).viewed(self.dtype, shape)


@kernel("col2im")
def image(
    engine: OpenCLEngine, self: Array, output_size: Any, kernel_size: Any, dilation: Any,
    padding: Any, stride: Any,
) -> Array:  # fmt: skip
    shape = patches.image_shape(self.shape, output_size, kernel_size, dilation, padding, stride)
    high, wide = patches.patches(shape[-2:], kernel_size, dilation, padding, stride)
    lead = shape[:-2]
    sizes = (high.kernel, wide.kernel, high.outputs, wide.outputs)
    split = shaped(engine, self, (*lead, *sizes))
    order = [*range(len(lead)), *(len(lead) + i for i in (0, 2, 1, 3))]
    merged = (*lead, high.kernel * high.outputs, wide.kernel * wide.outputs)
    whole = fresh(engine, split.transpose(order)).viewed(self.dtype, merged)
    return combined(engine, whole, [_overlapping(high), _overlapping(wide)])


def _overlapping(window: windows.Window) -> Axis:
    """What each input has a part in, of offsets in a window and places of it."""
    offset = numpy.arange(window.kernel)[:, None] * window.dilation - window.padding
    place = offset + numpy.arange(window.outputs) * window.stride
    return adjoint(axis_of(place.reshape(-1, 1)), window.size)


@kernel("unfold_backward")
def unfold_backward(
    engine: OpenCLEngine, grad_in: Array, input_sizes: Any, dim: int, size: int, step: int
) -> Array:
    shape = tuple(input_sizes)
    if not shape:
        if size:
            return fresh(engine, grad_in).viewed(grad_in.dtype, ())
        return filled(engine, (), grad_in.dtype)
    place = normalized_dim(dim, len(shape))
    count = grad_in.shape[place]
    if not count * size or not math.prod(shape):
        return filled(engine, shape, grad_in.dtype)
    side_by_side = moved(grad_in, grad_in.ndim - 1, place + 1)
    outer, inner = math.prod(shape[:place]), math.prod(shape[place + 1 :])
    flat = shaped(engine, side_by_side, (outer, count * size, inner))
    targets = numpy.arange(count)[:, None] * step + numpy.arange(size)
    axis = adjoint(axis_of(targets.reshape(-1, 1)), shape[place])
    lines = axis_of(numpy.arange(inner)[:, None])
    return combined(engine, flat, [axis, lines]).viewed(grad_in.dtype, shape)


# ---- pixels and channels


def _reordered(
    engine: OpenCLEngine, self: Array, split: tuple[int, ...], order: Any, shape: Any
) -> Array:
    lead = len(split) - len(order)
    places = [*range(lead), *(lead + i for i in order)]
    made = fresh(engine, shaped(engine, self, split).transpose(places))
    return made.viewed(self.dtype, tuple(shape))


@kernel("pixel_shuffle")
def shuffled(engine: OpenCLEngine, self: Array, upscale_factor: int) -> Array:
    shape = patches.shuffled_shape(self.shape, upscale_factor)
    outer, (height, width) = self.shape[:-3], self.shape[-2:]
    split = (*outer, shape[-3], upscale_factor, upscale_factor, height, width)
    return _reordered(engine, self, split, (2, 0, 3, 1), shape)


@kernel("pixel_unshuffle")
def unshuffled(engine: OpenCLEngine, self: Array, downscale_factor: int) -> Array:
    shape = patches.unshuffled_shape(self.shape, downscale_factor)
    outer, (height, width) = self.shape[:-2], shape[-2:]
    split = (*outer, height, downscale_factor, width, downscale_factor)
    return _reordered(engine, self, split, (1, 3, 0, 2), shape)


@kernel("channel_shuffle", "native_channel_shuffle")
def channels_shuffled(engine: OpenCLEngine, self: Array, groups: int) -> Array:
    if self.ndim < 3:
        raise ValueError(f"the input has {self.ndim} dimensions, it takes 3 or more")
    batch, channels, *rest = self.shape
    if groups < 1 or channels % groups:
        raise ValueError(f"{channels} channels cannot be split into {groups} groups")
    split = (batch, groups, channels // groups, *rest)
    order = (1, 0, *range(2, 2 + len(rest)))
    return _reordered(engine, self, split, order, self.shape)
