"""Average pooling, regular and adaptive, forward and backward, one dimension at a time."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from typing import Any

import numpy

from holdfast.compute import dtype as dtypes
from holdfast.compute.engines.numpy.index.take_rows import at
from holdfast.compute.engines.numpy.kernels import register, widen
from holdfast.compute.ops.layers import windows

Taps = Iterable[tuple[Any, Any]]  # (output indices, input indices), for every offset in a window


def regular_taps(window: windows.Window) -> list[tuple[Any, Any]]:
    """The taps of a window of fixed size."""
    return [(out, seen) for _, out, seen in windows.places(window)]


def adaptive_bounds(size: int, outputs: int) -> tuple[Any, Any]:
    """The input range [first, end) of each output."""
    count = numpy.arange(outputs)
    return count * size // outputs, -(-(count + 1) * size // outputs)


def adaptive_taps(size: int, outputs: int) -> list[tuple[Any, Any]]:
    """The taps of adaptive windows; slices if all have one length."""
    if outputs and size % outputs == 0:
        step = size // outputs
        return [(slice(None), slice(offset, None, step)) for offset in range(step)]
    first, end = adaptive_bounds(size, outputs)
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
    count: int,
    self: Any,
    kernel_size: Any,
    stride: Any = (),
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Any:
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
    count: int,
    grad_output: Any,
    self: Any,
    kernel_size: Any,
    stride: Any,
    padding: Any,
    ceil_mode: bool,
    count_include_pad: bool,
    divisor_override: int | None,
) -> Any:
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
    if override is not None:
        if override == 0:
            raise ValueError("divisor_override is 0, it must not be zero")
        return numpy.asarray(override)
    counts = []
    for window in along:
        first = numpy.arange(window.outputs) * window.stride - window.padding
        end = numpy.minimum(first + window.kernel, window.size + window.padding)
        if not padded:
            first, end = numpy.maximum(first, 0), numpy.minimum(end, window.size)
        counts.append(end - first)
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
    bounds = [adaptive_bounds(s, o) for s, o in zip(sizes, outputs, strict=True)]
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


for _n in (2, 3):
    register(f"avg_pool{_n}d", functools.partial(_average, _n))
    register(f"avg_pool{_n}d_backward", functools.partial(_average_backward, _n))
    register(f"_adaptive_avg_pool{_n}d", functools.partial(_adaptive_average, _n))
    register(f"_adaptive_avg_pool{_n}d_backward", functools.partial(_adaptive_average_backward, _n))
register("avg_pool1d", functools.partial(_average, 1))
register("adaptive_avg_pool1d", functools.partial(_adaptive_average, 1))
