"""Indexing along a negative axis, and the adjoint of `take`: for padding, pooling, resampling."""

from __future__ import annotations

from typing import Any

import numpy


def at(axis: int, index: Any) -> tuple[Any, ...]:
    """The index expression that applies `index` along a negative axis."""
    return (..., index, *([slice(None)] * (-1 - axis)))


def add_along(array: Any, index: Any, size: int, axis: int) -> Any:
    """The adjoint of `take`: zeros of `size` along `axis`, with each row added at its index."""
    shape = list(array.shape)
    shape[axis] = size
    out = numpy.zeros(shape, array.dtype)
    if not index.size:
        return out
    order = numpy.argsort(index, kind="stable")
    ranked = index[order]
    rows = array if _is_sorted(index) else array.take(order, axis)
    starts = numpy.flatnonzero(numpy.diff(ranked, prepend=ranked[0] - 1))
    if len(starts) == len(ranked):
        out[at(axis, ranked)] = rows
    else:
        out[at(axis, ranked[starts])] = numpy.add.reduceat(rows, starts, axis=axis)
    return out


def _is_sorted(index: Any) -> bool:
    return bool((index[1:] >= index[:-1]).all())
