"""Reading and filling at indices or masks; `scatter` has writes where indices may repeat.

An index out of range raises IndexError, also where NumPy would count a negative one from the end
and torch does not.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy

from holdfast.compute.engines.numpy.kernels import kernel
from holdfast.compute.ops.rules import normalize_dim

# ---- lists of indices


def resolve_indices(shape: Sequence[int], indices: Sequence[Any]) -> list[Any]:
    """For each dimension an integer array, all broadcast to one shape, or None for all of it.

    A mask over several dimensions becomes one entry for each.
    """
    found: list[Any] = []
    for index in indices:
        if index is None:
            found.append(None)
        elif index.dtype == numpy.bool_ or index.dtype == numpy.uint8:
            found.extend(_mask_indices(shape, len(found), index))
        elif index.dtype.kind not in "iu":
            raise IndexError(f"an index has dtype {index.dtype}; integers and booleans are valid")
        else:
            found.append(index.astype(numpy.intp, copy=False))
    if len(found) > len(shape):
        raise IndexError(f"{len(found)} indices for {len(shape)} dimensions")
    return _broadcast_indices(shape, found)


def _mask_indices(shape: Sequence[int], dim: int, mask: Any) -> tuple[Any, ...]:
    _check_mask(shape, dim, mask)
    return numpy.nonzero(mask) if mask.ndim else numpy.nonzero(mask[None])[:0]


def _check_mask(shape: Sequence[int], dim: int, mask: Any) -> None:
    if tuple(shape[dim : dim + mask.ndim]) != mask.shape:
        raise IndexError(
            f"a mask of shape {list(mask.shape)} does not fit {list(shape)} at dimension {dim}"
        )


def single_mask(shape: Sequence[int], indices: Sequence[Any]) -> tuple[Any, ...] | None:
    """NumPy's index if the only index is a boolean mask, else None."""
    given = [(d, index) for d, index in enumerate(indices) if index is not None]
    if len(given) != 1 or given[0][1].dtype != numpy.bool_ or not given[0][1].ndim:
        return None
    dim, mask = given[0]
    _check_mask(shape, dim, mask)
    return (*[slice(None)] * dim, mask)


def _broadcast_indices(shape: Sequence[int], found: list[Any]) -> list[Any]:
    size = _common_shape([f.shape for f in found if f is not None])
    for dim, index in enumerate(found):
        if index is None:
            continue
        if math.prod(size):
            check_range(index, shape[dim], dim, negative=True)
        if index.shape != size:
            found[dim] = numpy.broadcast_to(index, size)
    return found + [None] * (len(shape) - len(found))


def _common_shape(shapes: list[tuple[int, ...]]) -> tuple[int, ...]:
    if len(shapes) == 1:
        return shapes[0]
    try:
        return numpy.broadcast_shapes(*shapes)
    except ValueError:
        listed = ", ".join(str(list(shape)) for shape in shapes)
        raise IndexError(f"indices of shapes {listed} do not broadcast") from None


def check_range(index: Any, size: int, dim: int, negative: bool = False) -> None:
    """Raise IndexError for an index out of range of dimension `dim`, TypeError for non-integers."""
    if index.dtype.kind not in "iu":
        raise TypeError(f"indices must be integers, not {index.dtype}")
    if not index.size:
        return
    low, high = int(index.min()), int(index.max())
    lowest = -size if negative else 0
    if low < lowest or high >= size:
        wrong = low if low < lowest else high
        raise IndexError(f"index {wrong} is out of range for dimension {dim} of size {size}")


@kernel("index.Tensor", "_unsafe_index.Tensor")
def index_tensor(self: Any, indices: Any) -> Any:
    masked = single_mask(self.shape, indices)
    if masked is not None:
        return _match_contiguity(self, self[masked])
    found = resolve_indices(self.shape, indices)
    dims = [d for d, f in enumerate(found) if f is not None]
    if len(dims) == 1:
        return self.take(found[dims[0]], axis=dims[0])
    if not dims:
        return self.copy()
    chosen = self[tuple(slice(None) if f is None else f for f in found)]
    return (
        chosen.copy() if numpy.may_share_memory(chosen, self) else _match_contiguity(self, chosen)
    )


