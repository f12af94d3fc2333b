"""Padding and its backward ops."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy

from holdfast.compute.engines.numpy.index.take_rows import add_along
from holdfast.compute.engines.numpy.kernels import kernel, register, widen
from holdfast.compute.ops.layers import windows
from holdfast.compute.ops.layout.padding import padded_shape, sides


@kernel("constant_pad_nd")
def constant_pad(self: Any, pad: Sequence[int], value: Any = 0) -> Any:
    out = numpy.empty(padded_shape(self.shape, pad), self.dtype)
    pairs = sides(pad, self.ndim)
    source, target = [], []
    for size, (before, after) in zip(self.shape, pairs, strict=True):
        first, kept = max(0, before), size + min(0, before) + min(0, after)
        if kept < 0:
            raise ValueError(f"{(before, after)} cuts off more than the {size} elements there are")
        source.append(slice(max(0, -before), max(0, -before) + kept))
        target.append(slice(first, first + kept))
    _fill_around(out, target, value)
    out[tuple(target)] = self[tuple(source)]
    return out


def _fill_around(out: Any, inside: list[slice], value: Any) -> None:
    """Fill everything outside of `inside`, slab by slab; each element is written once."""
    within: list[slice] = []
    for part, size in zip(inside, out.shape, strict=True):
        if part.start > 0:
            out[(*within, slice(0, part.start))] = value
        if part.stop < size:
            out[(*within, slice(part.stop, size))] = value
        within.append(part)


# ---- reflection and replication


def reflect_indices(size: int, before: int, after: int) -> Any:
    """The input index of each element of a line padded by reflection. Raises ValueError."""
    if max(before, after) >= size:
        raise ValueError(
            f"reflecting {(before, after)} needs more than the {size} elements there are"
        )
    index = numpy.abs(numpy.arange(-before, size + after))
    return numpy.where(index >= size, 2 * (size - 1) - index, index)


def replicate_indices(size: int, before: int, after: int) -> Any:
    """The input index of each element of a line padded by replication. Raises ValueError."""
    if not size:
        raise ValueError("there is no edge to repeat in a dimension of size 0")
    return numpy.clip(numpy.arange(-before, size + after), 0, size - 1)


def source_indices(
    source: Callable[..., Any], shape: Sequence[int], padding: Sequence[int]
) -> list[Any]:
    """(axis, input index of each output), for every padded dimension. Raises ValueError."""
    count = len(padding) // 2
    windows.spatial(shape, count)
    if max(padded_shape(shape, padding)[-count:]) < 1:
        raise ValueError(f"padding {list(padding)} of {list(shape)} leaves nothing")
    pairs = sides(padding, len(shape))
    return [(axis, source(shape[axis], *pairs[axis])) for axis in range(-count, 0)]


def _pad(source: Callable[..., Any], self: Any, padding: Sequence[int]) -> Any:
    out = self
    for axis, index in source_indices(source, self.shape, padding):
        out = out.take(index, axis)
    return out


def _pad_backward(
    source: Callable[..., Any], grad_output: Any, self: Any, padding: Sequence[int]
) -> Any:
    if grad_output.shape != padded_shape(self.shape, padding):
        raise ValueError(
            f"the gradient {list(grad_output.shape)} is not of the padded shape "
            f"{list(padded_shape(self.shape, padding))}"
        )
    out = widen(grad_output)
    for axis, index in reversed(source_indices(source, self.shape, padding)):
        out = add_along(out, index, self.shape[axis], axis)
    return out.astype(grad_output.dtype, copy=False)


for _kind, _source in (("reflection", reflect_indices), ("replication", replicate_indices)):
    for _dims in (1, 2, 3):
        register(f"{_kind}_pad{_dims}d", functools.partial(_pad, _source))
        register(f"{_kind}_pad{_dims}d_backward", functools.partial(_pad_backward, _source))
