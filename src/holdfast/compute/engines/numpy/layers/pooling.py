"""Average and max pooling, regular, adaptive and fractional; unpooling.

As in torch, the first of equal elements is the maximum, and the last of several NaNs.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy

from holdfast.compute import dtype as dtypes
from holdfast.compute.engines.numpy.index.indexing import at
from holdfast.compute.engines.numpy.kernels import register, widen
from holdfast.compute.ops.layers import windows

Taps = Iterable[tuple[Any, Any]]  # (output indices, input indices), for every offset in a window


def regular_taps(window: windows.Window) -> list[tuple[Any, Any]]:
    """The taps of a window of fixed size."""
    return [(out, seen) for _, out, seen in windows.places(window)]


def adaptive_taps(size: int, outputs: int) -> list[tuple[Any, Any]]:
    """The taps of adaptive windows; slices if all have one length."""
    if outputs and size % outputs == 0:
        step = size // outputs
        return [(slice(None), slice(offset, None, step)) for offset in range(step)]
    [(first, end)] = windows.adaptive_bounds([size], [outputs])
    lengths = end - first
    found = []
    for offset in range(int(lengths.max(initial=0))):
        long = numpy.flatnonzero(lengths > offset)
        found.append((long, first[long] + offset))
    return found


def _sum_windows(array: Any, axis: int, outputs: int, taps: Taps) -> Any:
    shape = list(array.shape)
    shape[axis] = outputs
    out = numpy.zeros(shape, array.dtype)
    for target, source in taps:
        out[at(axis, target)] += array[at(axis, source)]
    return out


# ---- windows of fixed size


def _average(
    count: int, self: Any, kernel_size: Any, stride: Any = (), padding: Any = 0,
    ceil_mode: bool = False, count_include_pad: bool = True, divisor_override: int | None = None,
) -> Any:  # fmt: skip
    along = windows.windows(self.shape, count, kernel_size, stride, padding, 1, ceil_mode)
    out = widen(self)
    for axis, window in zip(range(-count, 0), along, strict=True):
        out = _sum_windows(out, axis, window.outputs, regular_taps(window))
    divisor = _divisor(along, count_include_pad, divisor_override)
    if dtypes.category(self.dtype) < dtypes.FLOATING:
        return numpy.trunc(out / divisor).astype(self.dtype)
    out /= divisor.astype(out.dtype)
    return out.astype(self.dtype, copy=False)


def _average_backward(
    count: int, grad_output: Any, self: Any, kernel_size: Any, stride: Any, padding: Any,
    ceil_mode: bool, count_include_pad: bool, divisor_override: int | None,
) -> Any:  # fmt: skip
    along = windows.windows(self.shape, count, kernel_size, stride, padding, 1, ceil_mode)
    working = dtypes.working(grad_output.dtype)
    divisor = _divisor(along, count_include_pad, divisor_override).astype(working)
    out = numpy.divide(grad_output, divisor, dtype=working)
    for axis, window in reversed(list(zip(range(-count, 0), along, strict=True))):
        taps = [(seen, outputs) for outputs, seen in regular_taps(window)]  # the adjoint
        out = _sum_windows(out, axis, window.size, taps)
    return out.astype(grad_output.dtype, copy=False)


def _divisor(along: Sequence[windows.Window], padded: bool, override: int | None) -> Any:
    """How many inputs each window has, with or without padding."""
    counts = windows.divisors(along, padded, override)
    if all((c == c[0]).all() for c in counts):
        return numpy.asarray(numpy.prod([c[0] for c in counts]))
    return functools.reduce(numpy.multiply, numpy.ix_(*counts))


# ---- adaptive windows


def _adaptive_sum(array: Any, sizes: Sequence[int]) -> Any:
    for axis, size in zip(range(-len(sizes), 0), sizes, strict=True):
        taps = adaptive_taps(array.shape[axis], size)
        if size == 1:
            array = array.sum(axis=axis, keepdims=True)
        elif array.shape[axis] != size:
            array = _sum_windows(array, axis, size, taps)
    return array


def _adaptive_counts(sizes: Sequence[int], outputs: Sequence[int], kind: Any) -> Any:
    bounds = windows.adaptive_bounds(sizes, outputs)
    return functools.reduce(numpy.multiply, numpy.ix_(*(e - f for f, e in bounds))).astype(kind)


def _adaptive_average(count: int, self: Any, output_size: Any) -> Any:
    wanted = windows.adaptive(self.shape, count, output_size)
    working = dtypes.working(self.dtype)
    summed = _adaptive_sum(self.astype(working, copy=False), wanted)
    out = summed / _adaptive_counts(self.shape[-count:], wanted, working)
    return out.astype(self.dtype, copy=False)


def _adaptive_average_backward(count: int, grad_output: Any, self: Any) -> Any:
    # The outputs that an input belongs to are its window of pooling with the sizes exchanged.
    working = dtypes.working(grad_output.dtype)
    sizes = self.shape[-count:]
    counts = _adaptive_counts(sizes, grad_output.shape[-count:], working)
    out = _adaptive_sum(numpy.divide(grad_output, counts, dtype=working), sizes)
    return numpy.ascontiguousarray(out).astype(grad_output.dtype, copy=False)


# ---- max

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


def _max_pool(count: int, self: Any, *args: Any, **named: Any) -> tuple[Any, Any]:
    along = windows.windows(self.shape, count, *args, **named)
    if self.size and math.prod(w.kernel for w in along) <= _FEW:
        found = _max_small_windows(widen(self), along)
        if found is not None:
            return found[0].astype(self.dtype, copy=False), found[1]
    return _max_windows(self, [(regular_taps(w), windows.inner_bounds(w)[0]) for w in along])


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


def _adaptive_max(count: int, self: Any, output_size: Any) -> tuple[Any, Any]:
    wanted = windows.adaptive(self.shape, count, output_size)
    sizes = self.shape[-count:]
    taps = map(adaptive_taps, sizes, wanted)
    firsts = (first for first, _ in windows.adaptive_bounds(sizes, wanted))
    return _max_windows(self, list(zip(taps, firsts, strict=True)))


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


def _backward(count: int, grad_output: Any, self: Any, *args: Any) -> Any:
    return add_at(grad_output, args[-1], self.shape, count)


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


# ---- unpooling


def _unpool(count: int, self: Any, indices: Any, output_size: Any, *_: Any, **named: Any) -> Any:
    wanted = windows.per_dim(output_size, count, "output_size")
    plane, planes = math.prod(wanted), math.prod(self.shape[:-count])
    _check(indices, plane)
    out = numpy.zeros(planes * plane, self.dtype)
    out[_flat(indices, planes, plane).reshape(-1)] = self.reshape(-1)
    return out.reshape(*self.shape[:-count], *wanted)


for _n in (2, 3):
    register(f"avg_pool{_n}d", functools.partial(_average, _n))
    register(f"avg_pool{_n}d_backward", functools.partial(_average_backward, _n))
    register(f"_adaptive_avg_pool{_n}d", functools.partial(_adaptive_average, _n))
    register(f"_adaptive_avg_pool{_n}d_backward", functools.partial(_adaptive_average_backward, _n))
    for _name, _function in {
        "max_pool{}d_with_indices": _max_pool,
        "adaptive_max_pool{}d": _adaptive_max,
        "fractional_max_pool{}d": _fractional,
    }.items():
        register(_name.format(_n), functools.partial(_function, _n))
        register(f"{_name.format(_n)}_backward", functools.partial(_backward, _n))
    register(f"max_unpool{_n}d", functools.partial(_unpool, _n))
register("avg_pool1d", functools.partial(_average, 1))
register("adaptive_avg_pool1d", functools.partial(_adaptive_average, 1))
