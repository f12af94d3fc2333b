"""Kernels that look up rows of a table, alone or in bags.

Promise: rows that several places share get the sum of their gradients; an index outside of the
table is refused before anything is computed.
"""

from __future__ import annotations

from typing import Any

import numpy

from holdfast.compute import dtype as formats
from holdfast.compute.engines.numpy import scipy
from holdfast.compute.engines.numpy.kernels import cast, kernel, widened

SUM, MEAN, MAX = range(3)
_FEW = 64  # places from which making a sparse matrix pays


def _checked(indices: Any, rows: int) -> Any:
    if formats.category(indices.dtype) != formats.INTEGER:
        raise TypeError(f"indices are whole numbers, not {indices.dtype}")
    if indices.size and (indices.min() < 0 or indices.max() >= rows):
        raise IndexError(f"an index is outside of a table of {rows} rows")
    return indices


@kernel("embedding")
def embedding(
    weight: Any, indices: Any, padding_idx: int = -1, scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Any:  # fmt: skip
    if weight.ndim != 2:
        raise ValueError(f"a table of rows has 2 dimensions, not {weight.ndim}")
    return numpy.take(weight, _checked(indices, weight.shape[0]), axis=0)


def _added_rows(values: Any, places: Any, count: int) -> Any:
    """A table of `count` rows with every row of `values` added at its place."""
    if places.size <= _FEW:
        made = numpy.zeros((count, values.shape[1]), values.dtype)
        numpy.add.at(made, places, values)
        return made
    # A product with a matrix that has a 1 where a row belongs: NumPy's `add.at` takes 15 times as
    # long for rows.
    ones, ends = numpy.ones(places.size, values.dtype), numpy.arange(places.size + 1)
    chosen = scipy.part("sparse").csc_matrix((ones, places, ends), shape=(count, places.size))
    return chosen @ values


def _frequencies(indices: Any, rows: int, values: Any) -> Any:
    counts = numpy.bincount(indices, minlength=rows)[indices]
    return values / counts.astype(values.dtype)[:, None]


@kernel("embedding_dense_backward")
def embedding_dense_backward(
    grad_output: Any, indices: Any, num_weights: int, padding_idx: int, scale_grad_by_freq: bool
) -> Any:
    places = _checked(indices, num_weights).reshape(-1)
    values = widened(grad_output).reshape(places.size, grad_output.shape[-1])
    if scale_grad_by_freq and places.size:
        values = _frequencies(places, num_weights, values)
    if padding_idx >= 0:
        kept = places != padding_idx
        places, values = places[kept], values[kept]
    return cast(_added_rows(values, places, num_weights), grad_output.dtype)


@kernel("embedding_renorm")
def embedding_renorm(self: Any, indices: Any, max_norm: float, norm_type: float) -> Any:
    made = self.copy()
    rows = numpy.unique(_checked(indices, self.shape[0]))
    values = widened(self[rows])
    sizes = numpy.linalg.norm(values, ord=norm_type, axis=1)
    large = sizes > max_norm
    factor = (max_norm / (sizes[large] + 1e-7)).astype(values.dtype)
    made[rows[large]] = cast(values[large] * factor[:, None], self.dtype)
    return made


# ---- bags


def bags_of(indices: Any, offsets: Any, include_last: bool) -> tuple[Any, int]:
    """The bag of every index, and how many bags there are."""
    if indices.ndim != 1 or offsets.ndim != 1:
        raise ValueError("indices and offsets of bags have one dimension")
    starts = offsets[:-1] if include_last else offsets
    if starts.size and (starts[0] != 0 or starts.max() > indices.size):
        raise ValueError(
            f"offsets begin with 0 and end within {indices.size} indices; they are {starts[:8]} …"
        )
    ends = numpy.append(starts[1:], indices.size)
    bags = numpy.repeat(numpy.arange(starts.size), numpy.maximum(ends - starts, 0))
    return bags.astype(indices.dtype), int(starts.size)


@kernel("_embedding_bag", "_embedding_bag_forward_only")
def embedding_bag(
    weight: Any, indices: Any, offsets: Any, scale_grad_by_freq: bool = False, mode: int = SUM,
    sparse: bool = False, per_sample_weights: Any = None, include_last_offset: bool = False,
    padding_idx: int = -1,
) -> Any:  # fmt: skip
    if mode not in (SUM, MEAN, MAX):
        raise ValueError(f"mode {mode} is unknown; 0 is sum, 1 is mean, 2 is max")
    if per_sample_weights is not None and mode != SUM:
        raise ValueError("per_sample_weights are for the sum only")
    _checked(indices, weight.shape[0])
    bags, count = bags_of(indices, offsets, include_last_offset)
    kept = indices != padding_idx if padding_idx >= 0 else slice(None)
    rows, homes = indices[kept], bags[kept]
    sizes = numpy.bincount(homes, minlength=count).astype(indices.dtype)
    values = widened(weight)[rows]
    if per_sample_weights is not None:
        values = values * widened(per_sample_weights)[kept][:, None]
    if mode == MAX:
        made, chosen = _largest(values, rows, homes, sizes)
        return cast(made, weight.dtype), bags, sizes, chosen
    made = _added_rows(values, homes, count)
    if mode == MEAN:
        made /= numpy.maximum(sizes, 1).astype(made.dtype)[:, None]
    return cast(made, weight.dtype), bags, sizes, numpy.zeros(count, indices.dtype)


def _largest(values: Any, rows: Any, homes: Any, sizes: Any) -> tuple[Any, Any]:
    """The largest number of each bag and column, and the row of the table it came from."""
    made = numpy.zeros((sizes.size, values.shape[1]), values.dtype)
    chosen = numpy.zeros(made.shape, rows.dtype)
    filled = numpy.flatnonzero(sizes)
    if filled.size:
        starts = numpy.searchsorted(homes, filled)
        made[filled] = numpy.maximum.reduceat(values, starts, axis=0)
        chosen[filled] = rows[_first_equal(values, made[homes], starts)]
    return made, chosen


def _first_equal(values: Any, wanted: Any, starts: Any) -> Any:
    """In each segment and column, the first place that holds what is wanted."""
    places = numpy.arange(values.shape[0])[:, None]
    found = numpy.where(values == wanted, places, values.shape[0] - 1)
    return numpy.minimum.reduceat(found, starts, axis=0)


@kernel("_embedding_bag_dense_backward")
def embedding_bag_dense_backward(
    grad: Any, indices: Any, offset2bag: Any, bag_size: Any, maximum_indices: Any,
    num_weights: int, scale_grad_by_freq: bool, mode: int, per_sample_weights: Any,
    padding_idx: int = -1,
) -> Any:  # fmt: skip
    wide = widened(grad)
    if mode == MAX:
        made = numpy.zeros((num_weights, grad.shape[1]), wide.dtype)
        filled = bag_size > 0
        columns = numpy.arange(grad.shape[1])[None, :]
        numpy.add.at(made, (maximum_indices[filled], columns), wide[filled])
        return cast(made, grad.dtype)
    if mode == MEAN:
        wide = wide / numpy.maximum(bag_size, 1).astype(wide.dtype)[:, None]
    values = wide[offset2bag]
    if per_sample_weights is not None:
        values = values * widened(per_sample_weights)[:, None]
    if scale_grad_by_freq and indices.size:
        values = _frequencies(indices, num_weights, values)
    if padding_idx >= 0:
        kept = indices != padding_idx
        values, indices = values[kept], indices[kept]
    return cast(_added_rows(values, indices, num_weights), grad.dtype)


@kernel("_embedding_bag_backward")
def embedding_bag_backward(
    grad: Any, indices: Any, offsets: Any, offset2bag: Any, bag_size: Any, maximum_indices: Any,
    num_weights: int, scale_grad_by_freq: bool, mode: int, sparse: bool, per_sample_weights: Any,
    padding_idx: int = -1,
) -> Any:  # fmt: skip
    return embedding_bag_dense_backward(
        grad, indices, offset2bag, bag_size, maximum_indices, num_weights, scale_grad_by_freq,
        mode, per_sample_weights, padding_idx,
    )  # fmt: skip


@kernel("_embedding_bag_per_sample_weights_backward")
def per_sample_weights_backward(
    grad: Any, weight: Any, indices: Any, offsets: Any, offset2bag: Any, mode: int,
    padding_idx: int = -1,
) -> Any:  # fmt: skip
    if mode != SUM:
        raise ValueError("per_sample_weights are for the sum only")
    found = numpy.vecdot(widened(grad)[offset2bag], widened(weight)[indices])
    if padding_idx >= 0:
        found = numpy.where(indices == padding_idx, found.dtype.type(0), found)
    return cast(found, grad.dtype)
