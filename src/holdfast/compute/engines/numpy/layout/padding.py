"""Reflection and replication padding, and its backward ops."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy

from holdfast.compute.engines.numpy.index.indexing import add_along
from holdfast.compute.engines.numpy.kernels import register, widen
from holdfast.compute.ops.layers import windows
from holdfast.compute.ops.layout.padding import padded_shape, sides


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
    out = widen(grad_output)
    for axis, index in reversed(source_indices(source, self.shape, padding)):
        out = add_along(out, index, self.shape[axis], axis)
    return out.astype(grad_output.dtype, copy=False)


for _kind, _source in (("reflection", reflect_indices), ("replication", replicate_indices)):
    for _dims in (1, 2, 3):
        register(f"{_kind}_pad{_dims}d", functools.partial(_pad, _source))
        register(f"{_kind}_pad{_dims}d_backward", functools.partial(_pad_backward, _source))
