"""Result shapes of views, as functions on tuples; rules and kernels share them.

Each raises ValueError or IndexError for arguments that torch rejects too.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any

from holdfast.compute.ops.rules import normalize_dim

Shape = tuple[int, ...]


def as_list(value: Any) -> list[int]:
    """A list of integers, from a list or a single one."""
    if isinstance(value, list | tuple):
        return [operator.index(v) for v in value]
    return [operator.index(value)]


def sizes(value: Any) -> Shape:
    """A valid shape. Raises ValueError."""
    found = tuple(as_list(value))
    if min(found, default=0) < 0:
        raise ValueError(f"{list(found)} is no shape: sizes are 0 or more")
    return found


def view(shape: Shape, size: Any) -> Shape:
    """`size` with its -1, if any, filled in."""
    wanted, count = as_list(size), math.prod(shape)
    if min(wanted, default=0) >= 0 and math.prod(wanted) == count:
        return tuple(wanted)
    if any(s < -1 for s in wanted) or wanted.count(-1) > 1:
        raise ValueError(f"{wanted} is no shape: sizes are 0 or more, and one of them may be -1")
    known = math.prod(s for s in wanted if s != -1)
    if -1 in wanted:
        if known == 0:
            raise ValueError(f"the -1 in {wanted} could be any size, for {count} elements")
        if count % known == 0:
            wanted[wanted.index(-1)] = count // known
    if math.prod(wanted) != count or -1 in wanted:
        raise ValueError(f"shape {wanted} does not hold {count} elements")
    return tuple(wanted)


def squeeze(shape: Shape, dim: Any = None) -> Shape:
    """Drop the dimensions of size 1: all, or those in `dim`."""
    if dim is None:
        return tuple(s for s in shape if s != 1)
    away = {normalize_dim(d, len(shape)) for d in as_list(dim)}
    return tuple(s for d, s in enumerate(shape) if s != 1 or d not in away)


def new_dim(dim: int, ndim: int) -> int:
    """The index at which a dimension is inserted."""
    if not -ndim - 1 <= dim <= ndim:
        raise IndexError(f"no dimension can be put at {dim}: {-ndim - 1} to {ndim} are possible")
    return dim % (ndim + 1)


def unsqueeze(shape: Shape, dim: int) -> Shape:
    """Insert a dimension of size 1 at `dim`."""
    place = new_dim(dim, len(shape))
    return (*shape[:place], 1, *shape[place:])


def expand(shape: Shape, size: Any) -> Shape:
    """`size` with each -1 replaced by the existing size."""
    wanted = as_list(size)
    extra = len(wanted) - len(shape)
    if extra < 0:
        raise ValueError(f"{wanted} has fewer dimensions than {list(shape)}")
    for place, one in enumerate(wanted):
        here = shape[place - extra] if place >= extra else None
        if one == -1 and here is not None:
            wanted[place] = here
        elif one < 0 or (here is not None and here not in (1, one)):
            raise ValueError(f"{list(shape)} cannot be expanded to {as_list(size)}")
    return tuple(wanted)


def order(ndim: int, dims: Any) -> list[int]:
    """A permutation of all dimensions, counted from 0."""
    found = [normalize_dim(d, ndim) for d in as_list(dims)]
    if sorted(found) != list(range(ndim)):
        raise ValueError(f"{as_list(dims)} does not name each of {ndim} dimensions once")
    return found


def permute(shape: Shape, dims: Any) -> Shape:
    return tuple(shape[d] for d in order(len(shape), dims))


def transpose(shape: Shape, dim0: int, dim1: int) -> Shape:
    found = list(shape)
    one, other = normalize_dim(dim0, len(shape)), normalize_dim(dim1, len(shape))
    if found:
        found[one], found[other] = found[other], found[one]
    return tuple(found)


def transpose_matrix(shape: Shape) -> Shape:
    """The shape of `t()`, for at most 2 dimensions."""
    if len(shape) > 2:
        raise ValueError(f"t takes at most 2 dimensions, not {len(shape)}")
    return shape[::-1]


def existing_dim(shape: Shape, dim: int) -> int:
    """A dimension counted from 0. Raises IndexError for a 0-d shape."""
    if not shape:
        raise IndexError("a tensor without dimensions has none to take a part of")
    return normalize_dim(dim, len(shape))


def select(shape: Shape, dim: int, index: int) -> Shape:
    """Drop dimension `dim`."""
    place = existing_dim(shape, dim)
    if not -shape[place] <= index < shape[place]:
        raise IndexError(f"index {index} is not in dimension {dim} of size {shape[place]}")
    return (*shape[:place], *shape[place + 1 :])


def span(size: int, start: int | None, end: int | None, step: int) -> slice:
    """A slice of a dimension, as Python indexes. The step must be positive."""
    if step <= 0:
        raise ValueError(f"the step of a slice is more than 0, not {step}")
    return slice(*slice(start, end, step).indices(size))


def slice_dim(shape: Shape, dim: int, start: int | None, end: int | None, step: int) -> Shape:
    place = existing_dim(shape, dim)
    part = span(shape[place], start, end, step)
    return replace_size(shape, place, len(range(part.start, part.stop, step)))


def replace_size(shape: Shape, dim: int, size: int) -> Shape:
    """Replace the size of one dimension."""
    return (*shape[:dim], size, *shape[dim + 1 :])


def narrow(shape: Shape, dim: int, start: int, length: int) -> Shape:
    """`length` elements along `dim`."""
    place = existing_dim(shape, dim)
    size = shape[place]
    begin = start + size if start < 0 else start
    if length < 0 or not 0 <= begin <= size - length:
        raise ValueError(f"there are no {length} elements from {start} on in a size of {size}")
    return replace_size(shape, place, length)


def diagonal(shape: Shape, offset: int, dim1: int, dim2: int) -> Shape:
    """Drop two dimensions, and append the diagonal's length."""
    one, other = two_dims(shape, dim1, dim2)
    down, right = shape[one] - max(-offset, 0), shape[other] - max(offset, 0)
    kept = tuple(s for d, s in enumerate(shape) if d not in (one, other))
    return (*kept, max(min(down, right), 0))


