"""Helpers of kernels that reduce: dimensions, exact sums, blocks that stay in the cache."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy

from holdfast.compute.ops.rules import normalize_dim, normalize_dims

BLOCK = 1 << 16  # elements: 256 KB of float32, which the L2 cache holds
_LONG = 512  # rows; adding more of them one by one loses digits that torch keeps
_STEP = 128


def axes(dim: Any, of: Any) -> tuple[int, ...]:
    """torch's `dim` as NumPy's `axis`. Raises IndexError, ValueError."""
    found = normalize_dims(dim, of.ndim)
    if len(set(found)) != len(found):
        raise ValueError(f"a dimension is named twice in {list(dim)}")
    return found if of.ndim else ()


def total(array: Any, over: tuple[int, ...], keepdim: bool = False) -> Any:
    """The sum over axes in the array's dtype, about as exact as pairwise summation."""
    last = array.ndim - 1
    if array.dtype.kind in "fc" and array.flags.c_contiguous and array.size > _LONG:
        # NumPy sums pairwise along the last axis only.
        long = [axis for axis in over if axis != last and array.shape[axis] > _LONG]
        for axis in long:
            array = _add_groups(array, axis)
    return numpy.add.reduce(array, axis=over, keepdims=keepdim)


def _add_groups(array: Any, axis: int) -> Any:
    """Sum groups of `_STEP` rows, which leaves fewer to add one by one."""
    rows = array.shape[axis]
    groups = rows // _STEP
    before, after = array.shape[:axis], array.shape[axis + 1 :]
    head = array[(slice(None),) * axis + (slice(groups * _STEP),)]
    made = numpy.empty((*before, groups + 1, *after), array.dtype)
    parts = (slice(None),) * axis
    grouped = head.reshape(*before, groups, _STEP, *after)
    numpy.add.reduce(grouped, axis=axis + 1, out=made[(*parts, slice(groups))])
    tail = array[(*parts, slice(groups * _STEP, rows))]
    numpy.add.reduce(tail, axis=axis, out=made[(*parts, groups)])
    return made


def spans(count: int, width: int) -> Iterator[slice]:
    """Slices of `count` rows of `width` elements, about BLOCK elements each."""
    step = max(1, BLOCK // max(width, 1))
    for start in range(0, count, step):
        yield slice(start, min(start + step, count))


def working_block(target: Any, working: Any) -> Any:
    """`target` if it has the working dtype, else a new block: see `store_block`."""
    return target if target.dtype == working else numpy.empty(target.shape, working)


def store_block(target: Any, block: Any) -> None:
    """Copy a computed block into `target`, unless it was computed there."""
    if block is not target:
        target[...] = block


def to_three_axes(array: Any, dim: int) -> Any:
    """Reshape to (before, dim, after), the dimensions on either side flattened."""
    axis = normalize_dim(dim, array.ndim)
    shape = array.shape or (1,)
    before, after = math.prod(shape[:axis]), math.prod(shape[axis + 1 :])
    return array.reshape(before, shape[axis], after)


def row_moments(rows: Any) -> tuple[Any, Any]:
    """The mean of each row of floats, and the sum of squared distances from it."""
    count, width = rows.shape
    mean = numpy.add.reduce(rows, axis=1) / rows.dtype.type(max(width, 1))
    squares = numpy.zeros(count, rows.dtype)
    if width > BLOCK:
        for row in range(count):
            apart = (rows[row, part] - mean[row] for part in spans(width, 1))
            squares[row] = sum(float(numpy.dot(one, one)) for one in apart)
        return mean, squares
    for part in spans(count, width):
        apart = rows[part] - mean[part, None]
        squares[part] = numpy.vecdot(apart, apart)
    return mean, squares
