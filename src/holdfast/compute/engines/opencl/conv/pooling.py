"""Average and max pooling, regular and adaptive, in 1 to 3 dimensions, with gradients.

All sums have a fixed order. The gradient of max pooling reads only the windows that can contain an
input; indices outside of them are ignored.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import numpy

from holdfast.compute import dtype as dtypes
from holdfast.compute.engines.opencl.conv.resample import (
    axis_of_ranges,
    combine,
    steps_5d,
    transpose_axis,
)
from holdfast.compute.engines.opencl.index.gather_scatter import launch_over
from holdfast.compute.engines.opencl.index.indexing import in_range
from holdfast.compute.engines.opencl.index.scatter import scatter
from holdfast.compute.engines.opencl.layout.views import make_full, to_shape
from holdfast.compute.engines.opencl.runtime.array import Array
from holdfast.compute.engines.opencl.runtime.engine_protocol import CLEngine
from holdfast.compute.engines.opencl.runtime.kernel_table import (
    KERNELS,
    check_double,
    register,
    storage,
    working,
)
from holdfast.compute.ops.layers import windows
from holdfast.compute.ops.layers.windows import Bounds, adaptive_bounds, divisors, inner_bounds

# ---- average


def _find_covered(window: windows.Window) -> Bounds:
    """The inputs of a window without dilation, which may have none."""
    start = numpy.arange(window.outputs) * window.stride - window.padding
    return numpy.maximum(start, 0), numpy.minimum(start + window.kernel, window.size)


def _mean(engine: CLEngine, self: Array, bounds: list[Bounds], counts: list[Any]) -> Array:
    return combine(engine, self, [axis_of_ranges(*one) for one in bounds], counts)


def _spread_mean(
    engine: CLEngine, grad: Array, sizes: Sequence[int], bounds: list[Bounds], counts: list[Any]
) -> Array:
    axes = []
    for size, one, many in zip(sizes, bounds, counts, strict=True):
        axis = axis_of_ranges(*one)
        shares = numpy.repeat(1 / many, numpy.diff(axis.starts))
        axes.append(transpose_axis(axis._replace(weights=shares), size))
    return combine(engine, grad, axes)


def _average(
    count: int, engine: CLEngine, self: Array, kernel_size: Any, stride: Any = (),
    padding: Any = 0, ceil_mode: bool = False, count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Array:  # fmt: skip
    along = windows.windows(self.shape, count, kernel_size, stride, padding, 1, ceil_mode)
    counts = divisors(along, count_include_pad, divisor_override)
    return _mean(engine, self, [_find_covered(one) for one in along], counts)


def _average_backward(
    count: int, engine: CLEngine, grad_output: Array, self: Array, kernel_size: Any,
    stride: Any, padding: Any, ceil_mode: bool, count_include_pad: bool,
    divisor_override: int | None,
) -> Array:  # fmt: skip
    along = windows.windows(self.shape, count, kernel_size, stride, padding, 1, ceil_mode)
    counts = divisors(along, count_include_pad, divisor_override)
    sizes = [one.size for one in along]
    return _spread_mean(engine, grad_output, sizes, [_find_covered(one) for one in along], counts)


def _adaptive_average(count: int, engine: CLEngine, self: Array, output_size: Any) -> Array:
    wanted = windows.adaptive(self.shape, count, output_size)
    if set(wanted) == {1} and dtypes.is_floating(self.dtype):
        return KERNELS["mean.dim"].function(engine, self, list(range(-count, 0)), True)
    bounds = adaptive_bounds(self.shape[-count:], wanted)
    return _mean(engine, self, bounds, [end - first for first, end in bounds])


def _adaptive_average_backward(
    count: int, engine: CLEngine, grad_output: Array, self: Array
) -> Array:
    sizes = self.shape[-count:]
    bounds = adaptive_bounds(sizes, grad_output.shape[-count:])
    return _spread_mean(engine, grad_output, sizes, bounds, [end - first for first, end in bounds])


# ---- max


def _kernel(engine: CLEngine, function: str, kind: Any) -> Any:
    check_double(engine, kind)
    return engine.kernel("spans pooling", function, KIND=storage(kind), WORK=working(kind))


def _table(engine: CLEngine, bounds: Sequence[Bounds]) -> Array:
    whole = [*[(numpy.zeros(1), numpy.ones(1))] * (3 - len(bounds)), *bounds]
    parts = [part for pair in whole for part in pair]
    return engine.upload(numpy.concatenate(parts).astype(numpy.int32))


def _pad_to_3(sizes: Sequence[int]) -> list[int]:
    return [1] * (3 - len(sizes)) + list(sizes)


def _max(
    engine: CLEngine, self: Array, bounds: list[Bounds], dilation: Sequence[int]
) -> tuple[Array, Array]:
    count = len(bounds)
    outputs = [len(first) for first, _ in bounds]
    shape = (*self.shape[:-count], *outputs)
    made, where = engine.alloc(shape, self.dtype), engine.alloc(shape, dtypes.INT64)
    if not made.size:
        return made, where
    many, channels, steps = steps_5d(self, count)
    kernel = _kernel(engine, "largest", self.dtype)
    lines, sizes = many * channels, _pad_to_3(outputs)
    launch_over(
        engine, kernel, lines * sizes[0] * sizes[1],
        made, where, self, _table(engine, bounds), lines, *sizes, channels, *steps,
        *_pad_to_3(self.shape[-count:])[1:], *_pad_to_3(dilation), numbers=made.size,
    )  # fmt: skip
    return made, where


def _max_pool(
    count: int, engine: CLEngine, self: Array, *args: Any, **named: Any
) -> tuple[Array, Array]:
    along = windows.windows(self.shape, count, *args, **named)
    return _max(engine, self, [inner_bounds(w) for w in along], [w.dilation for w in along])


def _adaptive_max(
    count: int, engine: CLEngine, self: Array, output_size: Any
) -> tuple[Array, Array]:
    wanted = windows.adaptive(self.shape, count, output_size)
    return _max(engine, self, adaptive_bounds(self.shape[-count:], wanted), [1] * count)


def _max_backward(
    engine: CLEngine, grad_output: Array, self: Array, bounds: list[Bounds], indices: Array
) -> Array:
    count = len(bounds)
    made = engine.alloc(self.shape, grad_output.dtype)
    if not made.size:
        return made
    sizes = self.shape[-count:]
    # Windows start and end in order, so those that contain an input are a range.
    seeing = []
    for size, (first, end) in zip(sizes, bounds, strict=True):
        place = numpy.arange(size)
        seeing.append((end.searchsorted(place, "right"), first.searchsorted(place, "right")))
    kernel = _kernel(engine, "largest_back", grad_output.dtype)
    rows = _pad_to_3(sizes)
    lines = math.prod(self.shape[:-count])
    launch_over(
        engine, kernel, lines * rows[0] * rows[1],
        made, engine.contiguous(grad_output), engine.contiguous(indices, dtypes.INT64),
        _table(engine, seeing), lines, *rows, *_pad_to_3(grad_output.shape[-count:]),
        numbers=made.size,
    )  # fmt: skip
    return made


def _max_pool_backward(
    count: int, engine: CLEngine, grad_output: Array, self: Array, *args: Any
) -> Array:
    along = windows.windows(self.shape, count, *args[:-1])
    return _max_backward(engine, grad_output, self, [inner_bounds(w) for w in along], args[-1])


def _adaptive_max_backward(
    count: int, engine: CLEngine, grad_output: Array, self: Array, indices: Array
) -> Array:
    bounds = adaptive_bounds(self.shape[-count:], grad_output.shape[-count:])
    return _max_backward(engine, grad_output, self, bounds, indices)


# ---- max unpooling


def _unpool(
    count: int, engine: CLEngine, self: Array, indices: Array, output_size: Any, *_: Any,
    **named: Any,
) -> Array:  # fmt: skip
    wanted = windows.per_dim(output_size, count, "output_size")
    lead, plane = self.shape[:-count], math.prod(wanted)
    flat = (math.prod(lead), math.prod(self.shape[-count:]))
    try:
        place = in_range(engine, indices, plane, 0).view(dtypes.INT64, flat)
    except IndexError:
        raise IndexError(f"an index lies outside of a plane of {plane} elements") from None
    zeros = make_full(engine, (flat[0], plane), self.dtype)
    found = scatter(engine, zeros, 1, place, to_shape(engine, self, flat))
    return found.view(self.dtype, (*lead, *wanted))


for _n in (2, 3):
    register(f"avg_pool{_n}d", functools.partial(_average, _n))
    register(f"avg_pool{_n}d_backward", functools.partial(_average_backward, _n))
    register(f"_adaptive_avg_pool{_n}d", functools.partial(_adaptive_average, _n))
    register(f"_adaptive_avg_pool{_n}d_backward", functools.partial(_adaptive_average_backward, _n))
    register(f"max_pool{_n}d_with_indices", functools.partial(_max_pool, _n))
    register(f"max_pool{_n}d_with_indices_backward", functools.partial(_max_pool_backward, _n))
    register(f"adaptive_max_pool{_n}d", functools.partial(_adaptive_max, _n))
    register(f"adaptive_max_pool{_n}d_backward", functools.partial(_adaptive_max_backward, _n))
    register(f"max_unpool{_n}d", functools.partial(_unpool, _n))
register("avg_pool1d", functools.partial(_average, 1))
register("adaptive_avg_pool1d", functools.partial(_adaptive_average, 1))
