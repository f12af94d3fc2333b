"""Histograms, bincount, unique values, searchsorted.

As in torch, NaN is not equal to itself.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy

from holdfast.compute import dtype as dtypes
from holdfast.compute.engines.numpy.index.indexing import check_range
from holdfast.compute.engines.numpy.kernels import kernel, widen
from holdfast.compute.ops.rules import normalize_dim

_LONG = 16  # values in a row; from here on a search for each row is cheaper than for all at once
_NONE = numpy.empty(0, numpy.int64)


# ---- histograms


@kernel("histc")
def histc(self: Any, bins: int = 100, min: Any = 0, max: Any = 0) -> Any:
    if bins <= 0:
        raise ValueError(f"bins must be 1 or more, not {bins}")
    flat = widen(self.reshape(-1))
    low, high = _bin_range(flat, (min, max) if min != max else None)
    inside = flat[(flat >= low) & (flat <= high)]
    bin_indices = ((inside - low) / (high - low) * bins).astype(numpy.intp)
    counts = numpy.bincount(numpy.minimum(bin_indices, bins - 1), minlength=bins)
    return counts.astype(self.dtype)


def _bin_range(flat: Any, given: Any) -> tuple[float, float]:
    """The given range, else that of the values, widened if it is a single value."""
    if given is not None:
        low, high = float(given[0]), float(given[1])
    elif flat.size:
        low, high = float(flat.min()), float(flat.max())
    else:
        low, high = 0.0, 1.0
    if not (math.isfinite(low) and math.isfinite(high)):
        raise ValueError(f"the range from {low} to {high} is not finite")
    if low > high:
        raise ValueError(f"the range from {low} to {high} is empty")
    return (low - 0.5, high + 0.5) if low == high else (low, high)


def _bin_edges(points: Any, bins: Sequence[int], given: Any) -> list[Any]:
    """The edges of all bins, for each dimension of the points [count, dimensions]."""
    found = []
    for d, count in enumerate(bins):
        ends = None if given is None else given[2 * d : 2 * d + 2]
        low, high = _bin_range(points[:, d], ends)
        found.append(numpy.linspace(low, high, count + 1, dtype=points.dtype))
    return found


def _histogram(points: Any, edges: Sequence[Any], weight: Any, density: bool) -> Any:
    sizes = [len(e) - 1 for e in edges]
    flat_bin, inside = numpy.zeros(len(points), numpy.intp), numpy.ones(len(points), bool)
    for d, (ends, size) in enumerate(zip(edges, sizes, strict=True)):
        column = points[:, d]
        at = numpy.searchsorted(ends, column, side="right") - 1
        numpy.copyto(at, size - 1, where=column == ends[-1])
        inside &= (column >= ends[0]) & (column <= ends[-1])
        flat_bin = flat_bin * size + at
    shares = None if weight is None else weight.reshape(-1)[inside]
    counts = numpy.bincount(flat_bin[inside], shares, math.prod(sizes)).reshape(sizes)
    return (_density(counts, edges) if density else counts).astype(points.dtype)


def _density(counts: Any, edges: Sequence[Any]) -> Any:
    """Counts divided by the total and by the volume of the bin; NaN if the total is 0."""
    with numpy.errstate(invalid="ignore", divide="ignore"):
        shares = counts / counts.sum()
        for d, ends in enumerate(edges):
            shares /= numpy.diff(ends).reshape([-1 if e == d else 1 for e in range(len(edges))])
    return shares


@kernel("histogram.bins_tensor")
def histogram_by_edges(self: Any, bins: Any, weight: Any = None, density: bool = False) -> Any:
    return _histogram(self.reshape(-1, 1), [bins], weight, density), bins.copy()


@kernel("histogram.bin_ct")
def histogram(
    self: Any, bins: int = 100, range: Any = None, weight: Any = None, density: bool = False
) -> Any:
    points = self.reshape(-1, 1)
    edges = _bin_edges(points, [bins], range)
    return _histogram(points, edges, weight, density), edges[0]


def _points(array: Any) -> Any:
    """Reshape to [count, dimensions]; the last dimension holds coordinates."""
    if array.ndim < 2:
        raise ValueError(f"points must have 2 dimensions or more, not {array.ndim}")
    return array.reshape(-1, array.shape[-1])


@kernel("_histogramdd_bin_edges")
def histogramdd_edges(
    self: Any, bins: Any, range: Any = None, weight: Any = None, density: bool = False
) -> Any:
    return _bin_edges(_points(self), bins, range)


@kernel("_histogramdd_from_bin_cts")
def histogramdd(
    self: Any, bins: Any, range: Any = None, weight: Any = None, density: bool = False
) -> Any:
    points = _points(self)
    return _histogram(points, _bin_edges(points, bins, range), weight, density)


@kernel("_histogramdd_from_bin_tensors")
def histogramdd_by_edges(self: Any, bins: Any, weight: Any = None, density: bool = False) -> Any:
    return _histogram(_points(self), bins, weight, density)


@kernel("bincount")
def bincount(self: Any, weights: Any = None, minlength: int = 0) -> Any:
    if self.ndim != 1 or self.dtype.kind not in "iu":
        raise TypeError("bincount takes integers in one dimension")
    if self.size and self.min() < 0:
        raise ValueError(f"{int(self.min())} is negative")
    if weights is None:
        return numpy.bincount(self.astype(numpy.intp, copy=False), minlength=minlength)
    counts = numpy.bincount(self, weights, minlength)
    return counts.astype(weights.dtype if weights.dtype == numpy.float32 else numpy.float64)


# ---- unique values


@kernel("_unique")
def unique(self: Any, sorted: bool = True, return_inverse: bool = False) -> Any:
    return unique2(self, sorted, return_inverse)[:2]


@kernel("_unique2")
def unique2(
    self: Any, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False
) -> Any:
    flat = self.reshape(-1)
    order = numpy.argsort(flat, kind="stable")
    begins = _mark_changes(flat[order].reshape(-1, 1))
    inverse = numpy.empty(flat.size, numpy.int64) if return_inverse else _NONE
    if return_inverse:
        inverse[order] = numpy.cumsum(begins) - 1
        inverse = inverse.reshape(self.shape)
    return flat[order[begins]], inverse, _counts(begins, return_counts)


@kernel("unique_dim")
def unique_dim(
    self: Any, dim: int, sorted: bool = True, return_inverse: bool = False,
    return_counts: bool = False,
) -> Any:  # fmt: skip
    dim = normalize_dim(dim, self.ndim)
    front = numpy.moveaxis(self, dim, 0)
    rows = front.reshape(len(front), math.prod(front.shape[1:]))
    # lexsort's primary key is the last one.
    order = numpy.lexsort(rows.T[::-1]) if rows.shape[1] else numpy.arange(len(rows))
    begins = _mark_changes(rows[order])
    inverse = numpy.empty(len(rows), numpy.int64)
    inverse[order] = numpy.cumsum(begins) - 1
    values = numpy.moveaxis(front[order[begins]], 0, dim)
    return values, inverse, _counts(begins, True)


def _mark_changes(rows: Any) -> Any:
    """True for the first row, and for each that differs from the one before."""
    begins = numpy.ones(len(rows), bool)
    if len(rows):
        numpy.any(rows[1:] != rows[:-1], axis=1, out=begins[1:])
    return begins


def _counts(begins: Any, wanted: bool) -> Any:
    if not wanted:
        return _NONE
    return numpy.diff(numpy.flatnonzero(begins), append=len(begins)).astype(numpy.int64)


@kernel("unique_consecutive")
def unique_consecutive(
    self: Any, return_inverse: bool = False, return_counts: bool = False, dim: int | None = None
) -> Any:
    if dim is None:
        front = self.reshape(-1)
    else:
        dim = normalize_dim(dim, self.ndim)
        front = numpy.moveaxis(self, dim, 0) if self.ndim else self.reshape(1)
    begins = _mark_changes(front.reshape(len(front), math.prod(front.shape[1:])))
    inverse = numpy.cumsum(begins) - 1 if return_inverse or dim is not None else _NONE
    if return_inverse and dim is None:
        inverse = inverse.reshape(self.shape)
    values = front[begins]
    if dim is not None:
        values = numpy.moveaxis(values, 0, dim)
    return values, inverse.astype(numpy.int64), _counts(begins, return_counts)


@kernel("isin.Tensor_Tensor", "isin.Tensor_Scalar", "isin.Scalar_Tensor")
def isin(*given: Any, assume_unique: bool = False, invert: bool = False, **named: Any) -> Any:
    elements, tests = (*given, *named.values())
    kind = dtypes.result_type(elements, tests)
    one = numpy.asarray(elements).astype(kind)
    return numpy.isin(one, numpy.asarray(tests).astype(kind), invert=invert)


# ---- search


@kernel("bucketize.Tensor", "bucketize.Scalar")
def bucketize(self: Any, boundaries: Any, out_int32: bool = False, right: bool = False) -> Any:
    return searchsorted(boundaries, self, out_int32, right)


@kernel("searchsorted.Tensor", "searchsorted.Scalar")
def searchsorted(
    sorted_sequence: Any, self: Any, out_int32: bool = False, right: bool = False,
    side: str | None = None, sorter: Any = None,
) -> Any:  # fmt: skip
    after = right or side == "right"
    sequence, values = sorted_sequence, numpy.asarray(self)
    if sorter is not None:
        check_range(sorter, sequence.shape[-1], sequence.ndim - 1)
        sequence = numpy.take_along_axis(sequence, sorter, -1)
    if hasattr(self, "ndim"):
        kind = dtypes.working(dtypes.promote(sequence.dtype, values.dtype))
        sequence, values = sequence.astype(kind, copy=False), values.astype(kind, copy=False)
    if sequence.ndim == 1:
        found = numpy.searchsorted(sequence, values, "right" if after else "left")
    else:
        found = _search_rows(sequence, values, after)
    return numpy.asarray(found).astype(numpy.int32 if out_int32 else numpy.int64)


def _search_rows(sequence: Any, values: Any, after: bool) -> Any:
    if values.shape[-1] < _LONG:
        return _binary_search(sequence, values, after)
    side = "right" if after else "left"
    found = numpy.empty(values.shape, numpy.int64)
    for row in numpy.ndindex(values.shape[:-1]):
        found[row] = numpy.searchsorted(sequence[row], values[row], side)
    return found


def _binary_search(sequence: Any, values: Any, after: bool) -> Any:
    """Binary search for all values of all rows at once."""
    low = numpy.zeros(values.shape, numpy.int64)
    high = numpy.full(values.shape, sequence.shape[-1], numpy.int64)
    beyond = numpy.greater if after else numpy.greater_equal
    while (open_ := low < high).any():
        middle = (low + high) // 2
        there = numpy.take_along_axis(sequence, numpy.where(open_, middle, 0), -1)
        stop = beyond(there, values)
        numpy.copyto(low, middle + 1, where=open_ & ~stop)
        numpy.copyto(high, middle, where=open_ & stop)
    return low
