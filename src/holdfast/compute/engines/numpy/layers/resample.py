"""Resizing (nearest, linear, cubic, antialiased), forward and backward, one dimension at a time.

Positions are computed in float32 (float64 for float64 inputs), as in torch, so that the same
pixels are picked.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy

from holdfast.compute import dtype as dtypes
from holdfast.compute.engines.numpy.index.indexing import add_along
from holdfast.compute.engines.numpy.kernels import register
from holdfast.compute.ops.layers.resample import register_modes

BEND = -0.75  # the cubic's parameter: its slope at a distance of one pixel

# Input indices [outputs, taps], and their weights (None: all are 1).
Stencil = tuple[Any, Any]


def _step(size: int, outputs: int, aligned: bool, scale: float | None, real: Any) -> Any:
    """The distance of two outputs in inputs."""
    if aligned:
        return real(size - 1) / real(outputs - 1) if outputs > 1 else real(0)
    if scale is not None and scale > 0:
        return real(1.0 / scale)
    return real(size) / real(outputs)


def _nearest(
    size: int, outputs: int, aligned: bool, scale: Any, real: Any, shift: float = 0.0
) -> Stencil:
    step = _step(size, outputs, False, scale, numpy.float32)
    count = numpy.arange(outputs, dtype=numpy.float32) + numpy.float32(shift)
    position = numpy.floor(count * step).astype(numpy.int64)
    return numpy.minimum(position, size - 1)[:, None], None


def _nearest_kept(size: int, outputs: int, *settings: Any) -> Stencil:
    """`_nearest`, which ignores the scale if the size stays or doubles."""
    if outputs in (size, 2 * size):
        return (numpy.arange(outputs) // (outputs // size))[:, None], None
    return _nearest(size, outputs, *settings)


def _positions(size: int, outputs: int, aligned: bool, scale: Any, real: Any) -> Any:
    step = _step(size, outputs, aligned, scale, real)
    count = numpy.arange(outputs, dtype=real)
    return count * step if aligned else step * (count + real(0.5)) - real(0.5)


def _linear(size: int, outputs: int, aligned: bool, scale: Any, real: Any) -> Stencil:
    if size == outputs:
        return numpy.arange(size)[:, None], None
    position = numpy.maximum(_positions(size, outputs, aligned, scale, real), 0)
    low = numpy.minimum(position.astype(numpy.int64), size - 1)
    high = numpy.minimum(low + 1, size - 1)
    part = numpy.clip(position - low.astype(real), 0, 1).astype(real)
    return numpy.stack([low, high], 1), numpy.stack([1 - part, part], 1)


def _cubic(size: int, outputs: int, aligned: bool, scale: Any, real: Any) -> Stencil:
    position = _positions(size, outputs, aligned, scale, real)
    low = numpy.floor(position)
    taps = low.astype(numpy.int64)[:, None] + numpy.arange(-1, 3)
    return numpy.clip(taps, 0, size - 1), cubic_weights(position - low, real(BEND))


def cubic_weights(part: Any, bend: Any) -> Any:
    """Weights of a point's four neighbours, as last dimension; `part`: distance to the second."""

    def far(x: Any) -> Any:
        return ((bend * x - 5 * bend) * x + 8 * bend) * x - 4 * bend

    def near(x: Any) -> Any:
        return ((bend + 2) * x - (bend + 3)) * x * x + 1

    return numpy.stack([far(part + 1), near(part), near(1 - part), far(2 - part)], -1)


# ---- antialiased


def _sharp(x: Any) -> Any:
    x = numpy.abs(x)
    near = (1.5 * x - 2.5) * x * x + 1
    far = ((-0.5 * x + 2.5) * x - 4) * x + 2
    return numpy.where(x < 1, near, numpy.where(x < 2, far, 0))


