"""Embedding lookups, embedding bags (sum and mean), and their gradients.

Rows that are looked up several times get the sum of their gradients. An index outside of the table
raises before anything is computed.
"""

from __future__ import annotations

from typing import Any

import numpy

from holdfast.compute import dtype as dtypes
from holdfast.compute.engines.opencl.elementwise import strided_kernels
from holdfast.compute.engines.opencl.index.gather_scatter import reduce_at, take_at
from holdfast.compute.engines.opencl.index.indexing import in_range
from holdfast.compute.engines.opencl.layout.views import make_full, to_shape
from holdfast.compute.engines.opencl.runtime.array import Array, NotHere
from holdfast.compute.engines.opencl.runtime.engine_protocol import CLEngine
from holdfast.compute.engines.opencl.runtime.kernel_table import kernel, working
from holdfast.compute.ops.index.embedding import MAX, MEAN, SUM, bags_of

_INT64 = dtypes.INT64


def _check_indices(engine: CLEngine, indices: Array, rows: int) -> Array:
    """Indices as contiguous int64. Raises IndexError if the table has no such row."""
    try:
        return in_range(engine, indices, rows, 0)
    except IndexError:
        raise IndexError(f"an index is outside of a table of {rows} rows") from None


@kernel("embedding")
def embedding(
    engine: CLEngine, weight: Array, indices: Array, padding_idx: int = -1,
    scale_grad_by_freq: bool = False, sparse: bool = False,
) -> Array:  # fmt: skip
    return take_at(engine, weight, 0, [_check_indices(engine, indices, weight.shape[0])])


def _scale_rows(engine: CLEngine, rows: Array, factors: Array, text: str = "$rows * $by") -> Array:
    """Multiply or divide each row by its own factor, in the dtype of the rows."""
    made, kind = engine.alloc(rows.shape, rows.dtype), working(rows.dtype)
    column = factors.view(factors.dtype, (*factors.shape, 1), (*factors.strides, 0))
    given = [strided_kernels.Input("rows", rows, kind), strided_kernels.Input("by", column, kind)]
    return strided_kernels.compute(engine, text, given, [], made)


def _sum_rows(
    engine: CLEngine, values: Array, places: Array, count: int, padding_idx: int = -1
) -> Array:
    """A table of `count` rows, the sums of `values` by index; row `padding_idx` stays 0."""
    made = make_full(engine, (count, values.shape[1]), values.dtype)
    reduce_at(engine, made, 0, [places], values)
    if padding_idx >= 0:
        made[padding_idx].fill(0)
    return made


def _count(engine: CLEngine, places: Array, count: int, shares: Array | None = None) -> Array:
    """How often each index occurs, or the sum of its `shares`."""
    made = make_full(engine, (count,), _INT64)
    if shares is None:
        shares = make_full(engine, (), _INT64, 1).broadcast_to(places.shape)
    reduce_at(engine, made, 0, [places], shares)
    return made


@kernel("embedding_dense_backward")
def embedding_dense_backward(
    engine: CLEngine, grad_output: Array, indices: Array, num_weights: int, padding_idx: int,
    scale_grad_by_freq: bool,
) -> Array:  # fmt: skip
    places = _check_indices(engine, indices, num_weights)
    places = places.view(_INT64, (places.size,))
    work = dtypes.working(grad_output.dtype)
    width = grad_output.shape[-1]
    values = to_shape(engine, engine.cast(grad_output, work), (places.size, width))
    if scale_grad_by_freq and places.size:
        counts = take_at(engine, _count(engine, places, num_weights), 0, [places])
        values = _scale_rows(engine, values, counts, "$rows / $by")
    made = _sum_rows(engine, values, places, num_weights, padding_idx)
    return engine.cast(made, grad_output.dtype)


# ---- bags


def _padding_mask(engine: CLEngine, indices: Array, padding_idx: int) -> Array:
    """1 for every index, 0 for `padding_idx`."""
    made = engine.alloc(indices.shape, _INT64)
    given = strided_kernels.Input("index", indices, "long")
    number = strided_kernels.Number("none", padding_idx, "long")
    return strided_kernels.compute(engine, "(long)($index != $none)", [given], [number], made)


@kernel("_embedding_bag", "_embedding_bag_forward_only")
def embedding_bag(
    engine: CLEngine, weight: Array, indices: Array, offsets: Array,
    scale_grad_by_freq: bool = False, mode: int = SUM, sparse: bool = False,
    per_sample_weights: Any = None, include_last_offset: bool = False, padding_idx: int = -1,
) -> Any:  # fmt: skip
    if mode == MAX:
        raise NotHere("the largest of bags")
    rows = _check_indices(engine, indices, weight.shape[0])
    # Offsets are few, and the host must read them: this waits.
    found, count = bags_of(indices.size, engine.download(offsets), include_last_offset)
    homes = engine.upload(found.astype(numpy.int64))
    kept = _padding_mask(engine, rows, padding_idx)
    sizes = _count(engine, homes, count, kept)
    work = dtypes.working(weight.dtype)
    values = engine.cast(take_at(engine, weight, 0, [rows]), work)
    if padding_idx >= 0:
        values = _scale_rows(engine, values, kept)
    if per_sample_weights is not None:
        values = _scale_rows(engine, values, per_sample_weights)
    made = _sum_rows(engine, values, homes, count)
    if mode == MEAN:
        made = _scale_rows(engine, made, sizes, "$rows / ($by > 0 ? $by : 1)")
    kind = indices.dtype
    nothing = make_full(engine, (count,), kind)
    made = engine.cast(made, weight.dtype)
    return made, engine.cast(homes, kind), engine.cast(sizes, kind), nothing
