"""sort, topk, kthvalue, median, mode.

As in torch, sorting is stable, and NaN counts as the largest.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy

from holdfast.compute.engines.numpy.index.indexing import ensure_dim
from holdfast.compute.engines.numpy.kernels import kernel, register, widen

_PICKED = 0.5  # for k below this fraction of a row, a partition is cheaper than sorting it


def argsort(array: Any, dim: int, descending: bool = False) -> Any:
    """Indices that sort `array` along `dim`, stable."""
    array = widen(array)
    if not descending:
        return numpy.argsort(array, axis=dim, kind="stable")
    # Flipping before and after an ascending sort keeps equal elements in their order.
    found = numpy.argsort(numpy.flip(array, dim), axis=dim, kind="stable")
    return numpy.subtract(array.shape[dim] - 1, numpy.flip(found, dim))


@kernel("sort", "sort.stable")
def sort(self: Any, dim: int = -1, descending: bool = False, stable: bool | None = None) -> Any:
    array, dim = ensure_dim(self, dim)
    found = argsort(array, dim, descending)
    values = numpy.take_along_axis(array, found, dim)
    return values.reshape(self.shape), found.reshape(self.shape)


@kernel("topk")
def topk(self: Any, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Any:
    array, dim = ensure_dim(self, dim)
    found = _first(widen(array), k, dim, largest)
    values = numpy.take_along_axis(array, found, dim)
    shape = values.shape if self.ndim else ()
    return values.reshape(shape), found.reshape(shape)


def _slice_dim(array: Any, dim: int, start: int, stop: int) -> Any:
    return array[(slice(None),) * dim + (slice(start, stop),)]


def _first(keys: Any, k: int, dim: int, descending: bool) -> Any:
    """Indices of the first `k` elements of each row in order."""
    size = keys.shape[dim]
    if not 0 < k < size * _PICKED:
        return _slice_dim(argsort(keys, dim, descending), dim, 0, k)
    start, pivot = (size - k, size - k) if descending else (0, k - 1)
    picked = _slice_dim(numpy.argpartition(keys, pivot, axis=dim), dim, start, start + k)
    picked = numpy.sort(picked, axis=dim)
    inner = argsort(numpy.take_along_axis(keys, picked, dim), dim, descending)
    return numpy.take_along_axis(picked, inner, dim)


# ---- one element of each row


def _pick(self: Any, array: Any, found: Any, dim: int, keepdim: bool) -> Any:
    """Values and indices, where `found` keeps `dim` with size 1."""
    values = numpy.take_along_axis(array, found, dim)
    if not self.ndim:
        return values.reshape(()), found.reshape(())
    return (values, found) if keepdim else (values.squeeze(dim), found.squeeze(dim))


@kernel("kthvalue")
def kthvalue(self: Any, k: int, dim: int = -1, keepdim: bool = False) -> Any:
    array, dim = ensure_dim(self, dim)
    keys = widen(array)
    found = _slice_dim(numpy.argpartition(keys, k - 1, axis=dim), dim, k - 1, k)
    return _pick(self, array, found, dim, keepdim)


def _median_of_all(skip: bool, self: Any) -> Any:
    flat = widen(self.reshape(-1))
    if flat.dtype.kind == "f":
        missing = numpy.isnan(flat)
        flat = flat[~missing] if skip else flat
        if not flat.size or (not skip and missing.any()):
            return numpy.asarray(math.nan, self.dtype)
    if not flat.size:
        return numpy.asarray(numpy.iinfo(self.dtype).min, self.dtype)
    middle = (flat.size - 1) // 2
    return numpy.partition(flat, middle)[middle].astype(self.dtype)


@kernel("mode")
def mode(self: Any, dim: int = -1, keepdim: bool = False) -> Any:
    array, dim = ensure_dim(self, dim)
    size = array.shape[dim]
    sorting = argsort(array, dim)
    rows = numpy.moveaxis(numpy.take_along_axis(array, sorting, dim), dim, -1)
    indices = numpy.broadcast_to(numpy.arange(size), rows.shape)
    begins = numpy.ones(rows.shape, bool)
    numpy.not_equal(rows[..., 1:], rows[..., :-1], out=begins[..., 1:])
    # Position within a run of equal elements; its first maximum ends the longest run.
    runs = indices - numpy.maximum.accumulate(numpy.where(begins, indices, 0), axis=-1)
    ends = numpy.moveaxis(runs.argmax(axis=-1, keepdims=True), -1, dim)
    return _pick(self, array, numpy.take_along_axis(sorting, ends, dim), dim, keepdim)


def _median(skip: bool, self: Any, dim: int, keepdim: bool = False) -> Any:
    array, dim = ensure_dim(self, dim)
    size = array.shape[dim]
    keys = widen(array)
    missing = numpy.isnan(keys).sum(axis=dim, keepdims=True) if keys.dtype.kind == "f" else None
    if missing is None or not missing.any():
        middle = (size - 1) // 2
        found = _slice_dim(numpy.argpartition(keys, middle, axis=dim), dim, middle, middle + 1)
        return _pick(self, array, found, dim, keepdim)
    valid = size - missing
    # NaNs are sorted to the end; unless they are skipped, the first NaN is the median.
    index = numpy.maximum(valid - 1, 0) // 2
    index = index if skip else numpy.where(missing > 0, valid, index)
    return _pick(self, array, numpy.take_along_axis(argsort(keys, dim), index, dim), dim, keepdim)


for _name, _skip in (("median", False), ("nanmedian", True)):
    register(_name, functools.partial(_median_of_all, _skip))
    register(f"{_name}.dim", functools.partial(_median, _skip))
