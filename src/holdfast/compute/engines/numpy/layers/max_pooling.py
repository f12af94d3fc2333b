"""Max pooling over 2 and 3 spatial dimensions: regular, adaptive, fractional; unpooling.

As in torch, the first of equal elements is taken, and the last of several NaNs.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy

from holdfast.compute import dtype as dtypes
from holdfast.compute.engines.numpy.index.take_rows import at
from holdfast.compute.engines.numpy.kernels import register, widen
from holdfast.compute.engines.numpy.layers.pooling import (
    adaptive_bounds,
    adaptive_taps,
    regular_taps,
)
from holdfast.compute.ops.layers import windows

_Along = tuple[list[tuple[Any, Any]], Any]  # taps, and the first input index of every output


def _max_windows(array: Any, along: Sequence[_Along]) -> tuple[Any, Any]:
    """The maximum of every window and its flat index, one dimension at a time from the last.

    That order compares equal elements row by row.
    """
    sizes = array.shape[-len(along) :]
    best = widen(array)
    index = numpy.zeros((1,) * array.ndim, numpy.int64)
    stride = 1
    for axis, (taps, first) in reversed(list(zip(range(-len(along), 0), along, strict=True))):
        ramp = numpy.arange(sizes[axis], dtype=numpy.int64) * stride
        index = index + ramp.reshape(-1, *([1] * (-1 - axis)))
        index = numpy.broadcast_to(index, best.shape)
        best, index = _max_along(best, index, axis, taps, first)
        stride *= sizes[axis]
    return best.astype(array.dtype, copy=False), index


def _max_along(values: Any, index: Any, axis: int, taps: Any, first: Any) -> tuple[Any, Any]:
    best, where = values.take(first, axis), index.take(first, axis)
    floating = values.dtype.kind == "f"
    for target, source in taps:
        target, source = at(axis, target), at(axis, source)
        seen, before = values[source], best[target]
        better = seen > before
        if floating:
            better |= seen != seen
        best[target] = numpy.where(better, seen, before)
        where[target] = numpy.where(better, index[source], where[target])
    return best, where


def _max_pool(
    count: int,
    self: Any,
    kernel_size: Any,
    stride: Any = (),
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
) -> tuple[Any, Any]:
    along = windows.windows(self.shape, count, kernel_size, stride, padding, dilation, ceil_mode)
    if self.size and math.prod(w.kernel for w in along) <= _FEW:
        found = _max_small_windows(widen(self), along)
        if found is not None:
            return found[0].astype(self.dtype, copy=False), found[1]
    return _max_windows(self, [(regular_taps(w), _first_inside(w)) for w in along])


# ---- small windows: one pass for each offset; a byte holds the offset of the maximum

_FEW = 16
_BLOCK_BYTES = 1 << 18  # of input at a time, which stays in the cache


def _max_small_windows(array: Any, along: Sequence[windows.Window]) -> tuple[Any, Any] | None:
    """`_max_windows`, faster; None if there is a NaN."""
    sizes, outputs = [w.size for w in along], [w.outputs for w in along]
    planes = array.reshape(-1, *sizes)
    best = numpy.empty((len(planes), *outputs), array.dtype)
    where = numpy.empty(best.shape, numpy.int64)
    offsets, corner, first = _positions(along)
    taps = list(_taps(along))
    step = max(1, _BLOCK_BYTES // max(1, planes[0].nbytes))
    code = numpy.empty((min(step, len(planes)), *outputs), numpy.uint8)
    better = numpy.empty(code.shape, numpy.bool_)
    for start in range(0, len(planes), step):
        part, into = planes[start : start + step], best[start : start + step]
        codes, flags = code[: len(part)], better[: len(part)]
        into[...] = _lowest(array.dtype)
        codes[...] = first
        for number, target, source in taps:
            _compare(part[source], into[target], codes[target], flags[target], number)
        into_indices = where[start : start + step]
        numpy.take(offsets, codes, out=into_indices, mode="clip")
        into_indices += corner
    if array.dtype.kind == "f" and numpy.isnan(best).any():
        return None
    shape = (*array.shape[: -len(along)], *outputs)
    return best.reshape(shape), where.reshape(shape)


def _compare(seen: Any, best: Any, code: Any, better: Any, number: numpy.uint8) -> None:
    numpy.greater(seen, best, out=better)
    numpy.maximum(best, seen, out=best)
    marks = better.view(numpy.uint8)
    # Offsets come in rising order, so the largest code is that of the last improvement.
    numpy.multiply(marks, number, out=marks)
    numpy.maximum(code, marks, out=code)


def _taps(along: Sequence[windows.Window]) -> Iterator[tuple[numpy.uint8, Any, Any]]:
    for found in itertools.product(*map(windows.places, along)):
        number = 0
        for (offset, _, _), window in zip(found, along, strict=True):
            number = number * window.kernel + offset
        everything = slice(None)
        targets = (everything, *(out for _, out, _ in found))
        yield numpy.uint8(number), targets, (everything, *(seen for _, _, seen in found))


def _positions(along: Sequence[windows.Window]) -> tuple[Any, Any, Any]:
    """As flat indices: each offset from a window's corner, the corners, the first tap inside."""
    offsets, corner, first = numpy.zeros(1, numpy.int64), 0, 0
    for dim, window in enumerate(along):
        plane = math.prod(w.size for w in along[dim + 1 :])
        shape = (-1, *[1] * (len(along) - 1 - dim))
        within = numpy.arange(window.kernel, dtype=numpy.int64) * window.dilation * plane
        offsets = (offsets[:, None] + within).reshape(-1)
        start = numpy.arange(window.outputs, dtype=numpy.int64) * window.stride - window.padding
        corner = corner + (start * plane).reshape(shape)
        missed = numpy.maximum(0, -(start // window.dilation))
        first = first * window.kernel + missed.reshape(shape)
    return offsets, corner, first


def _lowest(kind: Any) -> Any:
    return -numpy.inf if kind.kind == "f" else numpy.iinfo(kind).min


def _first_inside(window: windows.Window) -> Any:
    start = numpy.arange(window.outputs) * window.stride - window.padding
    outside = numpy.maximum(0, -(start // window.dilation))
    return numpy.minimum(start + outside * window.dilation, window.size - 1)


def _adaptive_max(count: int, self: Any, output_size: Any) -> tuple[Any, Any]:
    wanted = windows.adaptive(self.shape, count, output_size)
    pairs = list(zip(self.shape[-count:], wanted, strict=True))
    return _max_windows(self, [(adaptive_taps(*p), adaptive_bounds(*p)[0]) for p in pairs])


# ---- backward


def _check(indices: Any, plane: int) -> None:
    # One pass for both bounds: as unsigned, a negative index is large.
    if indices.size and indices.astype(numpy.int64, copy=False).view(numpy.uint64).max() >= plane:
        raise IndexError(f"an index lies outside of a plane of {plane} elements")


def _flat(indices: Any, planes: int, plane: int) -> Any:
    """Indices within a plane as flat indices over all planes."""
    each = indices.size // max(planes, 1)
    return indices.reshape(planes, each) + (numpy.arange(planes) * plane)[:, None]


def add_at(values: Any, indices: Any, shape: tuple[int, ...], count: int) -> Any:
    """Zeros of `shape` with `values` added at `indices`; the last `count` sizes are a plane."""
    plane, planes = math.prod(shape[-count:]), math.prod(shape[:-count])
    _check(indices, plane)
    out = numpy.zeros(planes * plane, dtypes.working(values.dtype))
    flat = _flat(indices, planes, plane).reshape(-1)
    numpy.add.at(out, flat, values.astype(out.dtype, copy=False).reshape(-1))
    return out.reshape(shape).astype(values.dtype, copy=False)


def _max_pool_backward(
    count: int,
    grad_output: Any,
    self: Any,
    kernel_size: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    ceil_mode: bool,
    indices: Any,
) -> Any:
    return _backward(count, grad_output, self, indices)


def _backward(count: int, grad_output: Any, self: Any, indices: Any) -> Any:
    if grad_output.shape != indices.shape:
        raise ValueError(
            f"the gradient {list(grad_output.shape)} and the indices {list(indices.shape)} differ"
        )
    return add_at(grad_output, indices, self.shape, count)


for _n in (2, 3):
    register(f"max_pool{_n}d_with_indices", functools.partial(_max_pool, _n))
    register(f"max_pool{_n}d_with_indices_backward", functools.partial(_max_pool_backward, _n))
    register(f"adaptive_max_pool{_n}d", functools.partial(_adaptive_max, _n))
    register(f"adaptive_max_pool{_n}d_backward", functools.partial(_backward, _n))


# ---- fractional: windows at random positions


def _random_starts(samples: Any, size: int, outputs: int, kernel: int) -> Any:
    """The first index of the windows of every plane; steps differ by one at most."""
    if outputs + kernel - 1 > size:
        raise ValueError(f"{outputs} windows of {kernel} do not fit into {size} elements")
    starts = numpy.full((len(samples), outputs), size - kernel, numpy.int64)
    if outputs > 1:
        step = samples.dtype.type(size - kernel) / samples.dtype.type(outputs - 1)
        count = numpy.arange(outputs - 1, dtype=samples.dtype)
        walked = ((count + samples[:, None]) * step).astype(numpy.int64)
        starts[:, :-1] = walked - (samples * step).astype(numpy.int64)[:, None]
    return starts


def _fractional(
    count: int, self: Any, kernel_size: Any, output_size: Any, random_samples: Any
) -> tuple[Any, Any]:
    sizes = windows.spatial(self.shape, count)
    kernel = windows.per_dim(kernel_size, count, "kernel_size")
    wanted = windows.per_dim(output_size, count, "output_size")
    outer = self.shape[:-count]
    planes = math.prod(outer)
    samples = random_samples.astype(dtypes.working(random_samples.dtype))
    samples = samples.reshape(-1, count)[:planes]  # there may be samples for more planes
    # torch takes the samples of two dimensions as (x, y), those of three as (z, y, x).
    order = (1, 0) if count == 2 else (0, 1, 2)
    corner = numpy.zeros((planes, *[1] * count), numpy.int64)
    strides = [math.prod(sizes[d + 1 :]) for d in range(count)]
    for d in range(count):
        starts = _random_starts(samples[:, order[d]], sizes[d], wanted[d], kernel[d])
        along = [1] * count
        along[d] = wanted[d]
        corner = corner + (starts * strides[d]).reshape(planes, *along)
    flat = self.reshape(planes, strides[0] * sizes[0])
    corner = corner.reshape(planes, math.prod(wanted))
    best, where = _max_from_corners(flat, corner, kernel, strides)
    return best.reshape(*outer, *wanted), where.reshape(*outer, *wanted)


def _max_from_corners(flat: Any, corner: Any, kernel: Any, strides: Any) -> tuple[Any, Any]:
    best, where = numpy.take_along_axis(flat, corner, 1), corner.copy()
    for offsets in itertools.product(*map(range, kernel)):
        index = corner + sum(o * s for o, s in zip(offsets, strides, strict=True))
        seen = numpy.take_along_axis(flat, index, 1)
        better = (seen > best) | (seen != seen)
        numpy.copyto(best, seen, where=better)
        numpy.copyto(where, index, where=better)
    return best, where


def _fractional_backward(
    count: int, grad_output: Any, self: Any, kernel_size: Any, output_size: Any, indices: Any
) -> Any:
    return _backward(count, grad_output, self, indices)


# ---- unpooling


def _unpool(count: int, self: Any, indices: Any, output_size: Any, *_: Any, **named: Any) -> Any:
    if self.shape != indices.shape:
        raise ValueError(f"the indices are {list(indices.shape)}, the input {list(self.shape)}")
    wanted = windows.per_dim(output_size, count, "output_size")
    plane, planes = math.prod(wanted), math.prod(self.shape[:-count])
    _check(indices, plane)
    out = numpy.zeros(planes * plane, self.dtype)
    out[_flat(indices, planes, plane).reshape(-1)] = self.reshape(-1)
    return out.reshape(*self.shape[:-count], *wanted)


for _n in (2, 3):
    register(f"fractional_max_pool{_n}d", functools.partial(_fractional, _n))
    register(f"fractional_max_pool{_n}d_backward", functools.partial(_fractional_backward, _n))
    register(f"max_unpool{_n}d", functools.partial(_unpool, _n))
