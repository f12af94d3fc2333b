"""Embeddings: rows of a table, alone or in bags, and their gradients.

Indices are checked before anything is computed.
"""

from __future__ import annotations

from typing import Any

import numpy

from holdfast.compute import dtype as dtypes
from holdfast.compute.engines.numpy import scipy
from holdfast.compute.engines.numpy.kernels import cast, kernel, widen

SUM, MEAN, MAX = range(3)
_FEW = 64  # indices; for more, a product with a sparse matrix is faster


def _check_indices(indices: Any, rows: int) -> Any:
    if dtypes.category(indices.dtype) != dtypes.INTEGER:
        raise TypeError(f"indices must be integers, not {indices.dtype}")
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
    return numpy.take(weight, _check_indices(indices, weight.shape[0]), axis=0)


def _sum_rows(values: Any, indices: Any, count: int) -> Any:
    """A table of `count` rows: row i is the sum of the rows of `values` whose index is i."""
    if indices.size <= _FEW:
        made = numpy.zeros((count, values.shape[1]), values.dtype)
        numpy.add.at(made, indices, values)
        return made
    # A product with a sparse matrix of ones: NumPy's `add.at` takes 15 times as long for rows.
    size = indices.size
    ones, ends = numpy.ones(size, values.dtype), numpy.arange(size + 1)
    return scipy.submodule("sparse").csc_matrix((ones, indices, ends), (count, size)) @ values


def _divide_by_counts(indices: Any, rows: int, values: Any) -> Any:
    counts = numpy.bincount(indices, minlength=rows)[indices]
    return values / counts.astype(values.dtype)[:, None]


@kernel("embedding_dense_backward")
def embedding_dense_backward(
    grad_output: Any, indices: Any, num_weights: int, padding_idx: int, scale_grad_by_freq: bool
) -> Any:
    rows = _check_indices(indices, num_weights).reshape(-1)
    values = widen(grad_output).reshape(rows.size, grad_output.shape[-1])
    made = _table_gradient(values, rows, num_weights, scale_grad_by_freq, padding_idx)
    return cast(made, grad_output.dtype)


def _table_gradient(values: Any, rows: Any, count: int, by_frequency: bool, padding: int) -> Any:
    if by_frequency and rows.size:
        values = _divide_by_counts(rows, count, values)
    if padding >= 0:
        kept = rows != padding
        rows, values = rows[kept], values[kept]
    return _sum_rows(values, rows, count)


@kernel("embedding_renorm")
def embedding_renorm(self: Any, indices: Any, max_norm: float, norm_type: float) -> Any:
    made = self.copy()
    rows = numpy.unique(_check_indices(indices, self.shape[0]))
    values = widen(self[rows])
    sizes = numpy.linalg.norm(values, ord=norm_type, axis=1)
    large = sizes > max_norm
    factor = (max_norm / (sizes[large] + 1e-7)).astype(values.dtype)
    made[rows[large]] = cast(values[large] * factor[:, None], self.dtype)
    return made


# ---- bags


def bags_of(indices: Any, offsets: Any, include_last: bool) -> tuple[Any, int]:
    """The bag of every index, and how many bags there are."""
    if indices.ndim != 1 or offsets.ndim != 1:
        raise ValueError("indices and offsets of bags must have one dimension")
    starts = offsets[:-1] if include_last else offsets
    if starts.size and (starts[0] != 0 or starts.max() > indices.size):
        raise ValueError(
            f"offsets must begin with 0 and not exceed {indices.size}; they are {starts[:8]} …"
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
    _check_indices(indices, weight.shape[0])
    bags, count = bags_of(indices, offsets, include_last_offset)
    kept = indices != padding_idx if padding_idx >= 0 else slice(None)
    rows, homes = indices[kept], bags[kept]
    sizes = numpy.bincount(homes, minlength=count).astype(indices.dtype)
    values = widen(weight)[rows]
    if per_sample_weights is not None:
        values = values * widen(per_sample_weights)[kept][:, None]
    if mode == MAX:
        made, chosen = _max_of_bags(values, rows, homes, sizes)
        return cast(made, weight.dtype), bags, sizes, chosen
    made = _sum_rows(values, homes, count)
    if mode == MEAN:
        made /= numpy.maximum(sizes, 1).astype(made.dtype)[:, None]
    return cast(made, weight.dtype), bags, sizes, numpy.zeros(count, indices.dtype)


def _max_of_bags(values: Any, rows: Any, homes: Any, sizes: Any) -> tuple[Any, Any]:
    """The maximum of each bag and column, and the row of the table it comes from."""
    made = numpy.zeros((sizes.size, values.shape[1]), values.dtype)
    chosen = numpy.zeros(made.shape, rows.dtype)
    filled = numpy.flatnonzero(sizes)
    if filled.size:
        starts = numpy.searchsorted(homes, filled)
        made[filled] = numpy.maximum.reduceat(values, starts, axis=0)
        chosen[filled] = rows[_first_equal(values, made[homes], starts)]
    return made, chosen


def _first_equal(values: Any, wanted: Any, starts: Any) -> Any:
    """The first row of each segment, by column, where `values` equals `wanted`."""
    indices = numpy.arange(values.shape[0])[:, None]
    found = numpy.where(values == wanted, indices, values.shape[0] - 1)
    return numpy.minimum.reduceat(found, starts, axis=0)


@kernel("_embedding_bag_dense_backward")
def embedding_bag_dense_backward(
    grad: Any, indices: Any, offset2bag: Any, bag_size: Any, maximum_indices: Any,
    num_weights: int, scale_grad_by_freq: bool, mode: int, per_sample_weights: Any,
    padding_idx: int = -1,
) -> Any:  # fmt: skip
    wide = widen(grad)
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
        values = values * widen(per_sample_weights)[:, None]
    made = _table_gradient(values, indices, num_weights, scale_grad_by_freq, padding_idx)
    return cast(made, grad.dtype)


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
    found = numpy.vecdot(widen(grad)[offset2bag], widen(weight)[indices])
    if padding_idx >= 0:
        found = numpy.where(indices == padding_idx, found.dtype.type(0), found)
    return cast(found, grad.dtype)
