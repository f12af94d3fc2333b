"""Reading by indices and masks.

An index out of range raises IndexError before a kernel runs. This check waits for the device, once
for each index array; so does counting the true elements of a mask.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy

from holdfast.compute import dtype as dtypes
from holdfast.compute.engines.numpy.index import indexing as host
from holdfast.compute.engines.opencl.elementwise import strided_kernels
from holdfast.compute.engines.opencl.index.gather_scatter import launch_over, move_kernel, take_at
from holdfast.compute.engines.opencl.layout.views import as_bits, bits_type, make_copy, to_shape
from holdfast.compute.engines.opencl.runtime.array import Array, NotHere, collapse_dims
from holdfast.compute.engines.opencl.runtime.engine_protocol import CLEngine
from holdfast.compute.engines.opencl.runtime.kernel_table import kernel, working
from holdfast.compute.ops.index.resolve import resolve_indices, single_mask
from holdfast.compute.ops.rules import normalize_dim

_LEAST = 4096  # elements that make a work-item worthwhile on CPUs
_STRETCH = 64  # mask elements per work-item on GPUs
_FEW_BYTES = 1 << 15  # of indices that are checked on the host
_INT64 = dtypes.INT64


# ---- indices


def in_range(engine: CLEngine, index: Array, size: int, dim: int, negative: bool = False) -> Array:
    """The index as contiguous int64. Raises IndexError if it is out of range for `dim`."""
    if index.dtype.kind not in "iu":
        raise TypeError(f"indices must be integers, not {index.dtype}")
    plain = engine.contiguous(index, _INT64)
    if not plain.size:
        return plain
    if plain.nbytes > _FEW_BYTES:
        flag = engine.upload(numpy.zeros(1, numpy.int64))
        low = -size if negative else 0
        launch_over(
            engine, move_kernel(engine, "check"), plain.size, flag, plain, plain.size, low, size
        )
        if not engine.download(flag)[0]:
            return plain
    host.check_range(engine.download(plain), size, dim, negative)
    return plain


def true_indices(engine: CLEngine, mask: Array) -> Array:
    """Flat indices of the true elements, in order. Waits for their count."""
    flat = as_mask(engine, mask)
    count = flat.size
    if not count:
        return engine.alloc((0,), _INT64)
    each = max(_LEAST, -(-count // (engine.units * 4))) if engine.mapping == "cpu" else _STRETCH
    items = -(-count // each)
    group = 1 if engine.mapping == "cpu" else min(64, engine.most_items)
    size = (-(-items // group) * group,)
    counts = engine.alloc((items,), _INT64)
    engine.launch(move_kernel(engine, "count_true"), size, (group,), counts, flat, count, each)
    ends = numpy.cumsum(engine.download(counts))
    place = engine.alloc((int(ends[-1]),), _INT64)
    if place.size:
        starts = engine.upload(numpy.concatenate([[0], ends[:-1]]))
        engine.launch(
            move_kernel(engine, "list_true"), size, (group,), place, starts, flat, count, each
        )
    return place


def as_mask(engine: CLEngine, array: Array) -> Array:
    """Whether each element is nonzero, contiguous."""
    if array.dtype.itemsize == 1 and array.dtype.kind in "biu":
        return engine.contiguous(array)
    made = engine.alloc(array.shape, dtypes.BOOL)
    given = strided_kernels.Input("self", array, working(array.dtype))
    return strided_kernels.compute(engine, "$self != 0", [given], [], made)


def unravel(engine: CLEngine, flat: Array, shape: Sequence[int]) -> list[Array]:
    """Flat indices as one index array per dimension."""
    found = []
    for d, size in enumerate(shape):
        made = engine.alloc(flat.shape, _INT64)
        values = {"step": math.prod(shape[d + 1 :]), "size": max(size, 1)}
        numbers = [strided_kernels.Number(name, n, "long") for name, n in values.items()]
        given = strided_kernels.Input("flat", flat, "long")
        strided_kernels.compute(engine, "$flat / $step % $size", [given], numbers, made)
        found.append(made)
    return found


def expand_indices(engine: CLEngine, shape: Sequence[int], indices: Sequence[Any]) -> list[Any]:
    """One entry per dimension: contiguous int64 indices of a common shape, or None for all."""

    def locate(mask: Array) -> list[Array]:
        return unravel(engine, true_indices(engine, mask), mask.shape)

    def prepare(index: Array, size: tuple[int, ...], dim: int) -> Array:
        if math.prod(size):
            index = in_range(engine, index, shape[dim], dim, negative=True)
        return engine.contiguous(index.broadcast_to(size), _INT64)

    return resolve_indices(shape, indices, locate, prepare)


# ---- lists of indices


def make_adjacent(array: Array, found: Sequence[Any]) -> tuple[Array, int, list[int]]:
    """The array with its indexed dimensions adjacent, the first of them, and which they were.

    They come first unless they were adjacent before, as in torch.
    """
    dims = [d for d, f in enumerate(found) if f is not None]
    if dims[-1] - dims[0] == len(dims) - 1:
        return array, dims[0], dims
    order = [*dims, *(d for d in range(array.ndim) if d not in dims)]
    return array.transpose(order), 0, dims


@kernel("index.Tensor", "_unsafe_index.Tensor")
def index_tensor(engine: CLEngine, self: Array, indices: Any) -> Array:
    single = as_single_mask(engine, self, indices)
    if single is not None:
        return take_at(engine, single[0], single[1], [single[2]], negative=False)
    found = expand_indices(engine, self.shape, indices)
    if all(f is None for f in found):
        return make_copy(engine, self)
    array, at, dims = make_adjacent(self, found)
    return take_at(engine, array, at, [found[d] for d in dims])


def as_single_mask(engine: CLEngine, self: Array, indices: Any) -> tuple[Array, int, Array] | None:
    """For a single mask: the array with masked dimensions merged, that dimension, flat indices."""
    found = single_mask(self.shape, indices)
    if found is None:
        return None
    dim, mask = found
    flat = to_shape(engine, self, (*self.shape[:dim], mask.size, *self.shape[dim + mask.ndim :]))
    return flat, dim, true_indices(engine, mask)


# ---- along one dimension


def at_least_1d(array: Array, dim: int) -> tuple[Array, int]:
    """The array with at least one dimension, and `dim` counted from 0."""
    dim = normalize_dim(dim, array.ndim)
    return (array if array.ndim else array.view(array.dtype, (1,))), dim


def flat_index(index: Array) -> Array:
    """A 0-d index as one of length 1."""
    return index if index.ndim else index.view(index.dtype, (1,))


@kernel("index_select")
def index_select(engine: CLEngine, self: Array, dim: int, index: Array) -> Array:
    array, dim = at_least_1d(self, dim)
    chosen = in_range(engine, flat_index(index), array.shape[dim], dim)
    out = take_at(engine, array, dim, [chosen])
    return out if self.ndim else out.view(out.dtype, ())


@kernel("gather")
def gather(
    engine: CLEngine, self: Array, dim: int, index: Array, sparse_grad: bool = False
) -> Array:
    array, dim = at_least_1d(self, dim)
    picks = index if index.ndim else index.view(index.dtype, (1,))
    if not picks.size:
        return engine.alloc(index.shape, self.dtype)
    picks = in_range(engine, picks, array.shape[dim], dim)
    return gather_along(engine, array, dim, picks).view(self.dtype, index.shape)


def gather_along(engine: CLEngine, array: Array, dim: int, index: Array) -> Array:
    """array[index] along `dim`; the index is contiguous int64 and in range."""
    if array.dtype.kind == "c":
        raise NotHere("complex numbers")
    made = engine.alloc(index.shape, array.dtype)
    plain, table = as_bits(array), OffsetTable(index.shape, array.steps, dim)
    launch_over(
        engine, move_kernel(engine, "gather", bits_type(plain)), index.size,
        made, plain, index, engine.upload(table.numbers), table.ndim, index.size,
        array.steps[dim],
    )  # fmt: skip
    return made


class OffsetTable:
    """Sizes of an index array and steps of the array it points into, with dimensions merged."""

    def __init__(self, shape: Sequence[int], steps: Sequence[int], dim: int) -> None:
        own = [0 if d == dim else step for d, step in enumerate(steps)]
        sizes, (kept,) = collapse_dims(shape, [own])
        sizes, kept = sizes or [1], kept or [0]
        self.ndim = len(sizes)
        self.numbers = numpy.array([*sizes, *kept], numpy.int64)


@kernel("take")
def take(engine: CLEngine, self: Array, index: Array) -> Array:
    places = in_range(engine, index, self.size, 0, negative=True)
    return take_at(engine, to_shape(engine, self, (self.size,)), 0, [places])


# ---- masks


@kernel("masked_select")
def masked_select(engine: CLEngine, self: Array, mask: Array) -> Array:
    shape = numpy.broadcast_shapes(self.shape, mask.shape)
    flat = to_shape(engine, self.broadcast_to(shape), (math.prod(shape),))
    place = true_indices(engine, mask.broadcast_to(shape))
    return take_at(engine, flat, 0, [place], negative=False)


@kernel("nonzero")
def nonzero(engine: CLEngine, self: Array) -> Array:
    flat = true_indices(engine, self)
    made = engine.alloc((flat.size, self.ndim), _INT64)
    for d, column in enumerate(unravel(engine, flat, self.shape)):
        engine.write(made.view(_INT64, (flat.size,), (8 * self.ndim,), 8 * d), column)
    return made