def _match_contiguity(self: Any, chosen: Any) -> Any:
    """`chosen`, contiguous if `self` is: callers view it in other shapes."""
    fits = chosen.flags.c_contiguous or not self.flags.c_contiguous
    return chosen if fits else chosen.copy()


# ---- along one dimension


def flat_index(index: Any) -> Any:
    """A 0-d or 1-d index as 1-d. Raises ValueError for more dimensions."""
    if index.ndim > 1:
        raise ValueError(f"the index has {index.ndim} dimensions, one is expected")
    return index.reshape(-1)


def ensure_dim(array: Any, dim: int) -> tuple[Any, int]:
    """The array with at least one dimension, and `dim` counted from 0."""
    dim = normalize_dim(dim, array.ndim)
    return (array if array.ndim else array.reshape(1)), dim


@kernel("index_select")
def index_select(self: Any, dim: int, index: Any) -> Any:
    array, dim = ensure_dim(self, dim)
    chosen = flat_index(index)
    check_range(chosen, array.shape[dim], dim)
    out = array.take(chosen, axis=dim)
    return out if self.ndim else out.reshape(())


@kernel("gather")
def gather(self: Any, dim: int, index: Any, sparse_grad: bool = False) -> Any:
    array, dim = ensure_dim(self, dim)
    picks = index if index.ndim else index.reshape(1)
    if not picks.size:
        return numpy.empty(index.shape, self.dtype)
    check_range(picks, array.shape[dim], dim)
    part = corner(array, picks.shape, dim)
    if part.flags.c_contiguous:
        return part.reshape(-1).take(flat_offsets(picks, part.shape, dim)).reshape(index.shape)
    return numpy.take_along_axis(part, picks, dim).reshape(index.shape)


def flat_offsets(index: Any, shape: Sequence[int], dim: int) -> Any:
    """Offsets in a flat array of `shape` of the elements that an index along `dim` picks."""
    steps = [math.prod(shape[d + 1 :]) for d in range(len(shape))]
    flat = index.astype(numpy.intp, copy=False)
    if steps[dim] != 1:
        flat = flat * steps[dim]
    for d, size in enumerate(index.shape):
        if d != dim and size > 1:
            offsets = numpy.arange(0, size * steps[d], steps[d])
            flat = flat + offsets.reshape([-1 if e == d else 1 for e in range(len(shape))])
    return flat


def corner(array: Any, shape: Sequence[int], dim: int | None = None) -> Any:
    """The first `shape[d]` elements of every dimension d but `dim`. Raises ValueError."""
    fits = array.ndim == len(shape) and all(
        d == dim or size <= array.shape[d] for d, size in enumerate(shape)
    )
    if not fits:
        where = "" if dim is None else f" but {dim}"
        raise ValueError(
            f"the index of shape {list(shape)} does not fit into {list(array.shape)} "
            f"in every dimension{where}"
        )
    return array[tuple(slice(None) if d == dim else slice(size) for d, size in enumerate(shape))]


@kernel("take")
def take(self: Any, index: Any) -> Any:
    check_range(index, self.size, 0, negative=True)
    return self.reshape(-1).take(index)


@kernel("index_fill.int_Scalar", "index_fill.int_Tensor")
def index_fill(self: Any, dim: int, index: Any, value: Any) -> Any:
    if getattr(value, "ndim", 0):
        raise ValueError(f"the value has {value.ndim} dimensions, none is expected")
    out = self.copy()
    array, dim = ensure_dim(out, dim)
    chosen = flat_index(index)
    check_range(chosen, array.shape[dim], dim, negative=True)
    numpy.moveaxis(array, dim, 0)[chosen] = as_scalar(value, self.dtype)
    return out


