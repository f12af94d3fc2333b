"""Writing at indices that may repeat: scatter, index_put, index_add, index_reduce, put, bincount.

Sums of narrow floats are rounded once, at the end.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy

from holdfast.compute import dtype as dtypes
from holdfast.compute.engines.numpy.index.indexing import as_scalar
from holdfast.compute.engines.numpy.index.scatter import neutral_element
from holdfast.compute.engines.opencl.elementwise import strided_kernels
from holdfast.compute.engines.opencl.index.gather_scatter import (
    add_in_place,
    cast_scaled,
    launch_over,
    move_kernel,
    reduce_at,
    write_at,
)
from holdfast.compute.engines.opencl.index.indexing import (
    OffsetTable,
    as_single_mask,
    at_least_1d,
    expand_indices,
    flat_index,
    in_range,
    make_adjacent,
    true_indices,
)
from holdfast.compute.engines.opencl.layout.views import make_copy, make_full, to_shape
from holdfast.compute.engines.opencl.runtime.array import Array, NotHere
from holdfast.compute.engines.opencl.runtime.engine_protocol import CLEngine
from holdfast.compute.engines.opencl.runtime.kernel_table import KERNELS, kernel, working
from holdfast.compute.ops.index.resolve import check_values

_OPS = {
    **dict.fromkeys(("sum", "add", "mean"), "add"),
    **dict.fromkeys(("prod", "multiply"), "multiply"),
    "amax": "amax",
    "amin": "amin",
}


# ---- lists of indices


@kernel("index_put", "_unsafe_index_put")
def index_put(
    engine: CLEngine, self: Array, indices: Any, values: Array, accumulate: bool = False
) -> Array:
    work = dtypes.working(self.dtype) if accumulate else self.dtype
    if accumulate and work.kind == "c":
        raise NotHere("complex numbers")
    out, values = make_copy(engine, self, work), engine.cast(values, work)
    single = None if accumulate else as_single_mask(engine, out, indices)
    if single is not None:
        flat, at, place = single
        write_at(engine, flat, at, [place], _broadcast_values(values, flat, at, [place]))
        return out
    found = expand_indices(engine, self.shape, indices)
    if all(f is None for f in found):
        if accumulate:
            add_in_place(engine, out, values.broadcast_to(self.shape))
        else:
            engine.write(out, values)
        return engine.cast(out, self.dtype)
    array, at, dims = make_adjacent(out, found)
    chosen = [found[d] for d in dims]
    # Dimensions that are not adjacent cannot be written without a copy.
    plain = out if array is out else make_copy(engine, array)
    into = reduce_at if accumulate else write_at
    into(engine, plain, at, chosen, _broadcast_values(values, array, at, chosen))
    if plain is not out:
        engine.write(array, plain)
    return engine.cast(out, self.dtype)


def _broadcast_values(values: Array, array: Array, at: int, chosen: Sequence[Array]) -> Array:
    """Broadcast values to the indexed shape. Raises ValueError."""
    shape = (*array.shape[:at], *chosen[0].shape, *array.shape[at + len(chosen) :])
    check_values(values, shape)
    return values.broadcast_to(shape)


@kernel("_index_put_impl_")
def index_put_in_place(
    engine: CLEngine, self: Array, indices: Any, values: Array, accumulate: bool = False,
    unsafe: bool = False,
) -> Array:  # fmt: skip
    engine.write(self, index_put(engine, self, indices, values, accumulate))
    return self


# ---- along one dimension


def _at_least_1d(source: Array, like: Array) -> Array:
    return source if source.ndim else source.view(source.dtype, (1,) * like.ndim)


@kernel("index_fill.int_Scalar", "index_fill.int_Tensor")
def index_fill(engine: CLEngine, self: Array, dim: int, index: Array, value: Any) -> Array:
    out = make_copy(engine, self)
    array, dim = at_least_1d(out, dim)
    chosen = in_range(engine, flat_index(index), array.shape[dim], dim, negative=True)
    given = _as_array(engine, value, self.dtype)
    shape = (*array.shape[:dim], chosen.size, *array.shape[dim + 1 :])
    write_at(engine, array, dim, [chosen], given.broadcast_to(shape))
    return out


def _as_array(engine: CLEngine, value: Any, kind: Any) -> Array:
    """A scalar as an array. Raises TypeError if the dtype cannot hold it."""
    if type(value) is not Array:
        return make_full(engine, (), kind, as_scalar(value, kind))
    if value.dtype.kind == "c" and kind.kind != "c":
        as_scalar(engine.download(value), kind)
    return engine.cast(value, kind)


@kernel("index_copy")
def index_copy(engine: CLEngine, self: Array, dim: int, index: Array, source: Array) -> Array:
    out = make_copy(engine, self)
    array, dim = at_least_1d(out, dim)
    chosen = in_range(engine, flat_index(index), array.shape[dim], dim)
    write_at(engine, array, dim, [chosen], _at_least_1d(source, array))
    return out


@kernel("index_add")
def index_add(
    engine: CLEngine, self: Array, dim: int, index: Array, source: Array, alpha: Any = 1
) -> Array:
    array, dim = at_least_1d(self, dim)
    chosen = in_range(engine, flat_index(index), array.shape[dim], dim)
    given, work = _at_least_1d(source, array), dtypes.working(self.dtype)
    sums = make_copy(engine, array, work)
    reduce_at(engine, sums, dim, [chosen], cast_scaled(engine, given, work, alpha))
    return engine.cast(sums, self.dtype).view(self.dtype, self.shape)


@kernel("put")
def put(
    engine: CLEngine, self: Array, index: Array, source: Array, accumulate: bool = False
) -> Array:
    flat = in_range(engine, index, self.size, 0, negative=True)
    flat = flat.view(flat.dtype, (flat.size,))
    values = to_shape(engine, source, (source.size,))
    work = dtypes.working(self.dtype) if accumulate else self.dtype
    out, values = make_copy(engine, self, work), engine.cast(values, work)
    into = reduce_at if accumulate else write_at
    into(engine, out.view(work, (self.size,)), 0, [flat], values)
    return engine.cast(out, self.dtype)


@kernel("masked_scatter")
def masked_scatter(engine: CLEngine, self: Array, mask: Array, source: Array) -> Array:
    shape = numpy.broadcast_shapes(self.shape, mask.shape)
    place = true_indices(engine, mask.broadcast_to(shape))
    if place.size > source.size:
        raise ValueError(f"the mask selects {place.size} elements, the source has {source.size}")
    out = make_copy(engine, self.broadcast_to(shape))
    values = engine.contiguous(source, self.dtype).view(self.dtype, (place.size,))
    write_at(engine, out.view(self.dtype, (math.prod(shape),)), 0, [place], values)
    return out


# ---- scatter


def _prepare(
    engine: CLEngine, self: Array, dim: int, index: Array, src: Any
) -> tuple[Array, Array, Any]:
    """A flat copy to write into (in the working dtype), flat indices into it, flat values."""
    work = dtypes.working(self.dtype)
    out = make_copy(engine, self, work)
    flat = out.view(work, (out.size,))
    if not index.size:
        return flat, engine.alloc((0,), dtypes.INT64), engine.alloc((0,), work)
    array, dim = at_least_1d(out, dim)
    picks = index if index.ndim else index.view(index.dtype, (1,))
    picks = in_range(engine, picks, array.shape[dim], dim)
    place = engine.alloc((picks.size,), dtypes.INT64)
    table = OffsetTable(picks.shape, array.steps, dim)
    launch_over(
        engine, move_kernel(engine, "spread_places"), picks.size, place, picks,
        engine.upload(table.numbers), table.ndim, picks.size, array.steps[dim],
    )  # fmt: skip
    if type(src) is not Array:
        return flat, place, _as_array(engine, src, work).broadcast_to(place.shape)
    given = src if src.ndim else src.view(src.dtype, (1,))
    part = given.view(given.dtype, picks.shape, given.strides)
    return flat, place, to_shape(engine, engine.cast(part, work), place.shape)


@kernel("scatter.src", "scatter.value")
def scatter(engine: CLEngine, self: Array, dim: int, index: Array, src: Any) -> Array:
    out, place, values = _prepare(engine, self, dim, index, src)
    write_at(engine, out, 0, [place], values)
    return engine.cast(out, self.dtype).view(self.dtype, self.shape)


@kernel("scatter_add", "scatter.reduce", "scatter.value_reduce", "scatter_reduce.two")
def scatter_reduce(
    engine: CLEngine, self: Array, dim: int, index: Array, src: Any, reduce: str = "add",
    include_self: bool = True,
) -> Array:  # fmt: skip
    out, place, values = _prepare(engine, self, dim, index, src)
    if place.size and not include_self:
        start = make_full(engine, (), out.dtype, neutral_element(reduce, out.dtype))
        write_at(engine, out, 0, [place], start.broadcast_to(place.shape))
    reduce_at(engine, out, 0, [place], values, _OPS[reduce])
    if reduce == "mean" and place.size:
        _divide(engine, out, place, include_self)
    return engine.cast(out, self.dtype).view(self.dtype, self.shape)


def _divide(engine: CLEngine, out: Array, place: Array, include_self: bool) -> None:
    counts = make_full(engine, out.shape, dtypes.INT64, int(include_self))
    one = make_full(engine, (), dtypes.INT64, 1)
    reduce_at(engine, counts, 0, [place], one.broadcast_to(place.shape))
    type = working(out.dtype)
    given = [
        strided_kernels.Input("sum", out, type),
        strided_kernels.Input("count", counts, "long"),
    ]
    many = "max($count, 1L)"
    text = f"$sum / ({type}){many}"
    if out.dtype.kind in "iu":  # floor division
        text = f"$sum / {many} - ($sum % {many} != 0 && $sum < 0)"
    strided_kernels.compute(engine, text, given, [], out)


# ---- counting


@kernel("bincount")
def bincount(engine: CLEngine, self: Array, weights: Any = None, minlength: int = 0) -> Array:
    """Waits for the smallest and the largest element, which give the length of the result."""
    if self.ndim != 1 or self.dtype.kind not in "iu":
        raise TypeError("bincount takes integers in one dimension")
    if minlength < 0:
        raise ValueError("'minlength' must not be negative")
    low, high = 0, -1
    if self.size:
        low, high = (
            int(engine.download(KERNELS[name].function(engine, self, [0]))[()])
            for name in ("amin", "amax")
        )
    if low < 0:
        raise ValueError(f"{low} is negative")
    kind, given = dtypes.INT64, make_full(engine, (), dtypes.INT64, 1)
    if weights is not None:
        kind = dtypes.FLOAT64 if engine.has_double else dtypes.FLOAT32
        given = engine.cast(weights, kind)
    made = make_full(engine, (max(high + 1, minlength),), kind)
    reduce_at(
        engine, made, 0, [engine.contiguous(self, dtypes.INT64)], given.broadcast_to(self.shape)
    )
    if weights is not None and weights.dtype == dtypes.FLOAT32:
        return engine.cast(made, dtypes.FLOAT32)
    return made
