"""Joining, repeating, reversing, rolling, padding and reordering elements."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from holdfast.compute.engines.layout.arrays import alloc, shared, strided, zeros
from holdfast.compute.engines.layout.views import at, diagonal
from holdfast.compute.ops.layout import patches, shapes
from holdfast.compute.ops.layout.assemble import joined_dtype
from holdfast.compute.ops.layout.padding import padded_shape, sides
from holdfast.compute.ops.rules import normalize_dim


@shared("stack")
def stack(tensors: Any, dim: int = 0) -> Any:
    shape = shapes.stack([t.shape for t in tensors], dim)
    made = alloc(tensors[0], shape, joined_dtype(tensors))
    axis = shapes.new_dim(dim, len(shape) - 1)
    for index, one in enumerate(tensors):
        made[at(axis, index)] = one
    return made


@shared("repeat")
def repeat(self: Any, repeats: Any) -> Any:
    """Broadcast a dimension for each number of repeats, and copy once."""
    shape, times = shapes.repeat(self.shape, repeats), shapes.as_list(repeats)
    missing = len(times) - self.ndim
    own, steps = (1,) * missing + self.shape, (0,) * missing + self.strides
    sizes = [n for pair in zip(times, own, strict=True) for n in pair]
    return strided(self, sizes, [s for step in steps for s in (0, step)]).copy().reshape(shape)


def _reverse(array: Any, dims: Sequence[int]) -> Any:
    """A view with negative strides, which torch's tensors cannot have: only to copy from."""
    turned = (slice(None, None, -1) if d in dims else slice(None) for d in range(array.ndim))
    return array[(*turned, ...)]


@shared("flip")
def flip(self: Any, dims: Any) -> Any:
    axes = [normalize_dim(d, self.ndim) for d in shapes.as_list(dims)]
    if len(set(axes)) != len(axes):
        raise ValueError(f"{dims} names a dimension twice")
    return _reverse(self, axes).copy(order="C")


@shared("rot90")
def rot90(self: Any, k: int = 1, dims: Any = (0, 1)) -> Any:
    if len(dims) != 2:
        raise ValueError(f"rot90 takes two dimensions, not {len(dims)}")
    one, other = shapes.two_dims(self.shape, *dims)
    turned = (
        self,
        _reverse(self, [other]).swapaxes(one, other),
        _reverse(self, [one, other]),
        _reverse(self.swapaxes(one, other), [other]),
    )
    return turned[k % 4].copy(order="C")


@shared("roll")
def roll(self: Any, shifts: Any, dims: Any = ()) -> Any:
    by, axes = shapes.as_list(shifts), shapes.as_list(dims)
    if not axes and len(by) == 1:
        return _roll(self.reshape((self.size,)), {0: by[0]}).reshape(self.shape)
    if len(by) != len(axes) or not by:
        raise ValueError(f"{len(by)} shifts for {len(axes)} dimensions")
    total: dict[int, int] = {}
    for shift, dim in zip(by, axes, strict=True):
        axis = shapes.existing_dim(self.shape, dim)
        total[axis] = total.get(axis, 0) + shift
    return _roll(self, total)


def _roll(self: Any, by: dict[int, int]) -> Any:
    made = alloc(self, self.shape, self.dtype)
    if not made.size:
        return made
    halves = []
    for dim, shift in by.items():
        size = self.shape[dim]
        shift %= size
        pairs = [(slice(0, size - shift), slice(shift, size))]  # from, to
        pairs += [(slice(size - shift, size), slice(0, shift))] if shift else []
        halves.append([(dim, *pair) for pair in pairs])
    for parts in itertools.product(*halves):
        source, target = [slice(None)] * self.ndim, [slice(None)] * self.ndim
        for dim, here, there in parts:
            source[dim], target[dim] = here, there
        made[tuple(target)] = self[tuple(source)]
    return made


@shared("diag_embed")
def diag_embed(self: Any, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Any:
    made = zeros(self, shapes.diag_embed(self.shape, offset, dim1, dim2), self.dtype)
    diagonal(made, offset, dim1, dim2)[...] = self
    return made


@shared("constant_pad_nd")
def constant_pad(self: Any, pad: Sequence[int], value: Any = 0) -> Any:
    out = alloc(self, padded_shape(self.shape, pad), self.dtype)
    source, target = [], []
    for size, (before, after) in zip(self.shape, sides(pad, self.ndim), strict=True):
        first, kept = max(0, before), size + min(0, before) + min(0, after)
        if kept < 0:
            raise ValueError(f"{(before, after)} cuts off more than the {size} elements there are")
        source.append(slice(max(0, -before), max(0, -before) + kept))
        target.append(slice(first, first + kept))
    for dim, (part, size) in enumerate(zip(target, out.shape, strict=True)):
        # Slabs around the inner part: each element is written once.
        for slab in (slice(0, part.start), slice(part.stop, size)):
            if slab.stop > slab.start:
                out[(*target[:dim], slab)].fill(value)
    out[tuple(target)] = self[tuple(source)]
    return out


# ---- pixels and channels


def _reorder(self: Any, split: Sequence[int], order: Sequence[int], shape: Sequence[int]) -> Any:
    """Permute the last dimensions of another shape, and copy."""
    lead = len(split) - len(order)
    axes = [*range(lead), *(lead + i for i in order)]
    return self.reshape(tuple(split)).transpose(axes).copy().reshape(tuple(shape))


@shared("pixel_shuffle")
def pixel_shuffle(self: Any, upscale_factor: int) -> Any:
    shape = patches.shuffled_shape(self.shape, upscale_factor)
    split = (*shape[:-2], upscale_factor, upscale_factor, *self.shape[-2:])
    return _reorder(self, split, (2, 0, 3, 1), shape)


@shared("pixel_unshuffle")
def pixel_unshuffle(self: Any, downscale_factor: int) -> Any:
    shape = patches.unshuffled_shape(self.shape, downscale_factor)
    split = (*self.shape[:-2], shape[-2], downscale_factor, shape[-1], downscale_factor)
    return _reorder(self, split, (1, 3, 0, 2), shape)


@shared("channel_shuffle", "native_channel_shuffle")
def channel_shuffle(self: Any, groups: int) -> Any:
    if self.ndim < 3:
        raise ValueError(f"the input has {self.ndim} dimensions, it takes 3 or more")
    batch, channels, *rest = self.shape
    if groups < 1 or channels % groups:
        raise ValueError(f"{channels} channels cannot be split into {groups} groups")
    order = (1, 0, *range(2, 2 + len(rest)))
    return _reorder(self, (batch, groups, channels // groups, *rest), order, self.shape)
