"""Kernels: padding and its backward ops."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy

from holdfast.compute.engines.numpy.along import added_along
from holdfast.compute.engines.numpy.kernels import kernel, register, widened
from holdfast.compute.ops import windows
from holdfast.compute.ops.padding import padded_shape, sides


@kernel("constant_pad_nd")
def constant_pad(self: Any, pad: Sequence[int], value: Any = 0) -> Any:
    out = numpy.empty(padded_shape(self.shape, pad), self.dtype)
    pairs = sides(pad, self.ndim)
    source, target = [], []
    for size, (before, after) in zip(self.shape, pairs, strict=True):
        first, kept = max(0, before), size + min(0, before) + min(0, after)
        if kept < 0:
            raise ValueError(f"{(before, after)} cuts off more than the {size} numbers there are")
        source.append(slice(max(0, -before), max(0, -before) + kept))
        target.append(slice(first, first + kept))
    _fill_around(out, target, value)
    out[tuple(target)] = self[tuple(source)]
    return out


def _fill_around(out: Any, inside: list[slice], value: Any) -> None:
    """Put a value everywhere but inside: slabs, each number is written once."""
    within: list[slice] = []
    for part, size in zip(inside, out.shape, strict=True):
        if part.start > 0:
            out[(*within, slice(0, part.start))] = value
        if part.stop < size:
            out[(*within, slice(part.stop, size))] = value
        within.append(part)


# ---- reflections and copies of the edge


def reflected(size: int, before: int, after: int) -> Any:
    """Which number each of a padded line is, where the edges are mirrors. Raises ValueError."""
    if max(before, after) >= size:
        raise ValueError(
            f"reflecting {(before, after)} needs more than the {size} numbers there are"
        )
    place = numpy.abs(numpy.arange(-before, size + after))
    return numpy.where(place >= size, 2 * (size - 1) - place, place)


def repeated(size: int, before: int, after: int) -> Any:
    """Which number each of a padded line is, where the edges go on. Raises ValueError."""
    if not size:
        raise ValueError("there is no edge to repeat in a dimension of size 0")
    return numpy.clip(numpy.arange(-before, size + after), 0, size - 1)


def origins(source: Callable[..., Any], shape: Sequence[int], padding: Sequence[int]) -> list[Any]:
    """(axis, which input each output is), for every padded dimension."""
    count = len(padding) // 2
    windows.spatial(shape, count)
    if max(padded_shape(shape, padding)[-count:]) < 1:
        raise ValueError(f"padding {list(padding)} of {list(shape)} leaves nothing")
    pairs = sides(padding, len(shape))
    return [(axis, source(shape[axis], *pairs[axis])) for axis in range(-count, 0)]


def _pad(source: Callable[..., Any], self: Any, padding: Sequence[int]) -> Any:
    out = self
    for axis, index in origins(source, self.shape, padding):
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
    out = widened(grad_output)
    for axis, index in reversed(origins(source, self.shape, padding)):
        out = added_along(out, index, self.shape[axis], axis)
    return out.astype(grad_output.dtype, copy=False)


for _kind, _source in (("reflection", reflected), ("replication", repeated)):
    for _dims in (1, 2, 3):
        register(f"{_kind}_pad{_dims}d", functools.partial(_pad, _source))
        register(f"{_kind}_pad{_dims}d_backward", functools.partial(_pad_backward, _source))
