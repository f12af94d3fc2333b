"""Writing at indices that may repeat: scatter, index_put, index_add, index_reduce, put.

Sums of narrow floats are rounded once, at the end.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy

from holdfast.compute import dtype as dtypes
from holdfast.compute.engines.numpy.index.indexing import (
    check_range,
    corner,
    dim_first,
    ensure_dim,
    flat_offsets,
    locate_indices,
    mask_index,
)
from holdfast.compute.engines.numpy.kernels import cast, kernel
from holdfast.compute.ops.index.resolve import check_values, indexed_shape

_WIDE = 16  # elements in a row; from here on sorting the rows is cheaper than `add.at`
_ROUNDS = 32  # rows of an index that are added in rounds; the rest is summed for each index
_UFUNCS: dict[str, Any] = {
    **dict.fromkeys(("sum", "add", "mean"), numpy.add),
    **dict.fromkeys(("prod", "multiply"), numpy.multiply),
    "amax": numpy.maximum,
    "amin": numpy.minimum,
}


# ---- adding into rows


def add_rows(out: Any, index: Any, values: Any) -> None:
    """out[index[i]] += values[i] for every i, in place; indices may repeat.

    `out` is contiguous, [rows, width]; `values` is [len(index), width] in the same dtype.
    """
    if not values.size:
        return
    if out.dtype == numpy.bool_:
        numpy.logical_or.at(out, index, values)
        return
    width = out.shape[1]
    if width >= _WIDE:
        _add_wide_rows(out, index, values)
        return
    flat = index if width == 1 else index[:, None] * width + numpy.arange(width)
    numpy.add.at(out.reshape(-1), flat.reshape(-1), values.reshape(-1))


def _add_wide_rows(out: Any, index: Any, values: Any) -> None:
    order = numpy.argsort(index, kind="stable")
    ordered = index[order]
    starts = numpy.flatnonzero(numpy.r_[True, ordered[1:] != ordered[:-1]])
    lengths = numpy.diff(starts, append=len(index))
    # Round n adds the n-th row of each index: within a round no index repeats.
    for turn in range(min(int(lengths.max()), _ROUNDS)):
        chosen = starts[lengths > turn] + turn
        out[ordered[chosen]] += values[order[chosen]]
    for run in numpy.flatnonzero(lengths > _ROUNDS).tolist():
        start = starts[run]
        rest = order[start + _ROUNDS : start + lengths[run]]
        out[ordered[start]] += values[rest].sum(axis=0)


@kernel("index_put", "_unsafe_index_put")
def index_put(self: Any, indices: Any, values: Any, accumulate: bool = False) -> Any:
    return put_at(self.copy(), indices, values, accumulate)


@kernel("_index_put_impl_")
def index_put_in_place(
    self: Any, indices: Any, values: Any, accumulate: bool = False, unsafe: bool = False
) -> Any:
    return put_at(self, indices, values, accumulate)


def put_at(out: Any, indices: Any, values: Any, accumulate: bool) -> Any:
    """Write or add values at the indices, in place."""
    values = cast(values, out.dtype)
    masked = None if accumulate else mask_index(out.shape, indices)
    if masked is not None:
        out[masked] = values
        return out
    found = locate_indices(out.shape, indices)
    dims = [d for d, f in enumerate(found) if f is not None]
    if not dims:
        out[...] = out + values if accumulate else values
        return out
    if accumulate:
        _add_at(out, found, dims, _broadcast_values(values, out, found, dims))
    else:
        out[tuple(slice(None) if f is None else f for f in found)] = values
    return out


def _broadcast_values(values: Any, out: Any, found: Any, dims: list[int]) -> Any:
    """Values broadcast to the shape that the indices select, with indexed dimensions in front."""
    chosen = found[dims[0]].shape
    shape, at = indexed_shape(out.shape, dims, chosen)
    check_values(values, shape)
    full = numpy.broadcast_to(values, shape)
    return numpy.moveaxis(full, range(at, at + len(chosen)), range(len(chosen)))


def _add_at(out: Any, found: Any, dims: list[int], values: Any) -> None:
    front = out.transpose([*dims, *(d for d in range(out.ndim) if d not in dims)])
    sizes = front.shape[: len(dims)]
    index = numpy.zeros(found[dims[0]].shape, numpy.intp)
    for dim, size in zip(dims, sizes, strict=True):
        index *= size
        index += numpy.where(found[dim] < 0, found[dim] + size, found[dim])
    work = dtypes.working(out.dtype)
    sums = front.astype(work, order="C", copy=True)
    table = sums.reshape(math.prod(sizes), math.prod(front.shape[len(dims) :]))
    flat = values.astype(work, copy=False).reshape(index.size, table.shape[1])
    add_rows(table, index.reshape(-1), flat)
    front[...] = sums.astype(out.dtype, copy=False)


@kernel("index_add")
def index_add(self: Any, dim: int, index: Any, source: Any, alpha: Any = 1) -> Any:
    array, dim = ensure_dim(self, dim)
    chosen = index.reshape(-1)
    check_range(chosen, array.shape[dim], dim)
    front = numpy.moveaxis(array, dim, 0)
    work = dtypes.working(self.dtype)
    sums = front.astype(work, order="C", copy=True)
    given = dim_first(source, dim).astype(work, copy=False)
    if alpha != 1:
        given = given * numpy.asarray(alpha).astype(work)
    table = sums.reshape(front.shape[0], math.prod(front.shape[1:]))
    add_rows(table, chosen, given.reshape(chosen.size, table.shape[1]))
    out = numpy.moveaxis(sums, 0, dim).astype(self.dtype, copy=False)
    return out.reshape(self.shape)


@kernel("put")
def put(self: Any, index: Any, source: Any, accumulate: bool = False) -> Any:
    check_range(index, self.size, 0, negative=True)
    if not accumulate:
        out = numpy.array(self, order="C")
        out.reshape(-1)[index.reshape(-1)] = source.reshape(-1)
        return out
    sums = numpy.array(self, dtypes.working(self.dtype), order="C")
    numpy.add.at(sums.reshape(-1), index.reshape(-1), source.reshape(-1).astype(sums.dtype))
    return sums.astype(self.dtype, copy=False)


# ---- scatter


def _prepare(self: Any, dim: int, index: Any, src: Any) -> tuple[Any, Any, Any]:
    """A copy to write into (in the working dtype), flat offsets, flat values."""
    out = numpy.array(self, dtypes.working(self.dtype), order="C")
    if not index.size:
        return out, numpy.empty(0, numpy.intp), numpy.empty(0, out.dtype)
    array, dim = ensure_dim(self, dim)
    picks = index if index.ndim else index.reshape(1)
    check_range(picks, array.shape[dim], dim)
    flat = flat_offsets(picks, array.shape, dim).reshape(-1)
    if not hasattr(src, "ndim"):
        return out, flat, numpy.asarray(src, out.dtype)
    values = corner(src if src.ndim else src.reshape(1), picks.shape)
    return out, flat, values.astype(out.dtype, copy=False).reshape(-1)


@kernel("scatter.src", "scatter.value")
def scatter(self: Any, dim: int, index: Any, src: Any) -> Any:
    out, flat, values = _prepare(self, dim, index, src)
    if flat.size:
        out.reshape(-1)[flat] = values
    return out.astype(self.dtype, copy=False)


@kernel("scatter_add", "scatter.reduce", "scatter.value_reduce", "scatter_reduce.two")
def scatter_reduce(
    self: Any, dim: int, index: Any, src: Any, reduce: str = "add", include_self: bool = True
) -> Any:
    out, flat, values = _prepare(self, dim, index, src)
    if flat.size:
        _reduce_at(out.reshape(-1), flat, values, reduce, include_self)
    return out.astype(self.dtype, copy=False)


def _reduce_at(out: Any, flat: Any, values: Any, reduce: str, include_self: bool) -> None:
    if not include_self:
        out[flat] = neutral_element(reduce, out.dtype)
    _UFUNCS[reduce].at(out, flat, values)
    if reduce == "mean":
        counts = numpy.bincount(flat, minlength=out.size) + include_self
        counts = numpy.maximum(counts, 1).astype(dtypes.real_of(out.dtype))
        divide = numpy.floor_divide if out.dtype.kind in "iu" else numpy.divide
        divide(out, counts, out=out)


@functools.cache
def neutral_element(reduce: str, dtype: Any) -> Any:
    """The neutral element of a reduction."""
    if reduce in ("prod", "sum", "mean"):
        return int(reduce == "prod")
    if dtype == numpy.bool_:
        return reduce == "amin"
    if dtype.kind in "iu":
        limits = numpy.iinfo(dtype)
        return limits.min if reduce == "amax" else limits.max
    return -numpy.inf if reduce == "amax" else numpy.inf
