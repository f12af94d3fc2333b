"""Kernels that look up rows of a table, alone or in bags.

Covers: rows and their gradients, sums and means of bags.
Leaves to others: the largest of bags, tables whose rows have a greatest length (the host).
Promise: rows that several places share get the sum of their gradients; an index outside of the
table is refused before anything is computed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy

from holdfast.compute import dtype as formats
from holdfast.compute.engines.numpy import embedding as host
from holdfast.compute.engines.opencl import elementwise
from holdfast.compute.engines.opencl.array import Array, NotHere
from holdfast.compute.engines.opencl.indexing import hollow, in_range
from holdfast.compute.engines.opencl.kernels import kernel, working
from holdfast.compute.engines.opencl.placing import met, taken
from holdfast.compute.engines.opencl.views import fill, filled, picked, shaped

if TYPE_CHECKING:
    from holdfast.compute.engines.opencl.engine import OpenCLEngine

_INT64 = formats.INT64


def _checked(engine: OpenCLEngine, indices: Array, rows: int) -> Array:
    """Indices as contiguous int64. Raises IndexError where the table has no such row."""
    if formats.category(indices.dtype) != formats.INTEGER:
        raise TypeError(f"indices are whole numbers, not {indices.dtype}")
    try:
        return in_range(engine, indices, rows, 0)
    except IndexError:
        raise IndexError(f"an index is outside of a table of {rows} rows") from None


@kernel("embedding")
def embedding(
    engine: OpenCLEngine, weight: Array, indices: Array, padding_idx: int = -1,
    scale_grad_by_freq: bool = False, sparse: bool = False,
) -> Array:  # fmt: skip
    if weight.ndim != 2:
        raise ValueError(f"a table of rows has 2 dimensions, not {weight.ndim}")
    return taken(engine, weight, 0, [_checked(engine, indices, weight.shape[0])])


def _times(engine: OpenCLEngine, rows: Array, factors: Array, text: str = "$rows * $by") -> Array:
    """Rows times a number for each of them, or divided by it; in the format of the rows."""
    made, kind = engine.alloc(rows.shape, rows.dtype), working(rows.dtype)
    column = factors.viewed(factors.dtype, (*factors.shape, 1), (*factors.strides, 0))
    given = [elementwise.Input("rows", rows, kind), elementwise.Input("by", column, kind)]
    return elementwise.compute(engine, text, given, [], made)


def _added(
    engine: OpenCLEngine, values: Array, places: Array, count: int, padding_idx: int = -1
) -> Array:
    """A table of `count` rows with every row of `values` added at its place, but one row."""
    made = filled(engine, (count, values.shape[1]), values.dtype)
    met(engine, made, 0, [places], values)
    if padding_idx >= 0:
        fill(engine, picked(made, 0, padding_idx), 0)
    return made


def _counted(engine: OpenCLEngine, places: Array, count: int, shares: Array | None = None) -> Array:
    """How often each place is there, or the sum of its shares."""
    made = filled(engine, (count,), _INT64)
    if shares is None:
        shares = filled(engine, (), _INT64, 1).broadcast_to(places.shape)
    met(engine, made, 0, [places], shares)
    return made


def _by_frequency(engine: OpenCLEngine, values: Array, places: Array, count: int) -> Array:
    counts = _counted(engine, places, count)
    return _times(engine, values, taken(engine, counts, 0, [places]), "$rows / $by")


@kernel("embedding_dense_backward")
def embedding_dense_backward(
    engine: OpenCLEngine, grad_output: Array, indices: Array, num_weights: int, padding_idx: int,
    scale_grad_by_freq: bool,
) -> Array:  # fmt: skip
    places = _checked(engine, indices, num_weights)
    places = places.viewed(_INT64, (places.size,))
    work = formats.working(grad_output.dtype)
    width = grad_output.shape[-1]
    values = shaped(engine, engine.cast(grad_output, work), (places.size, width))
    if scale_grad_by_freq and places.size:
        values = _by_frequency(engine, values, places, num_weights)
    made = _added(engine, values, places, num_weights, padding_idx)
    return engine.cast(made, grad_output.dtype)


# ---- bags


def _kept(engine: OpenCLEngine, indices: Array, padding_idx: int) -> Array:
    """1 for every index but the one that stands for nothing."""
    made = engine.alloc(indices.shape, _INT64)
    given = elementwise.Input("index", indices, "long")
    number = elementwise.Number("none", padding_idx, "long")
    return elementwise.compute(engine, "(long)($index != $none)", [given], [number], made)


@kernel("_embedding_bag", "_embedding_bag_forward_only")
def embedding_bag(
    engine: OpenCLEngine, weight: Array, indices: Array, offsets: Array,
    scale_grad_by_freq: bool = False, mode: int = host.SUM, sparse: bool = False,
    per_sample_weights: Any = None, include_last_offset: bool = False, padding_idx: int = -1,
) -> Any:  # fmt: skip
    if mode not in (host.SUM, host.MEAN, host.MAX):
        raise ValueError(f"mode {mode} is unknown; 0 is sum, 1 is mean, 2 is max")
    if per_sample_weights is not None and mode != host.SUM:
        raise ValueError("per_sample_weights are for the sum only")
    if mode == host.MAX:
        raise NotHere("the largest of bags")
    rows = _checked(engine, indices, weight.shape[0])
    # Offsets are few, and must be looked at: this waits for them.
    found, count = host.bags_of(
        hollow(indices.shape), engine.download(offsets), include_last_offset
    )
    homes = engine.upload(found.astype(numpy.int64))
    kept = _kept(engine, rows, padding_idx)
    sizes = _counted(engine, homes, count, kept)
    work = formats.working(weight.dtype)
    values = engine.cast(taken(engine, weight, 0, [rows]), work)
    if padding_idx >= 0:
        values = _times(engine, values, kept)
    if per_sample_weights is not None:
        values = _times(engine, values, per_sample_weights)
    made = _added(engine, values, homes, count)
    if mode == host.MEAN:
        made = _times(engine, made, sizes, "$rows / ($by > 0 ? $by : 1)")
    kind = indices.dtype
    nothing = filled(engine, (count,), kind)
    made = engine.cast(made, weight.dtype)
    return made, engine.cast(homes, kind), engine.cast(sizes, kind), nothing


@kernel("_embedding_bag_dense_backward")
def embedding_bag_dense_backward(
    engine: OpenCLEngine, grad: Array, indices: Array, offset2bag: Array, bag_size: Array,
    maximum_indices: Array, num_weights: int, scale_grad_by_freq: bool, mode: int,
    per_sample_weights: Any, padding_idx: int = -1,
) -> Array:  # fmt: skip
    if mode == host.MAX:
        raise NotHere("the largest of bags")
    wide = engine.cast(grad, formats.working(grad.dtype))
    if mode == host.MEAN:
        wide = _times(engine, wide, bag_size, "$rows / ($by > 0 ? $by : 1)")
    bags = in_range(engine, offset2bag, grad.shape[0], 0)
    places = _checked(engine, indices, num_weights)
    values = taken(engine, wide, 0, [bags])
    if per_sample_weights is not None:
        values = _times(engine, values, per_sample_weights)
    if scale_grad_by_freq and indices.size:
        values = _by_frequency(engine, values, places, num_weights)
    made = _added(engine, values, places, num_weights, padding_idx)
    return engine.cast(made, grad.dtype)


@kernel("_embedding_bag_backward")
def embedding_bag_backward(
    engine: OpenCLEngine, grad: Array, indices: Array, offsets: Array, offset2bag: Array,
    bag_size: Array, maximum_indices: Array, num_weights: int, scale_grad_by_freq: bool, mode: int,
    sparse: bool, per_sample_weights: Any, padding_idx: int = -1,
) -> Array:  # fmt: skip
    return embedding_bag_dense_backward(
        engine, grad, indices, offset2bag, bag_size, maximum_indices, num_weights,
        scale_grad_by_freq, mode, per_sample_weights, padding_idx,
    )  # fmt: skip
