"""Sorting and what depends on it: sort, topk, kthvalue, median, mode, searchsorted, isin.

The sort is stable and NaN is the largest element, as in torch.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy

from holdfast.compute import dtype as dtypes
from holdfast.compute.engines.layout.views import at
from holdfast.compute.engines.opencl.elementwise import strided_kernels
from holdfast.compute.engines.opencl.index.gather_scatter import (
    compute_kernel,
    launch_over,
    take_at,
)
from holdfast.compute.engines.opencl.index.indexing import at_least_1d, gather_along, in_range
from holdfast.compute.engines.opencl.layout.views import make_full, move_dim
from holdfast.compute.engines.opencl.reduce.row_sort import (
    INT32,
    SortedRows,
    make_keys,
    sort_kernel,
    sort_keys,
    sort_rows,
)
from holdfast.compute.engines.opencl.runtime.array import Array
from holdfast.compute.engines.opencl.runtime.engine_protocol import CLEngine
from holdfast.compute.engines.opencl.runtime.kernel_table import (
    check_double,
    kernel,
    register,
    working,
)

_FEW = 256  # k up to which CPUs select from much longer rows without sorting


# ---- ops


def _restore_dim(engine: CLEngine, places: Array, dim: int) -> Array:
    """Move the last dimension of the indices back to `dim`; contiguous int64."""
    return engine.contiguous(move_dim(places, places.ndim - 1, dim), dtypes.INT64)


def _gather_pairs(engine: CLEngine, self: Array, array: Array, found: Array, dim: int) -> Any:
    """Values and indices; `found` is contiguous, and has the dimensions of `array`."""
    values = gather_along(engine, array, dim, found)
    if self.ndim:
        return values, found
    return values.view(values.dtype, ()), found.view(found.dtype, ())


@kernel("sort", "sort.stable")
def sort(
    engine: CLEngine, self: Array, dim: int = -1, descending: bool = False,
    stable: bool | None = None,
) -> Any:  # fmt: skip
    array, dim = at_least_1d(self, dim)
    if not array.size:
        return self.copy(), engine.alloc(self.shape, dtypes.INT64)
    places = sort_rows(engine, move_dim(array, dim, array.ndim - 1), descending).indices
    return _gather_pairs(engine, self, array, _restore_dim(engine, places, dim), dim)


@kernel("topk")
def topk(
    engine: CLEngine, self: Array, k: int, dim: int = -1, largest: bool = True,
    sorted: bool = True,
) -> Any:  # fmt: skip
    array, dim = at_least_1d(self, dim)
    places = _smallest(engine, move_dim(array, dim, array.ndim - 1), k, largest)
    found = _restore_dim(engine, places, dim)
    if not found.size:
        return engine.alloc(found.shape, self.dtype), found
    return _gather_pairs(engine, self, array, found, dim)


def _smallest(engine: CLEngine, rows: Array, few: int, descending: bool) -> Array:
    """Indices of the first `few` elements of each row in order."""
    count, last = rows.shape[-1], rows.ndim - 1
    keys = make_keys(engine, rows, descending)
    if engine.mapping == "gpu" or not 0 < few <= _FEW or count < 16 * few or not rows.size:
        return sort_keys(engine, keys).indices[..., :few]
    many = rows.size // count
    parts = max(1, min(engine.units * 4 // many, count // (4 * few)))
    shape = (*rows.shape[:-1], parts * few)
    made = SortedRows(engine.alloc(shape, keys.dtype), engine.alloc(shape, INT32))
    engine.launch(
        sort_kernel(engine, "smallest", keys), (many * parts,), (1,),
        keys, *made, many, count, parts, count // parts, few,
    )  # fmt: skip
    if parts == 1:
        return made.indices
    # Chunks are in order, so equal elements are too after sorting the candidates.
    best = sort_keys(engine, made.keys).indices[..., :few]
    return gather_along(engine, made.indices, last, engine.contiguous(best, dtypes.INT64))


# ---- one element of each row


def _gather_one(
    engine: CLEngine, self: Array, array: Array, places: Array, dim: int, keepdim: bool
) -> Any:
    """Values and indices; `places` lack `dim`."""
    shape = (*array.shape[:dim], 1, *array.shape[dim + 1 :])
    found = engine.contiguous(places, dtypes.INT64).view(dtypes.INT64, shape)
    if not found.size:
        values = engine.alloc(shape, self.dtype)
    else:
        values = gather_along(engine, array, dim, found)
    if self.ndim and keepdim:
        return values, found
    return values[at(dim, 0)], found[at(dim, 0)]


@kernel("kthvalue")
def kthvalue(engine: CLEngine, self: Array, k: int, dim: int = -1, keepdim: bool = False) -> Any:
    array, dim = at_least_1d(self, dim)
    places = sort_rows(engine, move_dim(array, dim, array.ndim - 1)).indices
    chosen = places[..., k - 1]
    return _gather_one(engine, self, array, chosen, dim, keepdim)


def _scan_sorted(engine: CLEngine, name: str, rows: Array, skip: bool) -> Array:
    """One index per row, found by a kernel that scans the sorted keys."""
    found = sort_rows(engine, rows)
    made = engine.alloc(rows.shape[:-1], dtypes.INT64)
    if not made.size:
        return made
    nan = found.keys.dtype.type(2 ** (8 * found.keys.itemsize) - 1)
    nans = int(skip) if dtypes.is_floating(rows.dtype) else 2
    group = 1 if engine.mapping == "cpu" else min(64, engine.most_items)
    size = min(made.size, engine.units * 4 if group == 1 else 1 << 20)
    engine.launch(
        sort_kernel(engine, name, found.keys), (-(-size // group) * group,), (group,),
        made, *found, made.size, rows.shape[-1], nan, nans,
    )  # fmt: skip
    return made


@kernel("mode")
def mode(engine: CLEngine, self: Array, dim: int = -1, keepdim: bool = False) -> Any:
    array, dim = at_least_1d(self, dim)
    places = _scan_sorted(engine, "pick_mode", move_dim(array, dim, array.ndim - 1), False)
    return _gather_one(engine, self, array, places, dim, keepdim)


def _median(skip: bool, engine: CLEngine, self: Array, dim: int, keepdim: bool = False) -> Any:
    array, dim = at_least_1d(self, dim)
    places = _scan_sorted(engine, "pick_middle", move_dim(array, dim, array.ndim - 1), skip)
    return _gather_one(engine, self, array, places, dim, keepdim)


def _median_of_all(skip: bool, engine: CLEngine, self: Array) -> Array:
    if not self.size:
        floating = dtypes.is_floating(self.dtype)
        value = math.nan if floating else numpy.iinfo(self.dtype).min
        return make_full(engine, (), self.dtype, value)
    return _median(skip, engine, engine.contiguous(self).reshape((self.size,)), 0)[0]


for _name, _skip in (("median", False), ("nanmedian", True)):
    register(_name, functools.partial(_median_of_all, _skip))
    register(f"{_name}.dim", functools.partial(_median, _skip))


# ---- searching


@kernel("bucketize.Tensor", "bucketize.Scalar")
def bucketize(
    engine: CLEngine, self: Any, boundaries: Array, out_int32: bool = False,
    right: bool = False,
) -> Array:  # fmt: skip
    return searchsorted(engine, boundaries, self, out_int32, right)


@kernel("searchsorted.Tensor", "searchsorted.Scalar")
def searchsorted(
    engine: CLEngine, sorted_sequence: Array, self: Any, out_int32: bool = False,
    right: bool = False, side: str | None = None, sorter: Any = None,
) -> Array:  # fmt: skip
    sequence = sorted_sequence
    if sorter is not None:
        places = in_range(engine, sorter, sequence.shape[-1], sequence.ndim - 1)
        sequence = gather_along(engine, sequence, sequence.ndim - 1, places)
    sequence, values = _comparable(engine, sequence, self)
    found = engine.alloc(values.shape, dtypes.INT64)
    if values.size:
        wide = values.shape[-1] if sequence.ndim > 1 else 0
        kernel = compute_kernel(engine, "search", sequence.dtype)
        after = int(right or side == "right")
        launch_over(
            engine, kernel, values.size,
            found, sequence, values, values.size, sequence.shape[-1], wide, after,
        )  # fmt: skip
    return engine.cast(found, numpy.dtype(numpy.int32)) if out_int32 else found


def _comparable(engine: CLEngine, sequence: Array, values: Any) -> tuple[Array, Array]:
    """Both contiguous, in a dtype in which they can be compared."""
    kind = sequence.dtype
    if type(values) is Array:
        kind = dtypes.promote(kind, values.dtype)
    elif isinstance(values, float) and not dtypes.is_floating(kind):
        kind = dtypes.FLOAT64
    kind = dtypes.working(kind)
    check_double(engine, kind)
    if type(values) is not Array:
        values = make_full(engine, (), kind, values)
    return engine.contiguous(sequence, kind), engine.contiguous(values, kind)


@kernel("isin.Tensor_Tensor", "isin.Tensor_Scalar", "isin.Scalar_Tensor")
def isin(
    engine: CLEngine, *given: Any, assume_unique: bool = False, invert: bool = False,
    **named: Any,
) -> Array:  # fmt: skip
    elements, tests = (*given, *named.values())
    kind = dtypes.working(dtypes.result_type(elements, tests))
    one, other = (
        engine.cast(a, kind) if type(a) is Array else make_full(engine, (), kind, a)
        for a in (elements, tests)
    )
    made = engine.alloc(one.shape, dtypes.BOOL)
    if not one.size or not other.size:
        made.fill(invert)
        return made
    ranked, _ = sort(engine, other.reshape((other.size,)), 0)
    place = engine.contiguous(searchsorted(engine, ranked, one))
    last = strided_kernels.Number("last", other.size - 1, "long")
    within = strided_kernels.Input("place", place, "long")
    strided_kernels.compute(engine, "min($place, $last)", [within], [last], place)
    type_ = working(kind)
    pair = [
        strided_kernels.Input("one", one, type_),
        strided_kernels.Input("found", take_at(engine, ranked, 0, [place]), type_),
    ]
    text = "$one != $found" if invert else "$one == $found"
    return strided_kernels.compute(engine, text, pair, [], made)
