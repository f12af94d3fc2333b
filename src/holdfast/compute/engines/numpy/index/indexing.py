"""Reading and filling at indices or masks; `scatter` has writes where indices may repeat.

An index out of range raises IndexError, also where NumPy would count a negative one from the end
and torch does not.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy

from holdfast.compute.engines.numpy.kernels import kernel
from holdfast.compute.ops.index.resolve import resolve_indices, single_mask
from holdfast.compute.ops.rules import normalize_dim

# ---- lists of indices


def locate_indices(shape: Sequence[int], indices: Sequence[Any]) -> list[Any]:
    """For each dimension an integer array, all broadcast to one shape, or None for all of it."""

    def prepare(index: Any, size: tuple[int, ...], dim: int) -> Any:
        if math.prod(size):
            check_range(index, shape[dim], dim, negative=True)
        index = index.astype(numpy.intp, copy=False)
        return index if index.shape == size else numpy.broadcast_to(index, size)

    return resolve_indices(shape, indices, numpy.nonzero, prepare)


def mask_index(shape: Sequence[int], indices: Sequence[Any]) -> tuple[Any, ...] | None:
    """NumPy's index if the only index is a boolean mask, else None."""
    found = single_mask(shape, indices)
    return None if found is None else (*[slice(None)] * found[0], found[1])


def check_range(index: Any, size: int, dim: int, negative: bool = False) -> None:
    """Raise IndexError for an index out of range of dimension `dim`, TypeError for non-integers."""
    if index.dtype.kind not in "iu":
        raise TypeError(f"indices must be integers, not {index.dtype}")
    if not index.size:
        return
    low, high = int(index.min()), int(index.max())
    lowest = -size if negative else 0
    if low < lowest or high >= size:
        wrong = low if low < lowest else high
        raise IndexError(f"index {wrong} is out of range for dimension {dim} of size {size}")


@kernel("index.Tensor", "_unsafe_index.Tensor")
def index_tensor(self: Any, indices: Any) -> Any:
    masked = mask_index(self.shape, indices)
    if masked is not None:
        return _match_contiguity(self, self[masked])
    found = locate_indices(self.shape, indices)
    dims = [d for d, f in enumerate(found) if f is not None]
    if len(dims) == 1:
        return self.take(found[dims[0]], axis=dims[0])
    if not dims:
        return self.copy()
    chosen = self[tuple(slice(None) if f is None else f for f in found)]
    return (
        chosen.copy() if numpy.may_share_memory(chosen, self) else _match_contiguity(self, chosen)
    )


def _match_contiguity(self: Any, chosen: Any) -> Any:
    """`chosen`, contiguous if `self` is: callers view it in other shapes."""
    fits = chosen.flags.c_contiguous or not self.flags.c_contiguous
    return chosen if fits else chosen.copy()


# ---- along one dimension


def ensure_dim(array: Any, dim: int) -> tuple[Any, int]:
    """The array with at least one dimension, and `dim` counted from 0."""
    dim = normalize_dim(dim, array.ndim)
    return (array if array.ndim else array.reshape(1)), dim


@kernel("index_select")
def index_select(self: Any, dim: int, index: Any) -> Any:
    array, dim = ensure_dim(self, dim)
    chosen = index.reshape(-1)
    check_range(chosen, array.shape[dim], dim)
    out = array.take(chosen, axis=dim)
    return out if self.ndim else out.reshape(())


@kernel("gather")
def gather(self: Any, dim: int, index: Any, sparse_grad: bool = False) -> Any:
    array, dim = ensure_dim(self, dim)
    picks = index if index.ndim else index.reshape(1)
    if not picks.size:
        return numpy.empty(index.shape, self.dtype)
    check_range(picks, array.shape[dim], dim)
    part = corner(array, picks.shape, dim)
    if part.flags.c_contiguous:
        return part.reshape(-1).take(flat_offsets(picks, part.shape, dim)).reshape(index.shape)
    return numpy.take_along_axis(part, picks, dim).reshape(index.shape)


