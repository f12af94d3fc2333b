"""Grid sampling over 2 and 3 spatial dimensions, and affine grids.

Along each dimension a point has neighbours ("taps"), each with a weight and the weight's
derivative. Every mode is a sum of products of those, forward and backward.
"""

from __future__ import annotations

import functools
import itertools
from typing import Any, NamedTuple

import numpy

from holdfast.compute import dtype as dtypes
from holdfast.compute.engines.numpy.kernels import kernel, register
from holdfast.compute.engines.numpy.layers.resample import BEND, cubic_weights
from holdfast.compute.ops.layers.grid_sample import (
    CUBIC,
    NEAREST,
    REFLECTION,
    ZEROS,
    affine_shape,
    check_grid,
)


class _Tap(NamedTuple):
    """One neighbour of every point along one dimension."""

    index: Any
    inside: Any
    weight: Any
    slope: Any  # derivative of the weight by the pixel coordinate


def _taps(point: Any, size: int, mode: int, padding: int, aligned: bool) -> tuple[list[_Tap], Any]:
    """The neighbours of points, and the derivative of the pixel by the grid coordinate."""
    pixel, factor = _to_pixels(point, size, aligned)
    if mode == CUBIC:
        return _cubic_taps(pixel, size, padding, aligned), factor
    pixel, turn = _pad_coordinate(pixel, size, padding, aligned)
    if mode == NEAREST:
        return [_Tap(*_to_index(numpy.rint(pixel), size), None, None)], None
    low = numpy.floor(pixel)
    pair = [
        _Tap(*_to_index(low, size), low + 1 - pixel, pixel.dtype.type(-1)),
        _Tap(*_to_index(low + 1, size), pixel - low, pixel.dtype.type(1)),
    ]
    return pair, turn * factor


def _cubic_taps(pixel: Any, size: int, padding: int, aligned: bool) -> list[_Tap]:
    low = numpy.floor(pixel)
    part = pixel - low
    weights = cubic_weights(part, pixel.dtype.type(BEND))
    slopes = _cubic_slopes(part, pixel.dtype.type(BEND))
    found = []
    for tap in range(4):
        seen, _ = _pad_coordinate(low + (tap - 1), size, padding, aligned)
        found.append(_Tap(*_to_index(seen, size), weights[..., tap], slopes[..., tap]))
    return found


def _cubic_slopes(part: Any, bend: Any) -> Any:

    def far(x: Any) -> Any:
        return (3 * bend * x - 10 * bend) * x + 8 * bend

    def near(x: Any) -> Any:
        return (3 * (bend + 2) * x - 2 * (bend + 3)) * x

    return numpy.stack([far(part + 1), near(part), -near(1 - part), -far(2 - part)], -1)


def _to_pixels(point: Any, size: int, aligned: bool) -> tuple[Any, Any]:
    """Map coordinates in -1 … 1 to pixels; also returns the factor."""
    if aligned:
        return (point + 1) / 2 * (size - 1), point.dtype.type((size - 1) / 2)
    return ((point + 1) * size - 1) / 2, point.dtype.type(size / 2)


def _pad_coordinate(pixel: Any, size: int, padding: int, aligned: bool) -> tuple[Any, Any]:
    """Apply border or reflection padding to pixel coordinates; also returns the derivative."""
    if padding == ZEROS:
        return pixel, 1
    turn: Any = 1
    if padding == REFLECTION:
        low, span = (0, size - 1) if aligned else (-0.5, size)
        pixel, turn = _reflect(pixel, pixel.dtype.type(low), pixel.dtype.type(span))
    moves = (pixel > 0) & (pixel < size - 1)
    # fmax maps NaN to 0.
    return numpy.minimum(numpy.fmax(pixel, 0), size - 1), turn * moves.astype(pixel.dtype)


def _reflect(pixel: Any, low: Any, span: Any) -> tuple[Any, Any]:
    if span == 0:
        return numpy.zeros_like(pixel), 0
    away = pixel - low
    with numpy.errstate(invalid="ignore"):
        flips = numpy.floor(numpy.abs(away) / span)
        rest = numpy.fmod(numpy.abs(away), span)
        odd = numpy.fmod(flips, 2) == 1
    turn = numpy.where(odd, -1, 1) * numpy.where(away < 0, -1, 1)
    return numpy.where(odd, span - rest, rest) + low, turn.astype(pixel.dtype)


def _to_index(pixel: Any, size: int) -> tuple[Any, Any]:
    inside = (pixel >= 0) & (pixel <= size - 1)
    return numpy.where(inside, pixel, 0).astype(numpy.int64), inside


# ---- forward and backward


class _Points:
    """The points of a grid with their taps along every dimension."""

    def __init__(
        self, input: Any, grid: Any, count: int, mode: int, padding: int, aligned: bool
    ) -> None:
        self.shape = check_grid(count, input, grid, mode, padding)
        self.working = dtypes.working(input.dtype)
        self.sizes = input.shape[2:]
        points = grid.astype(self.working, copy=False).reshape(len(grid), -1, count)
        found = [
            _taps(points[..., count - 1 - d], size, mode, padding, aligned)
            for d, size in enumerate(self.sizes)
        ]
        self.taps = [taps for taps, _ in found]
        self.paces = [pace for _, pace in found]
        self.flat = input.astype(self.working, copy=False).reshape(*input.shape[:2], -1)

    def neighbours(self) -> Any:
        """Yield (flat index, whether it is inside, tap of each dimension) of each neighbour."""
        for taps in itertools.product(*self.taps):
            index, inside = taps[0].index, taps[0].inside
            for size, tap in zip(self.sizes[1:], taps[1:], strict=True):
                index, inside = index * size + tap.index, inside & tap.inside
            yield index, inside, taps

    def gather(self, index: Any) -> Any:
        """The input at flat indices: [batch, channels, points]."""
        out = numpy.empty((*self.flat.shape[:2], index.shape[1]), self.working)
        for one, where, into in zip(self.flat, index, out, strict=True):
            numpy.take(one, where, axis=1, out=into, mode="clip")
        return out


