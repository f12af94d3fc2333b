"""Shapes of views, from the shapes of what they are views of.

Covers: pure functions on tuples, which rules and kernels share.
Promise: each raises ValueError or IndexError for arguments that torch refuses too.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any

from holdfast.compute.ops.rules import normalized_dim

Shape = tuple[int, ...]


def listed(value: Any) -> list[int]:
    """A list of whole numbers; one number is a list of itself."""
    if isinstance(value, list | tuple):
        return [operator.index(v) for v in value]
    return [operator.index(value)]


def sizes(value: Any) -> Shape:
    """Sizes that a tensor can have. Raises ValueError."""
    found = tuple(listed(value))
    if min(found, default=0) < 0:
        raise ValueError(f"{list(found)} is no shape: sizes are 0 or more")
    return found


def viewed(shape: Shape, size: Any) -> Shape:
    """`size` with its -1, if there is one, found out."""
    wanted, count = listed(size), math.prod(shape)
    if min(wanted, default=0) >= 0 and math.prod(wanted) == count:
        return tuple(wanted)
    if any(s < -1 for s in wanted) or wanted.count(-1) > 1:
        raise ValueError(f"{wanted} is no shape: sizes are 0 or more, and one of them may be -1")
    known = math.prod(s for s in wanted if s != -1)
    if -1 in wanted:
        if known == 0:
            raise ValueError(f"the -1 in {wanted} could be any size, for {count} numbers")
        if count % known == 0:
            wanted[wanted.index(-1)] = count // known
    if math.prod(wanted) != count or -1 in wanted:
        raise ValueError(f"shape {wanted} does not hold {count} numbers")
    return tuple(wanted)


def squeezed(shape: Shape, dim: int | None = None) -> Shape:
    """Without sizes of 1, or without that one."""
    if dim is None:
        return tuple(s for s in shape if s != 1)
    return squeezed_dims(shape, [dim])


def squeezed_dims(shape: Shape, dims: Any) -> Shape:
    """Without those of the dimensions `dims` whose size is 1."""
    away = {normalized_dim(d, len(shape)) for d in listed(dims)}
    return tuple(s for d, s in enumerate(shape) if s != 1 or d not in away)


def new_dim(dim: int, ndim: int) -> int:
    """The place for one more dimension."""
    if not -ndim - 1 <= dim <= ndim:
        raise IndexError(f"no dimension can be put at {dim}: {-ndim - 1} to {ndim} are possible")
    return dim % (ndim + 1)


def unsqueezed(shape: Shape, dim: int) -> Shape:
    """With a size of 1 at `dim`."""
    place = new_dim(dim, len(shape))
    return (*shape[:place], 1, *shape[place:])


def expanded(shape: Shape, size: Any) -> Shape:
    """`size` with each -1 replaced by the size that is there."""
    wanted = listed(size)
    extra = len(wanted) - len(shape)
    if extra < 0:
        raise ValueError(f"{wanted} has fewer dimensions than {list(shape)}")
    for place, one in enumerate(wanted):
        here = shape[place - extra] if place >= extra else None
        if one == -1 and here is not None:
            wanted[place] = here
        elif one < 0 or (here is not None and here not in (1, one)):
            raise ValueError(f"{list(shape)} cannot be expanded to {listed(size)}")
    return tuple(wanted)


def order(ndim: int, dims: Any) -> list[int]:
    """An order of dimensions, counted from 0."""
    found = [normalized_dim(d, ndim) for d in listed(dims)]
    if sorted(found) != list(range(ndim)):
        raise ValueError(f"{listed(dims)} does not name each of {ndim} dimensions once")
    return found


def permuted(shape: Shape, dims: Any) -> Shape:
    """Sizes in the order `dims`."""
    return tuple(shape[d] for d in order(len(shape), dims))


def transposed(shape: Shape, dim0: int, dim1: int) -> Shape:
    """With two dimensions exchanged."""
    found = list(shape)
    one, other = normalized_dim(dim0, len(shape)), normalized_dim(dim1, len(shape))
    if found:
        found[one], found[other] = found[other], found[one]
    return tuple(found)


def flat_transposed(shape: Shape) -> Shape:
    """A matrix on its side; fewer dimensions stay."""
    if len(shape) > 2:
        raise ValueError(f"t takes at most 2 dimensions, not {len(shape)}")
    return shape[::-1]


def existing(shape: Shape, dim: int) -> int:
    """A dimension counted from 0, of a tensor that has dimensions."""
    if not shape:
        raise IndexError("a tensor without dimensions has none to take a part of")
    return normalized_dim(dim, len(shape))


def selected(shape: Shape, dim: int, index: int) -> Shape:
    """Without dimension `dim`."""
    place = existing(shape, dim)
    if not -shape[place] <= index < shape[place]:
        raise IndexError(f"index {index} is not in dimension {dim} of size {shape[place]}")
    return (*shape[:place], *shape[place + 1 :])


def span(size: int, start: int | None, end: int | None, step: int) -> slice:
    """The part of a dimension that a slice means, as Python does it. Steps go forward only."""
    if step <= 0:
        raise ValueError(f"the step of a slice is more than 0, not {step}")
    return slice(*slice(start, end, step).indices(size))


def sliced(shape: Shape, dim: int, start: int | None, end: int | None, step: int) -> Shape:
    """With fewer numbers along `dim`."""
    place = existing(shape, dim)
    part = span(shape[place], start, end, step)
    return replaced(shape, place, len(range(part.start, part.stop, step)))


def replaced(shape: Shape, dim: int, size: int) -> Shape:
    """With another size in one dimension."""
    return (*shape[:dim], size, *shape[dim + 1 :])


def narrowed(shape: Shape, dim: int, start: int, length: int) -> Shape:
    """With `length` numbers along `dim`."""
    place = existing(shape, dim)
    size = shape[place]
    begin = start + size if start < 0 else start
    if length < 0 or not 0 <= begin <= size - length:
        raise ValueError(f"there are no {length} numbers from {start} on in a size of {size}")
    return replaced(shape, place, length)


def diagonal(shape: Shape, offset: int, dim1: int, dim2: int) -> Shape:
    """Without two dimensions, and the diagonal's length at the end."""
    one, other = two_dims(shape, dim1, dim2)
    down, right = shape[one] - max(-offset, 0), shape[other] - max(offset, 0)
    kept = tuple(s for d, s in enumerate(shape) if d not in (one, other))
    return (*kept, max(min(down, right), 0))