def _antialias(shape: Callable[[Any], Any], reach: float) -> Callable[..., Stencil]:
    """A stencil of a filter with a radius of `reach` inputs, or outputs if these are wider."""

    def stencil(size: int, outputs: int, aligned: bool, scale: Any, real: Any) -> Stencil:
        if size == outputs:
            return numpy.arange(size)[:, None], None
        step = _step(size, outputs, aligned, scale, real)
        wide = real(max(step, 1))
        centre = step * (numpy.arange(outputs, dtype=real) + real(0.5))
        half = real(0.5)
        low = numpy.maximum((centre - reach * wide + half).astype(numpy.int64), 0)
        high = numpy.minimum((centre + reach * wide + half).astype(numpy.int64), size)
        taps = low[:, None] + numpy.arange(max(int((high - low).max()), 1))
        weights = shape((taps - centre[:, None] + half) / wide).astype(real)
        weights[taps >= high[:, None]] = 0
        total = weights.sum(1, keepdims=True)
        numpy.divide(weights, total, out=weights, where=total != 0)
        return numpy.minimum(taps, size - 1), weights

    return stencil


_STENCILS: dict[str, Callable[..., Stencil]] = {
    "nearest": _nearest,
    "nearest_kept": _nearest_kept,
    "nearest_exact": functools.partial(_nearest, shift=0.5),
    "linear": _linear,
    "bilinear": _linear,
    "trilinear": _linear,
    "bicubic": _cubic,
    "bilinear_aa": _antialias(lambda x: numpy.maximum(1 - numpy.abs(x), 0), 1.0),
    "bicubic_aa": _antialias(_sharp, 2.0),
    "lanczos_aa": _antialias(
        lambda x: numpy.where(numpy.abs(x) < 3, numpy.sinc(x) * numpy.sinc(x / 3), 0), 3.0
    ),
}


# ---- applying stencils


def _apply(array: Any, axis: int, stencil: Stencil) -> Any:
    taps, weights = stencil
    if weights is None:
        return array.take(taps[:, 0], axis)
    shape = [-1] + [1] * (-1 - axis)
    out = array.take(taps[:, 0], axis) * weights[:, 0].reshape(shape)
    for tap in range(1, taps.shape[1]):
        part = array.take(taps[:, tap], axis)
        part *= weights[:, tap].reshape(shape)
        out += part
    return out


def _adjoint(array: Any, axis: int, size: int, stencil: Stencil) -> Any:
    taps, weights = stencil
    if weights is None:
        return add_along(array, taps[:, 0], size, axis)
    shape = [-1] + [1] * (-1 - axis)
    out: Any = 0
    for tap in range(taps.shape[1]):
        part = array * weights[:, tap].reshape(shape)
        out = out + add_along(part, taps[:, tap], size, axis)
    return out


def _real(kind: Any) -> Any:
    return numpy.float64 if kind == dtypes.FLOAT64 else numpy.float32


def stencils_of(name: str, sizes: Any, wanted: Any, aligned: bool, scales: Any, real: Any) -> Any:
    """(axis, stencil) of every resampled dimension."""
    make = _STENCILS[name]
    scales = [*scales, *[None] * (len(sizes) - len(scales))]
    axes = range(-len(sizes), 0)
    return [
        (axis, make(size, outputs, aligned, scale, real))
        for axis, size, outputs, scale in zip(axes, sizes, wanted, scales, strict=True)
    ]


def _resample(name: str, self: Any, shape: tuple[int, ...], aligned: bool, scales: Any) -> Any:
    real = _real(self.dtype)
    stencils = stencils_of(name, self.shape[2:], shape[2:], aligned, scales, real)
    unweighted = all(weights is None for _, (_, weights) in stencils)
    out = self if unweighted else self.astype(real, copy=False)
    # Dimensions that shrink come first: it leaves less to do for the others.
    for axis, stencil in sorted(stencils, key=lambda s: len(s[1][0]) / self.shape[s[0]]):
        out = _apply(out, axis, stencil)
    if self.dtype == numpy.uint8 and not unweighted:
        out = numpy.clip(numpy.rint(out), 0, 255)
    return out.astype(self.dtype, copy=False)


def _resample_backward(
    name: str, grad: Any, sizes: tuple[int, ...], aligned: bool, scales: Any
) -> Any:
    real = _real(grad.dtype)
    out = grad.astype(real, copy=False)
    for axis, stencil in stencils_of(name, sizes, grad.shape[2:], aligned, scales, real):
        out = _adjoint(out, axis, sizes[axis], stencil)
    return out.astype(grad.dtype, copy=False)


register_modes(register, _resample, _resample_backward)