def _weight(inside: Any, taps: Any, working: Any) -> Any:
    """The product of the weights; 0 outside."""
    out = inside.astype(working)
    for tap in taps:
        if tap.weight is not None:
            out = numpy.where(inside, out * tap.weight, 0)
    return out


def _sample(
    count: int, input: Any, grid: Any, interpolation_mode: int, padding_mode: int,
    align_corners: bool,
) -> Any:  # fmt: skip
    points = _Points(input, grid, count, interpolation_mode, padding_mode, align_corners)
    out = numpy.zeros((*input.shape[:2], grid[0, ..., 0].size if len(grid) else 0), points.working)
    for index, inside, taps in points.neighbours():
        seen = points.gather(index)
        weight = _weight(inside, taps, points.working)[:, None]
        # Elements outside count as 0, even next to an infinite one.
        numpy.multiply(seen, weight, out=seen)
        numpy.add(out, seen, out=out, where=inside[:, None])
    return out.reshape(points.shape).astype(input.dtype, copy=False)


def _sample_backward(
    count: int, grad_output: Any, input: Any, grid: Any, interpolation_mode: int,
    padding_mode: int, align_corners: bool, output_mask: Any,
) -> tuple[Any, Any]:  # fmt: skip
    points = _Points(input, grid, count, interpolation_mode, padding_mode, align_corners)
    gradient = grad_output.astype(points.working, copy=False)
    gradient = gradient.reshape(*input.shape[:2], -1)
    of_input = _input_gradient(points, gradient, input) if output_mask[0] else None
    of_grid = _grid_gradient(points, gradient, grid, count) if output_mask[1] else None
    return of_input, of_grid


# Terms are added in torch's order, point by point and channel by channel, to round as torch does.


def _input_gradient(points: _Points, gradient: Any, input: Any) -> Any:
    around = list(points.neighbours())
    index = numpy.stack([index for index, _, _ in around], -1)
    weight = numpy.stack([_weight(inside, taps, points.working) for _, inside, taps in around], -1)
    out: Any = numpy.zeros(points.flat.shape, points.working)
    shift = (numpy.arange(out.shape[1]) * out.shape[2])[:, None, None]
    for one, into in enumerate(out):
        part = gradient[one][..., None] * weight[one]
        numpy.add.at(into.reshape(-1), (index[one] + shift).reshape(-1), part.reshape(-1))
    return out.reshape(input.shape).astype(input.dtype, copy=False)


def _grid_gradient(points: _Points, gradient: Any, grid: Any, count: int) -> Any:
    out = numpy.zeros((len(grid), gradient.shape[-1], count), points.working)
    around = list(points.neighbours())
    if any(tap.slope is None for tap in around[0][2]):
        return out.reshape(grid.shape).astype(grid.dtype, copy=False)
    inside = numpy.stack([inside for _, inside, _ in around], 1)
    for one, into in enumerate(out):
        where = numpy.stack([index[one] for index, _, _ in around])
        seen = points.flat[one].take(where, 1)
        for d in range(count):
            term = seen
            for e in reversed(range(count)):
                factors = [(t[e].slope if e == d else t[e].weight) for _, _, t in around]
                term = term * numpy.where(inside[one], _stack_sample(factors, one), 0)
            term *= gradient[one][:, None]
            total = term.reshape(-1, term.shape[-1]).sum(0)
            into[:, count - 1 - d] = total * _stack_sample([points.paces[d]], one)[0]
    return out.reshape(grid.shape).astype(grid.dtype, copy=False)


def _stack_sample(arrays: list[Any], one: int) -> Any:
    """Stack the rows of one sample; scalars are the same for all samples."""
    rows = [numpy.atleast_1d(a[one] if numpy.ndim(a) else a) for a in arrays]
    return numpy.stack(rows)


for _n in (2, 3):
    register(f"grid_sampler_{_n}d", functools.partial(_sample, _n))
    register(f"grid_sampler_{_n}d_backward", functools.partial(_sample_backward, _n))


# ---- grids of affine maps


def _base_grid(size: Any, aligned: bool, working: Any) -> Any:
    """Homogeneous coordinates of the output's points: [points, dimensions + 1]."""
    along = []
    for length in size[2:]:
        steps = numpy.linspace(-1, 1, length) if length > 1 else numpy.zeros(length)
        along.append(steps if aligned else steps * ((length - 1) / length))
    mesh = numpy.meshgrid(*along, indexing="ij")
    grid = numpy.stack([*mesh[::-1], numpy.ones(size[2:])], -1).reshape(-1, len(size) - 1)
    return grid.astype(working)


@kernel("affine_grid_generator")
def affine_grid(theta: Any, size: Any, align_corners: bool) -> Any:
    shape = affine_shape(size)
    working = dtypes.working(theta.dtype)
    base = _base_grid(size, align_corners, working)
    out = base @ theta.astype(working, copy=False).swapaxes(1, 2)
    return out.reshape(shape).astype(theta.dtype, copy=False)


@kernel("affine_grid_generator_backward")
def affine_grid_backward(grad: Any, size: Any, align_corners: bool) -> Any:
    working = dtypes.working(grad.dtype)
    base = _base_grid(size, align_corners, working)
    points = grad.astype(working, copy=False).reshape(size[0], -1, len(size) - 2)
    return (points.swapaxes(1, 2) @ base).astype(grad.dtype, copy=False)
