"""Writing at indices that may repeat: scatter, index_put, index_add, index_reduce, put.

Sums of narrow floats are rounded once, at the end.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy

from holdfast.compute import dtype as dtypes
from holdfast.compute.engines.numpy.index.indexing import (
    check_range,
    check_rows,
    corner,
    dim_first,
    ensure_dim,
    flat_index,
    flat_offsets,
    resolve_indices,
    single_mask,
)
from holdfast.compute.engines.numpy.kernels import cast, kernel
from holdfast.compute.ops.rules import normalize_dim

_WIDE = 16  # elements in a row; from here on sorting the rows is cheaper than `add.at`
_ROUNDS = 32  # rows of an index that are added in rounds; the rest is summed for each index
_UFUNCS: dict[str, Any] = {
    "sum": numpy.add,
    "add": numpy.add,
    "mean": numpy.add,
    "prod": numpy.multiply,
    "multiply": numpy.multiply,
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
    if values.dtype != out.dtype and not (values.size == 1 and _is_masked(indices, accumulate)):
        raise TypeError(f"the values are {values.dtype}, the target is {out.dtype}")
    values = cast(values, out.dtype)
    masked = None if accumulate else single_mask(out.shape, indices)
    if masked is not None:
        out[masked] = values
        return out
    found = resolve_indices(out.shape, indices)
    dims = [d for d, f in enumerate(found) if f is not None]
    if not dims:
        out[...] = out + values if accumulate else values
        return out
    if accumulate:
        _add_at(out, found, dims, _broadcast_values(values, out, found, dims))
    else:
        out[tuple(slice(None) if f is None else f for f in found)] = values
    return out


def _is_masked(indices: Any, accumulate: bool) -> bool:
    """Whether the only index is a mask and values are assigned: torch then casts a scalar."""
    given = [one for one in indices if one is not None]
    return not accumulate and len(given) == 1 and given[0].dtype == numpy.bool_


def _broadcast_values(values: Any, out: Any, found: Any, dims: list[int]) -> Any:
    """Values broadcast to the shape that the indices select, with indexed dimensions in front."""
    chosen = found[dims[0]].shape
    rest = [size for d, size in enumerate(out.shape) if d not in dims]
    at = dims[0] if dims[-1] - dims[0] == len(dims) - 1 else 0
    shape = (*rest[:at], *chosen, *rest[at:])
    try:
        full = numpy.broadcast_to(values, shape)
    except ValueError:
        raise ValueError(
            f"values of shape {list(values.shape)} do not broadcast to the indexed shape "
            f"{list(shape)}"
        ) from None
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
    chosen = flat_index(index)
    check_range(chosen, array.shape[dim], dim)
    if source.dtype != self.dtype:
        raise TypeError(f"the source is {source.dtype}, the target is {self.dtype}")
    check_rows(array, chosen, source, dim)
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
    if index.size != source.size:
        raise ValueError(f"{index.size} indices for {source.size} elements")
    check_range(index, self.size, 0, negative=True)
    if not accumulate:
        out = numpy.array(self, order="C")
        out.reshape(-1)[index.reshape(-1)] = source.reshape(-1)
        return out
    sums = numpy.array(self, dtypes.working(self.dtype), order="C")
    numpy.add.at(sums.reshape(-1), index.reshape(-1), source.reshape(-1).astype(sums.dtype))
    return sums.astype(self.dtype, copy=False)


# ---- scatter


def flat_targets(index: Any, shape: Sequence[int], dim: int) -> Any:
    """Flat offsets in a target of `shape` of the elements of `index`. Raises IndexError."""
    check_range(index, shape[dim], dim)
    corner(numpy.broadcast_to(0, shape), index.shape, dim)
    return flat_offsets(index, shape, dim).reshape(-1)


def _prepare(self: Any, dim: int, index: Any, src: Any) -> tuple[Any, Any, Any]:
    """A copy to write into (in the working dtype), flat offsets, flat values."""
    out = numpy.array(self, dtypes.working(self.dtype), order="C")
    if not index.size:
        return out, numpy.empty(0, numpy.intp), numpy.empty(0, out.dtype)
    array, dim = ensure_dim(self, dim)
    picks = index if index.ndim else index.reshape(1)
    flat = flat_targets(picks, array.shape, dim)
    if not hasattr(src, "ndim"):
        return out, flat, numpy.asarray(src, out.dtype)
    if src.dtype != self.dtype:
        raise TypeError(f"the source is {src.dtype}, the target is {self.dtype}")
    values = corner(src if src.ndim else src.reshape(1), picks.shape)
    return out, flat, values.astype(out.dtype, copy=False).reshape(-1)


@kernel("scatter.src", "scatter.value")
def scatter(self: Any, dim: int, index: Any, src: Any = None, value: Any = None) -> Any:
    given = value if src is None else src
    out, flat, values = _prepare(self, dim, index, given)
    if flat.size:
        out.reshape(-1)[flat] = values
    return out.astype(self.dtype, copy=False)


@kernel("scatter.reduce", "scatter.value_reduce")
def scatter_with(
    self: Any, dim: int, index: Any, src: Any = None, value: Any = None, *, reduce: str
) -> Any:
    if reduce not in ("add", "multiply"):
        raise ValueError(f"there is no reduction {reduce!r}; 'add' and 'multiply' are")
    out, flat, values = _prepare(self, dim, index, value if src is None else src)
    if flat.size:
        _UFUNCS[reduce].at(out.reshape(-1), flat, values)
    return out.astype(self.dtype, copy=False)


@kernel("scatter_add")
def scatter_add(self: Any, dim: int, index: Any, src: Any) -> Any:
    out, flat, values = _prepare(self, dim, index, src)
    if flat.size:
        numpy.add.at(out.reshape(-1), flat, values)
    return out.astype(self.dtype, copy=False)


@kernel("scatter_reduce.two")
def scatter_reduce(
    self: Any, dim: int, index: Any, src: Any, reduce: str, include_self: bool = True
) -> Any:
    if reduce not in ("sum", "prod", "mean", "amax", "amin"):
        raise ValueError(f"there is no reduction {reduce!r}; sum, prod, mean, amax and amin are")
    out, flat, values = _prepare(self, dim, index, src)
    if flat.size:
        _reduce_at(out.reshape(-1), flat, values, reduce, include_self)
    return out.astype(self.dtype, copy=False)


def _reduce_at(out: Any, flat: Any, values: Any, reduce: str, include_self: bool) -> None:
    if not include_self:
        out[flat] = _identity(reduce, out.dtype)
    _UFUNCS[reduce].at(out, flat, values)
    if reduce == "mean":
        counts = numpy.bincount(flat, minlength=out.size) + include_self
        counts = numpy.maximum(counts, 1).astype(dtypes.real_of(out.dtype))
        divide = numpy.floor_divide if out.dtype.kind in "iu" else numpy.divide
        divide(out, counts, out=out)


def _identity(reduce: str, dtype: Any) -> Any:
    """The identity element of a reduction."""
    if reduce == "prod":
        return 1
    if reduce in ("sum", "mean"):
        return 0
    if dtype == numpy.bool_:
        return reduce == "amin"
    if dtype.kind in "iu":
        limits = numpy.iinfo(dtype)
        return limits.min if reduce == "amax" else limits.max
    return -numpy.inf if reduce == "amax" else numpy.inf


@kernel("index_reduce")
def index_reduce(
    self: Any, dim: int, index: Any, source: Any, reduce: str, include_self: bool = True
) -> Any:
    if reduce not in ("prod", "mean", "amax", "amin"):
        raise ValueError(f"there is no reduction {reduce!r}; prod, mean, amax and amin are")
    spread = spread_index(flat_index(index), source.shape, dim)
    return scatter_reduce(self, dim, spread, source, reduce, include_self)


def spread_index(index: Any, shape: Sequence[int], dim: int) -> Any:
    """Broadcast a 1-d index along `dim` to `shape`."""
    if not len(shape):
        return index.reshape(())
    dim = normalize_dim(dim, len(shape))
    if index.size != shape[dim]:
        raise ValueError(f"{index.size} indices for {shape[dim]} rows of the source")
    return numpy.broadcast_to(
        index.reshape([-1 if d == dim else 1 for d in range(len(shape))]), shape
    )
