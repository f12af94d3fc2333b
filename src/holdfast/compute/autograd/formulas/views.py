"""Gradients of views, cat and as_strided."""

from __future__ import annotations

import math
from typing import Any

from holdfast.compute import dtype as dtypes
from holdfast.compute import functional as F
from holdfast.compute.ops.rules import normalize_dims


def inverse_order(dims: Any) -> list[int]:
    """The order of dimensions that undoes the order `dims`."""
    order = normalize_dims(dims, len(dims)) if len(dims) else ()
    return sorted(range(len(order)), key=order.__getitem__)


def cat_backward(grad: Any, shapes: list[tuple[int, ...]], dim: int) -> list[Any]:
    """Split a gradient as the tensors were joined; a tensor of shape [0] gets None."""
    found, begin = [], 0
    for shape in shapes:
        if tuple(shape) == (0,) and grad.ndim > 1:
            found.append(None)
            continue
        size = shape[dim]
        found.append(F.slice(grad, dim, begin, begin + size))
        begin += size
    return found


def negate(numbers: Any) -> Any:
    return [-n for n in numbers] if isinstance(numbers, list | tuple) else -numbers


def repeat_backward(grad: Any, shape: tuple[int, ...], repeats: Any) -> Any:
    """The sum over all repeats of a tensor of that shape."""
    padded = [1] * (len(repeats) - len(shape)) + list(shape)
    if 0 in repeats:
        return F.new_zeros(grad, shape)
    if not padded:
        return grad
    sizes = [n for pair in zip(repeats, padded, strict=True) for n in pair]
    summed = F.sum(F.reshape(grad, sizes), list(range(0, len(sizes), 2)))
    return F.reshape(summed, shape)


def as_strided_backward(
    grad: Any, shape: Any, layout: Any, size: Any, stride: Any, offset: int | None
) -> Any:
    """Add gradients at the positions that a strided view read, in the shape of its base."""
    steps, start = layout
    shift = start if offset is None else offset
    reached = [_reach(shape, steps, start), _reach(size, stride, shift)]
    places = _places(grad, size, stride, shift)
    memory = F.new_zeros(grad, [max(reached)])
    flat = F.reshape(grad, [-1])
    memory = F.index_add(memory, 0, F.reshape(places, [-1]), flat)
    found = F.index_select(memory, 0, F.reshape(_places(grad, shape, steps, start), [-1]))
    return F.reshape(found, shape)


def _reach(size: Any, stride: Any, offset: int) -> int:
    return 1 + offset + sum(max(n - 1, 0) * s for n, s in zip(size, stride, strict=True))


def _places(like: Any, size: Any, stride: Any, offset: int) -> Any:
    """The position in memory of each element of a strided view."""
    found = F.new_full(like, [], offset, dtype=dtypes.INT64)
    for n, step in zip(size, stride, strict=True):
        line = F.arange(n).to(device=like.device) * step
        found = F.unsqueeze(found, -1) + line
    return found


def chunk_cat_backward(
    grad: Any, shapes: list[tuple[int, ...]], dim: int, num_chunks: int
) -> list[Any]:
    """Gradients of `_chunk_cat`, without its padding."""
    found, begin = [], 0
    for shape in shapes:
        length = -(-shape[dim] // num_chunks)
        rest = shape[dim:][1:]
        width = length * math.prod(rest)
        part = F.slice(grad, -1, begin, begin + width)
        whole = F.reshape(part, [*shape[:dim], num_chunks * length, *rest])
        found.append(F.slice(whole, dim, 0, shape[dim]))
        begin += width
    return found
