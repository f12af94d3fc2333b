"""What kernels that reduce share: dimensions, working formats, blocks that stay in the cache.

Promise: nothing here changes an array it is given.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy

from holdfast.compute.ops.rules import normalized_dim, normalized_dims

BLOCK = 1 << 16  # numbers: 256 KB of float32, which a core's own cache holds
_LONG = 512  # rows from which adding one after the other loses digits that torch keeps
_STEP = 128


def axes(dim: Any, of: Any) -> tuple[int, ...]:
    """The axes that `dim` means, for NumPy's `axis=`. Raises IndexError, ValueError."""
    found = normalized_dims(dim, of.ndim)
    if len(set(found)) != len(found):
        raise ValueError(f"a dimension is named twice in {list(dim)}")
    return found if of.ndim else ()


def total(array: Any, over: tuple[int, ...], keepdim: bool = False) -> Any:
    """A sum over axes, in the array's own format, about as exact as adding in pairs."""
    last = array.ndim - 1
    if array.dtype.kind in "fc" and array.flags.c_contiguous and array.size > _LONG:
        # NumPy adds in pairs along the last axis only, and one after the other along the rest.
        long = [axis for axis in over if axis != last and array.shape[axis] > _LONG]
        for axis in long:
            array = _shortened(array, axis)
    return numpy.add.reduce(array, axis=over, keepdims=keepdim)


def _shortened(array: Any, axis: int) -> Any:
    """Groups of rows added up, so that what is left to add is short."""
    rows = array.shape[axis]
    groups = rows // _STEP
    before, after = array.shape[:axis], array.shape[axis + 1 :]
    head = array[(slice(None),) * axis + (slice(groups * _STEP),)]
    made = numpy.empty((*before, groups + 1, *after), array.dtype)
    parts = (slice(None),) * axis
    whole = head.reshape(*before, groups, _STEP, *after)
    numpy.add.reduce(whole, axis=axis + 1, out=made[(*parts, slice(groups))])
    tail = array[(*parts, slice(groups * _STEP, rows))]
    numpy.add.reduce(tail, axis=axis, out=made[(*parts, groups)])
    return made


def spans(count: int, width: int) -> Iterator[slice]:
    """Slices of `count` rows of `width` numbers each, about a block at a time."""
    step = max(1, BLOCK // max(width, 1))
    for start in range(0, count, step):
        yield slice(start, min(start + step, count))


def place(target: Any, working: Any) -> Any:
    """Where a block that ends in `target` is computed: there, if it has the working format."""
    return target if target.dtype == working else numpy.empty(target.shape, working)


def settle(target: Any, block: Any) -> None:
    """Put a computed block where it belongs, unless it was computed there."""
    if block is not target:
        target[...] = block


def sheets(array: Any, dim: int) -> Any:
    """As (before, dim, after): one axis in the middle, the others on both sides flattened."""
    axis = normalized_dim(dim, array.ndim)
    shape = array.shape or (1,)
    before, after = math.prod(shape[:axis]), math.prod(shape[axis + 1 :])
    return array.reshape(before, shape[axis], after)


def row_moments(rows: Any) -> tuple[Any, Any]:
    """Of each row of a matrix of floats: the mean, and the sum of squared distances from it."""
    count, width = rows.shape
    mean = numpy.add.reduce(rows, axis=1) / rows.dtype.type(max(width, 1))
    squares = numpy.zeros(count, rows.dtype)
    if width > BLOCK:
        for row in range(count):
            parts = (_squared(rows[row, part] - mean[row]) for part in spans(width, 1))
            squares[row] = sum(parts)
        return mean, squares
    for part in spans(count, width):
        apart = rows[part] - mean[part, None]
        squares[part] = numpy.vecdot(apart, apart)
    return mean, squares


def _squared(values: Any) -> float:
    return float(numpy.dot(values, values))
