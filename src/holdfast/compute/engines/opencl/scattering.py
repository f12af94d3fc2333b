"""Kernels: writing at places that may repeat.

Covers: scatter and its reductions, index_put, index_add, index_fill, index_copy, index_reduce, put,
masked_scatter, counting.
Leaves to others: whether indices are there (`indexing`), the kernels (`placing`).
Promise: sums of narrow floats are rounded once, at the end.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy

from holdfast.compute import dtype as formats
from holdfast.compute.engines.numpy import indexing as host
from holdfast.compute.engines.opencl import elementwise
from holdfast.compute.engines.opencl.array import Array, NotHere
from holdfast.compute.engines.opencl.indexing import (
    Table,
    along,
    flat_index,
    hollow,
    in_range,
    listed,
    mask_places,
    masked_select,
    only_mask,
    together,
)
from holdfast.compute.engines.opencl.kernels import KERNELS, kernel, working
from holdfast.compute.engines.opencl.placing import met, moving, scaled, spread, summed, written
from holdfast.compute.engines.opencl.views import filled, fresh, shaped
from holdfast.compute.ops.rules import normalized_dim

if TYPE_CHECKING:
    from holdfast.compute.engines.opencl.engine import OpenCLEngine

_OPS = {
    **dict.fromkeys(("sum", "add", "mean"), "add"),
    **dict.fromkeys(("prod", "multiply"), "multiply"),
    "amax": "amax",
    "amin": "amin",
}


# ---- lists of indices


@kernel("index_put", "_unsafe_index_put")
def index_put(
    engine: OpenCLEngine, self: Array, indices: Any, values: Array, accumulate: bool = False
) -> Array:
    if values.dtype != self.dtype and not (values.size == 1 and _is_masked(indices, accumulate)):
        raise TypeError(f"the values are {values.dtype}, the target is {self.dtype}")
    if accumulate:
        return _added(engine, self, indices, values)
    out, values = fresh(engine, self), engine.cast(values, self.dtype)
    single = only_mask(engine, out, indices)
    if single is not None:
        flat, at, place = single
        written(engine, flat, at, [place], _fitted(values, flat, at, [place]))
        return out
    found = listed(engine, self.shape, indices)
    if all(f is None for f in found):
        engine.write(out, values)
        return out
    array, at, dims = together(out, found)
    chosen = [found[d] for d in dims]
    full = _fitted(values, array, at, chosen)
    # Dimensions that do not lie side by side cannot be written to without a copy.
    plain = fresh(engine, array) if array is not out else out
    written(engine, plain, at, chosen, full)
    if plain is not out:
        engine.write(array, plain)
    return out


def _is_masked(indices: Any, accumulate: bool) -> bool:
    """Whether a number is written where a mask says: torch takes one of any format there."""
    given = [one for one in indices if one is not None]
    return not accumulate and len(given) == 1 and given[0].dtype == formats.BOOL


def _fitted(values: Array, array: Array, at: int, chosen: Sequence[Array]) -> Array:
    """Values in the shape of what is chosen. Raises ValueError."""
    shape = (*array.shape[:at], *chosen[0].shape, *array.shape[at + len(chosen) :])
    try:
        numpy.broadcast_to(hollow(values.shape), shape)
    except ValueError:
        raise ValueError(
            f"values of shape {list(values.shape)} do not broadcast to what is chosen, "
            f"{list(shape)}"
        ) from None
    return values.broadcast_to(shape)


def _added(engine: OpenCLEngine, self: Array, indices: Any, values: Array) -> Array:
    work = formats.working(self.dtype)
    if work.kind == "c":
        raise NotHere("complex numbers")
    found = listed(engine, self.shape, indices)
    sums, values = fresh(engine, self, work), engine.cast(values, work)
    if all(f is None for f in found):
        sums = summed(engine, sums, values.broadcast_to(self.shape))
        return engine.cast(sums, self.dtype)
    array, at, dims = together(sums, found)
    chosen = [found[d] for d in dims]
    plain = array if array is sums else fresh(engine, array)
    met(engine, plain, at, chosen, _fitted(values, array, at, chosen))
    if plain is not array:
        engine.write(array, plain)
    return engine.cast(sums, self.dtype)


@kernel("_index_put_impl_")
def index_put_in_place(
    engine: OpenCLEngine, self: Array, indices: Any, values: Array, accumulate: bool = False,
    unsafe: bool = False,
) -> Array:  # fmt: skip
    engine.write(self, index_put(engine, self, indices, values, accumulate))
    return self


# ---- along one dimension


def _source(engine: OpenCLEngine, array: Array, chosen: Array, source: Array, dim: int) -> Array:
    """A row of the source for every chosen place, with as many dimensions. Raises ValueError."""
    host.check_rows(hollow(array.shape), hollow(chosen.shape), hollow(source.shape), dim)
    return source if source.ndim else source.viewed(source.dtype, (1,) * array.ndim)


@kernel("index_fill.int_Scalar", "index_fill.int_Tensor")
def index_fill(engine: OpenCLEngine, self: Array, dim: int, index: Array, value: Any) -> Array:
    if getattr(value, "ndim", 0):
        raise ValueError(f"the value has {value.ndim} dimensions, none is expected")
    out = fresh(engine, self)
    array, dim = along(out, dim)
    chosen = in_range(engine, flat_index(index), array.shape[dim], dim, negative=True)
    given = _number(engine, value, self.dtype)
    shape = (*array.shape[:dim], chosen.size, *array.shape[dim + 1 :])
    written(engine, array, dim, [chosen], given.broadcast_to(shape))
    return out


def _number(engine: OpenCLEngine, value: Any, kind: Any) -> Array:
    """One number as an array. Raises TypeError where the format has no place for it."""
    if type(value) is not Array:
        return filled(engine, (), kind, host.number(value, kind))
    if value.dtype.kind == "c" and kind.kind != "c":
        host.number(engine.download(value), kind)
    return engine.cast(value, kind)


@kernel("index_copy")
def index_copy(engine: OpenCLEngine, self: Array, dim: int, index: Array, source: Array) -> Array:
    out = fresh(engine, self)
    array, dim = along(out, dim)
    chosen = in_range(engine, flat_index(index), array.shape[dim], dim)
    given = _source(engine, array, chosen, source, dim)
    if source.dtype != self.dtype:
        raise TypeError(f"the source is {source.dtype}, the target is {self.dtype}")
    written(engine, array, dim, [chosen], given)
    return out


@kernel("index_add")
def index_add(
    engine: OpenCLEngine, self: Array, dim: int, index: Array, source: Array, alpha: Any = 1
) -> Array:
    array, dim = along(self, dim)
    chosen = in_range(engine, flat_index(index), array.shape[dim], dim)
    if source.dtype != self.dtype:
        raise TypeError(f"the source is {source.dtype}, the target is {self.dtype}")
    given = _source(engine, array, chosen, source, dim)
    work = formats.working(self.dtype)
    sums = fresh(engine, array, work)
    met(engine, sums, dim, [chosen], scaled(engine, given, work, alpha))
    return engine.cast(sums, self.dtype).viewed(self.dtype, self.shape)


@kernel("put")
def put(
    engine: OpenCLEngine, self: Array, index: Array, source: Array, accumulate: bool = False
) -> Array:
    if index.size != source.size:
        raise ValueError(f"{index.size} places for {source.size} numbers")
    flat = in_range(engine, index, self.size, 0, negative=True)
    flat = flat.viewed(flat.dtype, (flat.size,))
    values = shaped(engine, source, (source.size,))
    work = formats.working(self.dtype) if accumulate else self.dtype
    out, values = fresh(engine, self, work), engine.cast(values, work)
    into = met if accumulate else written
    into(engine, out.viewed(work, (self.size,)), 0, [flat], values)
    return engine.cast(out, self.dtype)


@kernel("masked_scatter")
def masked_scatter(engine: OpenCLEngine, self: Array, mask: Array, source: Array) -> Array:
    shape = numpy.broadcast_shapes(self.shape, mask.shape)
    place = mask_places(engine, mask.broadcast_to(shape))
    if place.size > source.size:
        raise ValueError(f"the mask asks for {place.size} numbers, the source has {source.size}")
    out = fresh(engine, self.broadcast_to(shape))
    values = engine.contiguous(source, self.dtype).viewed(self.dtype, (place.size,))
    written(engine, out.viewed(self.dtype, (math.prod(shape),)), 0, [place], values)
    return out


@kernel("masked_scatter_backward")
def masked_scatter_backward(
    engine: OpenCLEngine, grad_output: Array, mask: Array, sizes: Any
) -> Array:
    chosen = masked_select(engine, grad_output, mask.broadcast_to(grad_output.shape))
    out = filled(engine, (math.prod(sizes),), grad_output.dtype)
    engine.write(out.viewed(out.dtype, chosen.shape), chosen)
    return out.viewed(out.dtype, tuple(sizes))


# ---- scatter


def _prepared(
    engine: OpenCLEngine, self: Array, dim: int, index: Array, src: Any
) -> tuple[Array, Array, Any]:
    """A copy to write into (in the working format), flat places in it, flat values."""
    work = formats.working(self.dtype)
    out = fresh(engine, self, work)
    flat = out.viewed(work, (out.size,))
    if not index.size:
        return flat, engine.alloc((0,), formats.INT64), engine.alloc((0,), work)
    array, dim = along(out, dim)
    picks = index if index.ndim else index.viewed(index.dtype, (1,))
    host.corner(hollow(array.shape), picks.shape, dim)
    picks = in_range(engine, picks, array.shape[dim], dim)
    place = _flat_places(engine, picks, array, dim)
    if type(src) is not Array:
        return flat, place, _number(engine, src, work).broadcast_to(place.shape)
    if src.dtype != self.dtype:
        raise TypeError(f"the source is {src.dtype}, the target is {self.dtype}")
    given = src if src.ndim else src.viewed(src.dtype, (1,))
    host.corner(hollow(given.shape), picks.shape)
    part = given.viewed(given.dtype, picks.shape, given.strides)
    return flat, place, shaped(engine, engine.cast(part, work), place.shape)


def _flat_places(engine: OpenCLEngine, index: Array, array: Array, dim: int) -> Array:
    made = engine.alloc((index.size,), formats.INT64)
    table = Table(index.shape, array.steps, dim)
    spread(
        engine, moving(engine, "spread_places"), index.size, made, index,
        engine.upload(table.numbers), table.ndim, index.size, array.steps[dim],
    )  # fmt: skip
    return made


def _done(engine: OpenCLEngine, flat: Array, self: Array) -> Array:
    return engine.cast(flat, self.dtype).viewed(self.dtype, self.shape)


@kernel("scatter.src", "scatter.value")
def scatter(
    engine: OpenCLEngine, self: Array, dim: int, index: Array, src: Any = None, value: Any = None
) -> Array:
    out, place, values = _prepared(engine, self, dim, index, value if src is None else src)
    written(engine, out, 0, [place], values)
    return _done(engine, out, self)


@kernel("scatter.reduce", "scatter.value_reduce")
def scatter_with(
    engine: OpenCLEngine, self: Array, dim: int, index: Array, src: Any = None,
    value: Any = None, *, reduce: str,
) -> Array:  # fmt: skip
    if reduce not in ("add", "multiply"):
        raise ValueError(f"there is no reduction {reduce!r}; 'add' and 'multiply' are")
    out, place, values = _prepared(engine, self, dim, index, value if src is None else src)
    met(engine, out, 0, [place], values, reduce)
    return _done(engine, out, self)


@kernel("scatter_add")
def scatter_add(engine: OpenCLEngine, self: Array, dim: int, index: Array, src: Array) -> Array:
    return scatter_with(engine, self, dim, index, src, reduce="add")


@kernel("scatter_reduce.two")
def scatter_reduce(
    engine: OpenCLEngine, self: Array, dim: int, index: Array, src: Array, reduce: str,
    include_self: bool = True,
) -> Array:  # fmt: skip
    if reduce not in ("sum", "prod", "mean", "amax", "amin"):
        raise ValueError(f"there is no reduction {reduce!r}; sum, prod, mean, amax and amin are")
    out, place, values = _prepared(engine, self, dim, index, src)
    if place.size and not include_self:
        start = filled(engine, (), out.dtype, _start(reduce, out.dtype))
        written(engine, out, 0, [place], start.broadcast_to(place.shape))
    met(engine, out, 0, [place], values, _OPS[reduce])
    if reduce == "mean" and place.size:
        _divide(engine, out, place, include_self)
    return _done(engine, out, self)


def _divide(engine: OpenCLEngine, out: Array, place: Array, include_self: bool) -> None:
    """Sums become means: divided by how many numbers met."""
    counts = filled(engine, out.shape, formats.INT64, int(include_self))
    one = filled(engine, (), formats.INT64, 1)
    met(engine, counts, 0, [place], one.broadcast_to(place.shape))
    type = working(out.dtype)
    given = [elementwise.Input("sum", out, type), elementwise.Input("count", counts, "long")]
    many = "max($count, 1L)"
    text = f"$sum / ({type}){many}"
    if out.dtype.kind in "iu":  # rounded down
        text = f"$sum / {many} - ($sum % {many} != 0 && $sum < 0)"
    elementwise.compute(engine, text, given, [], out)


@functools.cache
def _start(reduce: str, dtype: Any) -> Any:
    """What a reduction begins with: it leaves everything else as it is."""
    if reduce in ("prod", "sum", "mean"):
        return int(reduce == "prod")
    if dtype == formats.BOOL:
        return reduce == "amin"
    if dtype.kind in "iu":
        limits = numpy.iinfo(dtype)
        return limits.min if reduce == "amax" else limits.max
    return -numpy.inf if reduce == "amax" else numpy.inf


@kernel("index_reduce")
def index_reduce(
    engine: OpenCLEngine, self: Array, dim: int, index: Array, source: Array, reduce: str,
    include_self: bool = True,
) -> Array:  # fmt: skip
    if reduce not in ("prod", "mean", "amax", "amin"):
        raise ValueError(f"there is no reduction {reduce!r}; prod, mean, amax and amin are")
    chosen = flat_index(index)
    if not source.ndim:
        spread_index = chosen.viewed(chosen.dtype, ())
    else:
        dim = normalized_dim(dim, source.ndim)
        if chosen.size != source.shape[dim]:
            raise ValueError(f"{chosen.size} indices for {source.shape[dim]} rows of the source")
        lined = tuple(chosen.size if d == dim else 1 for d in range(source.ndim))
        spread_index = shaped(engine, chosen, lined).broadcast_to(source.shape)
    return scatter_reduce(engine, self, dim, spread_index, source, reduce, include_self)


# ---- counting


@kernel("bincount")
def bincount(engine: OpenCLEngine, self: Array, weights: Any = None, minlength: int = 0) -> Array:
    """Waits for the least and the greatest number: they say how long the result is."""
    if self.ndim != 1 or self.dtype.kind not in "iu":
        raise TypeError("bincount counts whole numbers in one dimension")
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
    kind, given = formats.INT64, filled(engine, (), formats.INT64, 1)
    if weights is not None:
        kind = formats.FLOAT64 if engine.has_double else formats.FLOAT32
        given = engine.cast(weights, kind)
    made = filled(engine, (max(high + 1, minlength),), kind)
    met(engine, made, 0, [engine.contiguous(self, formats.INT64)], given.broadcast_to(self.shape))
    if weights is not None and weights.dtype == formats.FLOAT32:
        return engine.cast(made, formats.FLOAT32)
    return made