def two_dims(shape: Sequence[int], dim1: int, dim2: int) -> tuple[int, int]:
    """Two different dimensions, counted from 0."""
    one, other = existing(tuple(shape), dim1), existing(tuple(shape), dim2)
    if one == other:
        raise ValueError(f"dimensions {dim1} and {dim2} are the same one")
    return one, other


def unfolded(shape: Shape, dimension: int, size: int, step: int) -> Shape:
    """Windows of `size` numbers, in a new last dimension."""
    place = normalized_dim(dimension, len(shape))
    length = shape[place] if shape else 1
    if step <= 0 or not 0 <= size <= length:
        raise ValueError(f"no windows of {size} with step {step} in a size of {length}")
    count = (length - size) // step + 1
    return (*replaced(shape, place, count), size) if shape else (size,)


def parts(size: int, split_size: int) -> list[int]:
    """Sizes of parts of `split_size` each; the last one may be smaller."""
    if split_size < 0 or (split_size == 0 and size):
        raise ValueError(f"a size of {size} has no parts of {split_size}")
    if split_size == 0 or size == 0:
        return [size]
    rest = size % split_size
    return [split_size] * (size // split_size) + ([rest] if rest else [])


def split(shape: Shape, split_size: int, dim: int) -> list[Shape]:
    """Parts of equal size."""
    place = existing(shape, dim)
    return [replaced(shape, place, size) for size in parts(shape[place], split_size)]


def split_with_sizes(shape: Shape, split_sizes: Any, dim: int) -> list[Shape]:
    """Parts of these sizes."""
    place, wanted = existing(shape, dim), listed(split_sizes)
    if sum(wanted) != shape[place] or min(wanted, default=0) < 0:
        raise ValueError(f"parts of {wanted} do not add up to a size of {shape[place]}")
    return [replaced(shape, place, size) for size in wanted]


def unbound(shape: Shape, dim: int) -> list[Shape]:
    """Every slice along `dim`."""
    place = existing(shape, dim)
    return [(*shape[:place], *shape[place + 1 :])] * shape[place]


def reinterpreted(shape: Shape, before: int, after: int) -> Shape:
    """The shape for numbers of `after` bytes where they had `before`."""
    if before == after:
        return shape
    if not shape or shape[-1] * before % after:
        raise ValueError(f"{list(shape)} of {before} bytes is no tensor of {after} bytes")
    return (*shape[:-1], shape[-1] * before // after)


# ---- putting together


def joined(found: Sequence[Shape], dim: int) -> Shape:
    """Tensors behind each other along `dim`; [0] fits between tensors of any shape."""
    if not found:
        raise ValueError("there is nothing to put together")
    real = [s for s in found if s != (0,)] or [found[0]]
    first = real[0]
    place = existing(first, dim)
    if all(shape == first for shape in real):
        return replaced(first, place, first[place] * len(real))
    rest = (*first[:place], *first[place + 1 :])
    for shape in real:
        if len(shape) != len(first) or (*shape[:place], *shape[place + 1 :]) != rest:
            raise ValueError(f"{list(first)} and {list(shape)} differ beside dimension {dim}")
    return replaced(first, place, sum(shape[place] for shape in real))


def stacked(found: Sequence[Shape], dim: int) -> Shape:
    """Tensors of one shape side by side in a new dimension."""
    if not found:
        raise ValueError("there is nothing to put together")
    strange = next((s for s in found if s != found[0]), None)
    if strange is not None:
        raise ValueError(f"{list(found[0])} and {list(strange)} are not of one shape")
    place = new_dim(dim, len(found[0]))
    return (*found[0][:place], len(found), *found[0][place:])


def repeated(shape: Shape, repeats: Any) -> Shape:
    """Each size times its number of repeats."""
    times = listed(repeats)
    if len(times) < len(shape) or min(times, default=0) < 0:
        raise ValueError(f"{times} does not say how often each of {len(shape)} sizes is repeated")
    padded = (1,) * (len(times) - len(shape)) + shape
    return tuple(s * t for s, t in zip(padded, times, strict=True))


def embedded(shape: Shape, offset: int, dim1: int, dim2: int) -> Shape:
    """With the last size spread over two dimensions of square matrices."""
    size = shape[existing(shape, -1)] + abs(offset)
    one, other = two_dims((*shape, 1), dim1, dim2)
    found = list(shape[:-1])
    for place in sorted((one, other)):
        found.insert(place, size)
    return tuple(found)