@kernel("index_copy")
def index_copy(self: Any, dim: int, index: Any, source: Any) -> Any:
    out = self.copy()
    array, dim = ensure_dim(out, dim)
    chosen = flat_index(index)
    check_range(chosen, array.shape[dim], dim)
    check_rows(array, chosen, source, dim)
    if source.dtype != self.dtype:
        raise TypeError(f"the source is {source.dtype}, the target is {self.dtype}")
    numpy.moveaxis(array, dim, 0)[chosen] = dim_first(source, dim)
    return out


def check_rows(array: Any, chosen: Any, source: Any, dim: int) -> None:
    """Raise ValueError unless `source` has one row of `array` for every index."""
    others = list(array.shape)
    del others[dim]
    given = list(dim_first(source, dim).shape) if source.ndim else [1]
    if given != [chosen.size, *others]:
        raise ValueError(
            f"a source of shape {list(source.shape)} for {chosen.size} indices along dimension "
            f"{dim} of {list(array.shape)}"
        )


def dim_first(source: Any, dim: int) -> Any:
    """`source` with `dim` moved to the front; a 0-d array stays."""
    return numpy.moveaxis(source, dim, 0) if source.ndim else source


# ---- masks


@kernel("masked_fill.Scalar", "masked_fill.Tensor")
def masked_fill(self: Any, mask: Any, value: Any) -> Any:
    if getattr(value, "ndim", 0):
        raise ValueError(f"the value has {value.ndim} dimensions, none is expected")
    if mask.dtype != numpy.bool_:
        raise TypeError(f"the mask has the dtype {mask.dtype}, bool is expected")
    shape = numpy.broadcast_shapes(self.shape, mask.shape)
    out = self.copy() if shape == self.shape else numpy.broadcast_to(self, shape).copy()
    numpy.copyto(out, as_scalar(value, self.dtype), where=mask)
    return out


def as_scalar(value: Any, dtype: Any) -> Any:
    """Cast a scalar. Raises TypeError for complex to real."""
    given = numpy.asarray(value)
    if given.dtype.kind == "c" and dtype.kind != "c":
        raise TypeError(f"the complex number {value} does not fit into {dtype}")
    return given.astype(dtype)


@kernel("masked_select")
def masked_select(self: Any, mask: Any) -> Any:
    if self.shape != mask.shape:
        self, mask = numpy.broadcast_arrays(self, mask)
    return self[mask.astype(bool, copy=False)].reshape(-1)


@kernel("masked_scatter")
def masked_scatter(self: Any, mask: Any, source: Any) -> Any:
    shape = numpy.broadcast_shapes(self.shape, mask.shape)
    out = numpy.broadcast_to(self, shape).copy()
    where = numpy.broadcast_to(mask, shape)
    count = int(numpy.count_nonzero(where))
    if count > source.size:
        raise ValueError(f"the mask selects {count} elements, the source has {source.size}")
    out[where] = source.reshape(-1)[:count]
    return out


@kernel("masked_scatter_backward")
def masked_scatter_backward(grad_output: Any, mask: Any, sizes: Any) -> Any:
    out = numpy.zeros(math.prod(sizes), grad_output.dtype)
    chosen = grad_output[numpy.broadcast_to(mask, grad_output.shape)]
    out[: chosen.size] = chosen.reshape(-1)
    return out.reshape(tuple(sizes))


# ---- nonzero and repeats


@kernel("nonzero")
def nonzero(self: Any) -> Any:
    return numpy.argwhere(self)


@kernel("nonzero_static")
def nonzero_static(self: Any, size: int, fill_value: int = -1) -> Any:
    found = numpy.argwhere(self)[:size]
    out = numpy.full((size, self.ndim), fill_value, numpy.int64)
    out[: len(found)] = found
    return out


@kernel("repeat_interleave.Tensor")
def repeat_interleave(repeats: Any, output_size: int | None = None) -> Any:
    if repeats.ndim != 1:
        raise ValueError(f"the repeats have {repeats.ndim} dimensions, one is expected")
    if repeats.size and repeats.min() < 0:
        raise ValueError("repeats must be 0 or more")
    return numpy.repeat(numpy.arange(repeats.size, dtype=repeats.dtype), repeats)