def two_dims(shape: Sequence[int], dim1: int, dim2: int) -> tuple[int, int]:
    """Two different dimensions, counted from 0."""
    one, other = existing_dim(tuple(shape), dim1), existing_dim(tuple(shape), dim2)
    if one == other:
        raise ValueError(f"dimensions {dim1} and {dim2} are the same one")
    return one, other


def unfold(shape: Shape, dimension: int, size: int, step: int) -> Shape:
    """Windows of `size` elements, in a new last dimension."""
    place = normalize_dim(dimension, len(shape))
    length = shape[place] if shape else 1
    if step <= 0 or not 0 <= size <= length:
        raise ValueError(f"no windows of {size} with step {step} in a size of {length}")
    count = (length - size) // step + 1
    return (*replace_size(shape, place, count), size) if shape else (size,)


def parts(size: int, split_size: int) -> list[int]:
    """Sizes of parts of `split_size` each; the last may be smaller."""
    if split_size < 0 or (split_size == 0 and size):
        raise ValueError(f"a size of {size} has no parts of {split_size}")
    if split_size == 0 or size == 0:
        return [size]
    rest = size % split_size
    return [split_size] * (size // split_size) + ([rest] if rest else [])


def split(shape: Shape, split_size: int, dim: int) -> list[Shape]:
    """Parts of equal size."""
    place = existing_dim(shape, dim)
    return [replace_size(shape, place, size) for size in parts(shape[place], split_size)]


def split_with_sizes(shape: Shape, split_sizes: Any, dim: int) -> list[Shape]:
    place, wanted = existing_dim(shape, dim), as_list(split_sizes)
    if sum(wanted) != shape[place] or min(wanted, default=0) < 0:
        raise ValueError(f"parts of {wanted} do not add up to a size of {shape[place]}")
    return [replace_size(shape, place, size) for size in wanted]


def unbind(shape: Shape, dim: int) -> list[Shape]:
    """Every slice along `dim`."""
    place = existing_dim(shape, dim)
    return [(*shape[:place], *shape[place + 1 :])] * shape[place]


def reinterpret(shape: Shape, before: int, after: int) -> Shape:
    """The shape for elements of `after` bytes instead of `before`."""
    if before == after:
        return shape
    if not shape or shape[-1] * before % after:
        raise ValueError(f"{list(shape)} of {before} bytes is no tensor of {after} bytes")
    return (*shape[:-1], shape[-1] * before // after)


# ---- joining


def cat(found: Sequence[Shape], dim: int) -> Shape:
    """Join along `dim`; shape [0] joins with any other."""
    if not found:
        raise ValueError("there is nothing to put together")
    real = [s for s in found if s != (0,)] or [found[0]]
    first = real[0]
    place = existing_dim(first, dim)
    if all(shape == first for shape in real):
        return replace_size(first, place, first[place] * len(real))
    rest = (*first[:place], *first[place + 1 :])
    for shape in real:
        if len(shape) != len(first) or (*shape[:place], *shape[place + 1 :]) != rest:
            raise ValueError(f"{list(first)} and {list(shape)} differ beside dimension {dim}")
    return replace_size(first, place, sum(shape[place] for shape in real))


def stack(found: Sequence[Shape], dim: int) -> Shape:
    """Join along a new dimension."""
    if not found:
        raise ValueError("there is nothing to put together")
    strange = next((s for s in found if s != found[0]), None)
    if strange is not None:
        raise ValueError(f"{list(found[0])} and {list(strange)} are not of one shape")
    place = new_dim(dim, len(found[0]))
    return (*found[0][:place], len(found), *found[0][place:])


def repeat(shape: Shape, repeats: Any) -> Shape:
    """Each size times its number of repeats."""
    times = as_list(repeats)
    if len(times) < len(shape) or min(times, default=0) < 0:
        raise ValueError(f"{times} does not say how often each of {len(shape)} sizes is repeated")
    padded = (1,) * (len(times) - len(shape)) + shape
    return tuple(s * t for s, t in zip(padded, times, strict=True))


def diag_embed(shape: Shape, offset: int, dim1: int, dim2: int) -> Shape:
    """The last dimension becomes the diagonal of square matrices."""
    size = shape[existing_dim(shape, -1)] + abs(offset)
    one, other = two_dims((*shape, 1), dim1, dim2)
    found = list(shape[:-1])
    for place in sorted((one, other)):
        found.insert(place, size)
    return tuple(found)
