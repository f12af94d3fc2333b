"""Embeddings: rows of a table, alone or in bags, and their gradients.

Indices are checked before anything is computed.
"""

from __future__ import annotations

from typing import Any

import numpy

from holdfast.compute import dtype as dtypes
from holdfast.compute.engines.numpy import scipy
from holdfast.compute.engines.numpy.kernels import cast, kernel, widen
from holdfast.compute.ops.index.embedding import MAX, MEAN, SUM, bags_of

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


@kernel("embedding_dense_backward")
def embedding_dense_backward(
    grad_output: Any, indices: Any, num_weights: int, padding_idx: int, scale_grad_by_freq: bool
) -> Any:
    rows = _check_indices(indices, num_weights).reshape(-1)
    values = widen(grad_output).reshape(rows.size, grad_output.shape[-1])
    if scale_grad_by_freq and rows.size:
        counts = numpy.bincount(rows, minlength=num_weights)[rows]
        values = values / counts.astype(values.dtype)[:, None]
    if padding_idx >= 0:
        kept = rows != padding_idx
        rows, values = rows[kept], values[kept]
    return cast(_sum_rows(values, rows, num_weights), grad_output.dtype)


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


@kernel("_embedding_bag", "_embedding_bag_forward_only")
def embedding_bag(
    weight: Any, indices: Any, offsets: Any, scale_grad_by_freq: bool = False, mode: int = SUM,
    sparse: bool = False, per_sample_weights: Any = None, include_last_offset: bool = False,
    padding_idx: int = -1,
) -> Any:  # fmt: skip
    _check_indices(indices, weight.shape[0])
    bags, count = bags_of(indices.size, offsets, include_last_offset)
    bags = bags.astype(indices.dtype)
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
        last = len(values) - 1
        equal = numpy.where(values == made[homes], numpy.arange(last + 1)[:, None], last)
        chosen[filled] = rows[numpy.minimum.reduceat(equal, starts, axis=0)]  # the first of equals
    return made, chosen
