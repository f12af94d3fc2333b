"""Resampling and grid sampling; `combine` and `pick`, which padding and pooling use too.

Source indices and weights come from the NumPy engine. Gradients are a sum for each input, so the
result does not depend on the order of work.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy

from holdfast.compute import dtype as dtypes
from holdfast.compute.engines.numpy.layers import resample as host
from holdfast.compute.engines.opencl.elementwise import strided_kernels
from holdfast.compute.engines.opencl.index.gather_scatter import launch_over
from holdfast.compute.engines.opencl.layout.views import as_bits, bits_type
from holdfast.compute.engines.opencl.runtime.array import Array, NotHere
from holdfast.compute.engines.opencl.runtime.engine_protocol import CLEngine
from holdfast.compute.engines.opencl.runtime.kernel_table import kernel, register, storage, working
from holdfast.compute.ops.layers.grid_sample import check_grid
from holdfast.compute.ops.layers.resample import register_modes

_UINT8 = numpy.dtype(numpy.uint8)


class Axis(NamedTuple):
    """The inputs and weights of each output along a dimension: from starts[j] to starts[j + 1]."""

    starts: Any
    index: Any
    weights: Any

    @property
    def outputs(self) -> int:
        return len(self.starts) - 1

    @property
    def taps(self) -> float:
        """Inputs per output, on average."""
        return len(self.index) / max(self.outputs, 1)


def axis_of(taps: Any, weights: Any = None) -> Axis:
    """An axis from input indices [outputs, taps] and their weights (default 1)."""
    outputs, many = taps.shape
    shares = numpy.ones(taps.size) if weights is None else weights.reshape(-1)
    return Axis(numpy.arange(outputs + 1) * many, taps.reshape(-1), shares)


def axis_of_ranges(first: Any, end: Any) -> Axis:
    """An axis whose outputs are sums of the inputs from `first` to before `end`."""
    lengths = numpy.maximum(end - first, 0)
    starts = numpy.concatenate([[0], numpy.cumsum(lengths)])
    within = numpy.arange(starts[-1]) - numpy.repeat(starts[:-1], lengths)
    return Axis(starts, numpy.repeat(first, lengths) + within, numpy.ones(starts[-1]))


def transpose_axis(axis: Axis, size: int) -> Axis:
    """The transposed axis, from outputs back to `size` inputs."""
    order = numpy.argsort(axis.index, kind="stable")
    rows = numpy.repeat(numpy.arange(axis.outputs), numpy.diff(axis.starts))
    starts = numpy.searchsorted(axis.index[order], numpy.arange(size + 1))
    return Axis(starts, rows[order], axis.weights[order])


def _identity_axis(size: int) -> Axis:
    return axis_of(numpy.arange(size)[:, None])


# ---- applying axes


def steps_5d(array: Array, count: int) -> tuple[int, int, list[int]]:
    """(batch, channels) and the steps of [batch, channels, depth, height, width]."""
    lead = array.ndim - count
    if lead > 2:
        raise NotHere(f"{array.ndim} dimensions")
    sizes = [1] * (2 - lead) + list(array.shape[:lead])
    steps = [0] * (2 - lead) + list(array.steps[:lead])
    return sizes[0], sizes[1], [*steps, *[0] * (3 - count), *array.steps[lead:]]


def pick(engine: CLEngine, array: Array, indices: Sequence[Any]) -> Array:
    """Select elements: one index array for each of the last dimensions."""
    if array.dtype.kind == "c":
        raise NotHere("complex numbers")
    count = len(indices)
    many, channels, steps = steps_5d(array, count)
    sizes = [1] * (3 - count) + [len(index) for index in indices]
    made = engine.alloc((*array.shape[:-count], *sizes[3 - count :]), array.dtype)
    if not made.size:
        return made
    whole = [numpy.zeros(1, numpy.int32)] * (3 - count) + list(indices)
    table = engine.upload(numpy.concatenate(whole).astype(numpy.int32))
    plain, lines = as_bits(array), many * channels
    kernel = engine.kernel("spans resample", "pick", WORD=bits_type(plain))
    rows = lines * sizes[0] * sizes[1]
    launch_over(
        engine, kernel, rows, made, plain, table, lines, *sizes, channels, *steps,
        numbers=made.size,
    )  # fmt: skip
    return made


def combine(
    engine: CLEngine, array: Array, axes: Sequence[Axis], divisors: Any = None, kind: Any = None
) -> Array:
    """Weighted sums along the last dimensions, divided by divisors for each output index."""
    kind = kind or array.dtype
    work = dtypes.working(array.dtype)
    if not dtypes.is_floating(work) or (work == dtypes.FLOAT64 and not engine.has_double):
        raise NotHere(f"weighted sums of {array.dtype}")
    taps = [axis.taps for axis in axes]
    if len(axes) == 1 or math.prod(taps) <= 2 * sum(taps):
        return _combine_once(engine, array, axes, divisors, kind)
    # With many taps, one dimension after the other takes fewer steps; shrinking ones first.
    order = sorted(
        range(len(axes)), key=lambda d: axes[d].outputs / max(array.shape[d - len(axes)], 1)
    )
    for place, d in enumerate(order):
        last = place == len(order) - 1
        now = [
            axis if e == d else _identity_axis(array.shape[e - len(axes)])
            for e, axis in enumerate(axes)
        ]
        array = _combine_once(
            engine, array, now, divisors if last else None, kind if last else work
        )
    return array


def _combine_once(
    engine: CLEngine, array: Array, axes: Sequence[Axis], divisors: Any, kind: Any
) -> Array:
    count, work = len(axes), dtypes.working(array.dtype)
    many, channels, steps = steps_5d(array, count)
    axes = [_identity_axis(1)] * (3 - count) + list(axes)
    sizes = [axis.outputs for axis in axes]
    made = engine.alloc((*array.shape[:-count], *sizes[3 - count :]), kind)
    if not made.size:
        return made
    table, weights, by = _tables(axes, divisors, work)
    kernel = engine.kernel(
        "spans resample", "combine", WORK=working(work), FROM=storage(array.dtype),
        TO=storage(kind),
    )  # fmt: skip
    lines = many * channels
    launch_over(
        engine, kernel, lines * sizes[0] * sizes[1],
        made, array, engine.upload(table), engine.upload(weights), engine.upload(by),
        int(divisors is not None), len(axes[0].index), len(axes[1].index),
        lines, *sizes, channels, *steps, numbers=made.size,
    )  # fmt: skip
    return made


def _tables(axes: Sequence[Axis], divisors: Any, work: Any) -> tuple[Any, Any, Any]:
    starts, index = [axis.starts for axis in axes], [axis.index for axis in axes]
    table = numpy.concatenate([*starts, *index]).astype(numpy.int32)
    weights = numpy.concatenate([axis.weights for axis in axes]).astype(work)
    if divisors is None:
        return table, weights, numpy.ones(1, work)
    by = [numpy.ones(1)] * (3 - len(divisors)) + list(divisors)
    return table, weights, numpy.concatenate(by).astype(work)


# ---- resampling


@functools.lru_cache(256)
def _axes(
    name: str, sizes: Any, wanted: Any, aligned: bool, scales: Any, wide: bool, back: bool
) -> tuple[tuple[Axis, ...], bool]:
    """The axis of each dimension, and whether elements are only selected."""
    real = numpy.float64 if wide else numpy.float32
    found = [stencil for _, stencil in host.stencils_of(name, sizes, wanted, aligned, scales, real)]
    axes = tuple(axis_of(*stencil) for stencil in found)
    if back:
        axes = tuple(transpose_axis(axis, size) for axis, size in zip(axes, sizes, strict=True))
    return axes, all(weights is None for _, weights in found)


def _resample(
    engine: CLEngine, name: str, self: Array, shape: tuple[int, ...], aligned: bool, scales: Any
) -> Array:
    wide = self.dtype == dtypes.FLOAT64
    axes, whole = _axes(name, self.shape[2:], shape[2:], aligned, tuple(scales), wide, False)
    if whole:
        return pick(engine, self, [axis.index for axis in axes])
    if self.dtype != _UINT8:
        return combine(engine, self, axes)
    found = combine(engine, engine.cast(self, dtypes.FLOAT32), axes)
    given = strided_kernels.Input("self", found, "float")
    made = engine.alloc(shape, _UINT8)
    return strided_kernels.compute(engine, "clamp(rint($self), 0.0f, 255.0f)", [given], [], made)


def _resample_backward(
    engine: CLEngine, name: str, grad: Array, sizes: tuple[int, ...], aligned: bool, scales: Any
) -> Array:
    wide = grad.dtype == dtypes.FLOAT64
    axes, _ = _axes(name, sizes, grad.shape[2:], aligned, tuple(scales), wide, True)
    return combine(engine, grad, axes)


register_modes(register, _resample, _resample_backward, 1)


# ---- grid sampling


@kernel("grid_sampler_2d")
def grid_sampler(
    engine: CLEngine, input: Array, grid: Array, interpolation_mode: int, padding_mode: int,
    align_corners: bool,
) -> Array:  # fmt: skip
    shape = check_grid(2, input, grid, interpolation_mode, padding_mode)
    work = dtypes.working(input.dtype)
    if not dtypes.is_floating(work) or (work == dtypes.FLOAT64 and not engine.has_double):
        raise NotHere(f"sampling of {input.dtype}")
    made = engine.alloc(shape, input.dtype)
    if not made.size:
        return made
    plain, points = engine.contiguous(input), engine.contiguous(grid, work)
    many, channels, height, width = input.shape
    kernel = engine.kernel(
        "spans resample", "sample", WORK=working(work), FROM=storage(input.dtype),
        TO=storage(input.dtype), SAMPLE=1,
    )  # fmt: skip
    count = shape[2] * shape[3]
    launch_over(
        engine, kernel, many * count, made, plain, points, many, channels, count, height, width,
        interpolation_mode, padding_mode, int(align_corners),
    )  # fmt: skip
    return made