def flat_offsets(index: Any, shape: Sequence[int], dim: int) -> Any:
    """Offsets in a flat array of `shape` of the elements that an index along `dim` picks."""
    steps = [math.prod(shape[d + 1 :]) for d in range(len(shape))]
    flat = index.astype(numpy.intp, copy=False)
    if steps[dim] != 1:
        flat = flat * steps[dim]
    for d, size in enumerate(index.shape):
        if d != dim and size > 1:
            offsets = numpy.arange(0, size * steps[d], steps[d])
            flat = flat + offsets.reshape([-1 if e == d else 1 for e in range(len(shape))])
    return flat


def corner(array: Any, shape: Sequence[int], dim: int | None = None) -> Any:
    """The first `shape[d]` elements of every dimension d but `dim`."""
    return array[tuple(slice(None) if d == dim else slice(size) for d, size in enumerate(shape))]


@kernel("take")
def take(self: Any, index: Any) -> Any:
    check_range(index, self.size, 0, negative=True)
    return self.reshape(-1).take(index)


@kernel("index_fill.int_Scalar", "index_fill.int_Tensor")
def index_fill(self: Any, dim: int, index: Any, value: Any) -> Any:
    out = self.copy()
    array, dim = ensure_dim(out, dim)
    chosen = index.reshape(-1)
    check_range(chosen, array.shape[dim], dim, negative=True)
    numpy.moveaxis(array, dim, 0)[chosen] = as_scalar(value, self.dtype)
    return out


@kernel("index_copy")
def index_copy(self: Any, dim: int, index: Any, source: Any) -> Any:
    out = self.copy()
    array, dim = ensure_dim(out, dim)
    chosen = index.reshape(-1)
    check_range(chosen, array.shape[dim], dim)
    numpy.moveaxis(array, dim, 0)[chosen] = dim_first(source, dim)
    return out


def dim_first(source: Any, dim: int) -> Any:
    """`source` with `dim` moved to the front; a 0-d array stays."""
    return numpy.moveaxis(source, dim, 0) if source.ndim else source


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
    rows = array if (index[1:] >= index[:-1]).all() else array.take(order, axis)
    starts = numpy.flatnonzero(numpy.diff(ranked, prepend=ranked[0] - 1))
    if len(starts) == len(ranked):
        out[at(axis, ranked)] = rows
    else:
        out[at(axis, ranked[starts])] = numpy.add.reduceat(rows, starts, axis=axis)
    return out


# ---- masks


@kernel("masked_fill.Scalar", "masked_fill.Tensor")
def masked_fill(self: Any, mask: Any, value: Any) -> Any:
    shape = numpy.broadcast_shapes(self.shape, mask.shape)
    out = self.copy() if shape == self.shape else numpy.broadcast_to(self, shape).copy()
    numpy.copyto(out, as_scalar(value, self.dtype), where=mask)
    return out


def as_scalar(value: Any, dtype: Any) -> Any:
    """Cast a scalar. Raises TypeError for complex to real."""
    given = numpy.asarray(value)
    if given.dtype.kind == "c" and dtype.kind != "c":
        raise TypeError(f"the complex number {value} does not fit into {dtype}")
    return given.astype(dtype)


@kernel("masked_select")
def masked_select(self: Any, mask: Any) -> Any:
    if self.shape != mask.shape:
        self, mask = numpy.broadcast_arrays(self, mask)
    return self[mask.astype(bool, copy=False)].reshape(-1)


@kernel("masked_scatter")
def masked_scatter(self: Any, mask: Any, source: Any) -> Any:
    shape = numpy.broadcast_shapes(self.shape, mask.shape)
    out = numpy.broadcast_to(self, shape).copy()
    where = numpy.broadcast_to(mask, shape)
    count = int(numpy.count_nonzero(where))
    if count > source.size:
        raise ValueError(f"the mask selects {count} elements, the source has {source.size}")
    out[where] = source.reshape(-1)[:count]
    return out


# ---- nonzero and repeats


@kernel("nonzero")
def nonzero(self: Any) -> Any:
    return numpy.argwhere(self)


@kernel("repeat_interleave.Tensor")
def repeat_interleave(repeats: Any, output_size: int | None = None) -> Any:
    if repeats.ndim != 1:
        raise ValueError(f"the repeats have {repeats.ndim} dimensions, one is expected")
    if repeats.size and repeats.min() < 0:
        raise ValueError("repeats must be 0 or more")
    return numpy.repeat(numpy.arange(repeats.size, dtype=repeats.dtype), repeats)
