"""Kernels: choosing by indices and masks.

Covers: index lists as torch has them (masks become places), picks along one dimension, masks, where
something is.
Leaves to others: writing at places that may repeat (`scattering`), sorting.
Promise: an index that is not there raises IndexError before a kernel sees it. Looking for one waits
for the device, once for each array of indices; so does counting what a mask chooses.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy

from holdfast.compute import dtype as formats
from holdfast.compute.engines.numpy import indexing as host
from holdfast.compute.engines.opencl import elementwise
from holdfast.compute.engines.opencl.array import Array, NotHere, collapsed
from holdfast.compute.engines.opencl.kernels import kernel, working
from holdfast.compute.engines.opencl.placing import moving, spread, taken
from holdfast.compute.engines.opencl.views import bits, filled, fresh, shaped, word
from holdfast.compute.ops.rules import normalized_dim

if TYPE_CHECKING:
    from holdfast.compute.engines.opencl.engine import OpenCLEngine

_LEAST = 4096  # numbers that are worth a work-item on CPUs
_STRETCH = 64  # truth values of a mask for each work-item on GPUs
_FEW_BYTES = 1 << 15  # of indices that are looked at on the host
_INT64 = formats.INT64


# ---- indices


def in_range(
    engine: OpenCLEngine, index: Array, size: int, dim: int, negative: bool = False
) -> Array:
    """The index as contiguous int64. Raises IndexError where dimension `dim` does not have it."""
    if index.dtype.kind not in "iu":
        raise TypeError(f"indices are whole numbers, not {index.dtype}")
    plain = engine.contiguous(index, _INT64)
    if not plain.size:
        return plain
    if plain.nbytes > _FEW_BYTES:
        flag = engine.upload(numpy.zeros(1, numpy.int64))
        low = -size if negative else 0
        spread(engine, moving(engine, "check"), plain.size, flag, plain, plain.size, low, size)
        if not engine.download(flag)[0]:
            return plain
    host.in_range(engine.download(plain), size, dim, negative)
    return plain


def hollow(shape: Sequence[int]) -> Any:
    """An array of the host that has a shape and no memory: what shapes are checked with."""
    return numpy.broadcast_to(numpy.uint8(0), tuple(shape))


def mask_places(engine: OpenCLEngine, mask: Array) -> Array:
    """Flat places of what is true, in order. Waits for their number."""
    flat = truth(engine, mask)
    count = flat.size
    if not count:
        return engine.alloc((0,), _INT64)
    each = max(_LEAST, -(-count // (engine.units * 4))) if engine.mapping == "cpu" else _STRETCH
    items = -(-count // each)
    group = 1 if engine.mapping == "cpu" else min(64, engine.most_items)
    size = (-(-items // group) * group,)
    counts = engine.alloc((items,), _INT64)
    engine.launch(moving(engine, "count_true"), size, (group,), counts, flat, count, each)
    ends = numpy.cumsum(engine.download(counts))
    place = engine.alloc((int(ends[-1]),), _INT64)
    if place.size:
        starts = engine.upload(numpy.concatenate([[0], ends[:-1]]))
        engine.launch(moving(engine, "list_true"), size, (group,), place, starts, flat, count, each)
    return place


def truth(engine: OpenCLEngine, array: Array) -> Array:
    """Whether each number is not zero, contiguous."""
    if array.dtype.itemsize == 1 and array.dtype.kind in "biu":
        return engine.contiguous(array)
    made = engine.alloc(array.shape, formats.BOOL)
    given = elementwise.Input("self", array, working(array.dtype))
    return elementwise.compute(engine, "$self != 0", [given], [], made)


def columns(engine: OpenCLEngine, flat: Array, shape: Sequence[int]) -> list[Array]:
    """Flat places as one index for each dimension."""
    found = []
    for d, size in enumerate(shape):
        made = engine.alloc(flat.shape, _INT64)
        step = math.prod(shape[d + 1 :])
        numbers = [_whole("step", step), _whole("size", max(size, 1))]
        given = elementwise.Input("flat", flat, "long")
        elementwise.compute(engine, "$flat / $step % $size", [given], numbers, made)
        found.append(made)
    return found


def _whole(name: str, value: int) -> elementwise.Number:
    return elementwise.Number(name, value, "long")


def listed(engine: OpenCLEngine, shape: Sequence[int], indices: Sequence[Any]) -> list[Any]:
    """One entry for each dimension: int64 of one shape, contiguous, or None for all of it."""
    found: list[Any] = []
    for index in indices:
        if index is None:
            found.append(None)
        elif is_mask(index):
            fitting(shape, len(found), index)
            if index.ndim:
                found.extend(columns(engine, mask_places(engine, index), index.shape))
        elif index.dtype.kind not in "iu":
            raise IndexError(f"an index of format {index.dtype}; whole numbers or truth values are")
        else:
            found.append(index)
    if len(found) > len(shape):
        raise IndexError(f"{len(found)} indices for {len(shape)} dimensions")
    size = _common([f.shape for f in found if f is not None])
    for dim, index in enumerate(found):
        if index is not None:
            if math.prod(size):
                index = in_range(engine, index, shape[dim], dim, negative=True)
            found[dim] = engine.contiguous(index.broadcast_to(size), _INT64)
    return found + [None] * (len(shape) - len(found))


def is_mask(index: Array) -> bool:
    """Whether an index is truth values rather than places."""
    return index.dtype == formats.BOOL or index.dtype == numpy.uint8


def fitting(shape: Sequence[int], dim: int, mask: Array) -> None:
    """Raise IndexError for a mask that has not the shape of what it chooses from."""
    if tuple(shape[dim : dim + mask.ndim]) != mask.shape:
        raise IndexError(
            f"a mask of shape {list(mask.shape)} does not fit {list(shape)} at dimension {dim}"
        )


def _common(shapes: list[tuple[int, ...]]) -> tuple[int, ...]:
    try:
        return numpy.broadcast_shapes(*shapes)
    except ValueError:
        text = ", ".join(str(list(shape)) for shape in shapes)
        raise IndexError(f"indices of shapes {text} do not broadcast") from None


# ---- lists of indices


def together(array: Array, found: Sequence[Any]) -> tuple[Array, int, list[int]]:
    """The array with its indexed dimensions side by side; where, and which they are.

    They are in front unless they were side by side before, as torch has it.
    """
    dims = [d for d, f in enumerate(found) if f is not None]
    if dims[-1] - dims[0] == len(dims) - 1:
        return array, dims[0], dims
    order = [*dims, *(d for d in range(array.ndim) if d not in dims)]
    return array.transpose(order), 0, dims


@kernel("index.Tensor", "_unsafe_index.Tensor")
def index_tensor(engine: OpenCLEngine, self: Array, indices: Any) -> Array:
    single = only_mask(engine, self, indices)
    if single is not None:
        return taken(engine, single[0], single[1], [single[2]], negative=False)
    found = listed(engine, self.shape, indices)
    if all(f is None for f in found):
        return fresh(engine, self)
    array, at, dims = together(self, found)
    return taken(engine, array, at, [found[d] for d in dims])


def only_mask(engine: OpenCLEngine, self: Array, indices: Any) -> tuple[Array, int, Array] | None:
    """For a single mask: the array with its dimensions as one, which that is, flat places."""
    given = [(d, index) for d, index in enumerate(indices) if index is not None]
    if len(given) != 1 or not is_mask(given[0][1]) or not given[0][1].ndim:
        return None
    dim, mask = given[0]
    fitting(self.shape, dim, mask)
    flat = shaped(engine, self, (*self.shape[:dim], mask.size, *self.shape[dim + mask.ndim :]))
    return flat, dim, mask_places(engine, mask)


# ---- along one dimension


def along(array: Array, dim: int) -> tuple[Array, int]:
    """An array that has dimensions, and the dimension counted from 0."""
    dim = normalized_dim(dim, array.ndim)
    return (array if array.ndim else array.viewed(array.dtype, (1,))), dim


def flat_index(index: Array) -> Array:
    """An index without dimensions as one of length 1. Raises ValueError for more than one."""
    if index.ndim > 1:
        raise ValueError(f"the index has {index.ndim} dimensions, one is expected")
    return index if index.ndim else index.viewed(index.dtype, (1,))


@kernel("index_select")
def index_select(engine: OpenCLEngine, self: Array, dim: int, index: Array) -> Array:
    array, dim = along(self, dim)
    chosen = in_range(engine, flat_index(index), array.shape[dim], dim)
    out = taken(engine, array, dim, [chosen])
    return out if self.ndim else out.viewed(out.dtype, ())


@kernel("gather")
def gather(
    engine: OpenCLEngine, self: Array, dim: int, index: Array, sparse_grad: bool = False
) -> Array:
    array, dim = along(self, dim)
    picks = index if index.ndim else index.viewed(index.dtype, (1,))
    if not picks.size:
        return engine.alloc(index.shape, self.dtype)
    host.corner(hollow(array.shape), picks.shape, dim)
    picks = in_range(engine, picks, array.shape[dim], dim)
    return gathered(engine, array, dim, picks).viewed(self.dtype, index.shape)


def gathered(engine: OpenCLEngine, array: Array, dim: int, index: Array) -> Array:
    """array[index] along `dim`; the index is contiguous int64, and in range."""
    if array.dtype.kind == "c":
        raise NotHere("complex numbers")
    made = engine.alloc(index.shape, array.dtype)
    plain, table = bits(array), Table(index.shape, array.steps, dim)
    spread(
        engine, moving(engine, "gather", word(plain)), index.size,
        made, plain, index, engine.upload(table.numbers), table.ndim, index.size,
        array.steps[dim],
    )  # fmt: skip
    return made


class Table:
    """Sizes of an index and steps of what it points to, with as few dimensions as it takes."""

    def __init__(self, shape: Sequence[int], steps: Sequence[int], dim: int) -> None:
        own = [0 if d == dim else step for d, step in enumerate(steps)]
        sizes, (kept,) = collapsed(shape, [own])
        sizes, kept = sizes or [1], kept or [0]
        self.ndim = len(sizes)
        self.numbers = numpy.array([*sizes, *kept], numpy.int64)


@kernel("take")
def take(engine: OpenCLEngine, self: Array, index: Array) -> Array:
    places = in_range(engine, index, self.size, 0, negative=True)
    return taken(engine, shaped(engine, self, (self.size,)), 0, [places])


# ---- masks


@kernel("masked_select")
def masked_select(engine: OpenCLEngine, self: Array, mask: Array) -> Array:
    shape = numpy.broadcast_shapes(self.shape, mask.shape)
    flat = shaped(engine, self.broadcast_to(shape), (math.prod(shape),))
    place = mask_places(engine, mask.broadcast_to(shape))
    return taken(engine, flat, 0, [place], negative=False)


@kernel("nonzero")
def nonzero(engine: OpenCLEngine, self: Array) -> Array:
    flat = mask_places(engine, self)
    made = engine.alloc((flat.size, self.ndim), _INT64)
    for d, column in enumerate(columns(engine, flat, self.shape)):
        engine.write(made.viewed(_INT64, (flat.size,), (8 * self.ndim,), 8 * d), column)
    return made


@kernel("nonzero_static")
def nonzero_static(engine: OpenCLEngine, self: Array, size: int, fill_value: int = -1) -> Array:
    found = nonzero(engine, self)
    made = filled(engine, (size, self.ndim), _INT64, fill_value)
    count = min(size, found.shape[0])
    part = (count, self.ndim)
    engine.write(made.viewed(_INT64, part), found.viewed(_INT64, part))
    return made
