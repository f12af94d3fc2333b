"""Picking rows along a dimension, and the way back: what padding and resampling share.

Promise: `added_along` is the adjoint of `take`, whatever the index repeats or leaves out.
"""

from __future__ import annotations

from typing import Any

import numpy


def at(axis: int, index: Any) -> tuple[Any, ...]:
    """The index that picks `index` along a negative axis."""
    return (..., index, *([slice(None)] * (-1 - axis)))


def added_along(array: Any, index: Any, size: int, axis: int) -> Any:
    """Zeros of `size` along a negative axis, with every row of `array` added at its index."""
    shape = list(array.shape)
    shape[axis] = size
    out = numpy.zeros(shape, array.dtype)
    if not index.size:
        return out
    order = numpy.argsort(index, kind="stable")
    ranked = index[order]
    rows = array if _rising(index) else array.take(order, axis)
    starts = numpy.flatnonzero(numpy.diff(ranked, prepend=ranked[0] - 1))
    if len(starts) == len(ranked):
        out[at(axis, ranked)] = rows
    else:
        out[at(axis, ranked[starts])] = numpy.add.reduceat(rows, starts, axis=axis)
    return out


def _rising(index: Any) -> bool:
    return bool((index[1:] >= index[:-1]).all())
