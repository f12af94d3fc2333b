"""The arrays and the window of a convolution, with three spatial dimensions."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy

from holdfast.compute.engines.opencl.runtime.array import Array
from holdfast.compute.engines.opencl.runtime.engine_protocol import CLEngine

DIMENSIONS = 3  # spatial; missing ones have size 1


class ConvWindow(NamedTuple):
    """How a window moves over an input: three values each, one per spatial dimension."""

    sizes: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int

    @property
    def elements(self) -> int:
        """Elements of a channel that it covers."""
        return math.prod(self.sizes)

    @property
    def is_plain(self) -> bool:
        """Whether the convolution is 1x1 with stride 1 and no padding."""
        return max(*self.sizes, *self.stride) == 1 and not any(self.padding)


def window_counts(sizes: tuple[int, ...], window: ConvWindow) -> tuple[int, ...]:
    """The output sizes of the last dimensions."""
    given = zip(window.sizes, window.stride, window.padding, window.dilation, strict=True)
    last = list(given)[-len(sizes) :]
    return tuple(
        (n + 2 * p - d * (k - 1) - 1) // s + 1 for n, (k, s, p, d) in zip(sizes, last, strict=True)
    )


def to_3d(array: Array) -> Array:
    """With three spatial dimensions; missing ones are added in front."""
    missing = DIMENSIONS - (array.ndim - 2)
    shape = (*array.shape[:2], *[1] * missing, *array.shape[2:])
    strides = (*array.strides[:2], *[0] * missing, *array.strides[2:])
    return array.view(array.dtype, shape, strides)


class ConvCase(NamedTuple):
    """Arrays with three spatial dimensions: `out` gathers from `x`, or `x` is spread into `out`."""

    x: Array
    w: Array
    out: Array
    window: ConvWindow
    spread: bool

    @property
    def channels(self) -> tuple[int, int]:
        """Channels of a group: input (summed over) and output."""
        groups = self.window.groups
        return self.x.shape[1] // groups, self.out.shape[1] // groups

    def weight_steps(self) -> list[int]:
        """Steps of the weight: group, output channel, input channel, dimensions of the window."""
        steps = self.w.steps
        first, second = steps[:2]
        group = self.w.shape[0] // self.window.groups * first
        return (
            [group, second, first, *steps[2:]]
            if self.spread
            else [group, first, second, *steps[2:]]
        )

    def rows(self, engine: CLEngine) -> Array:
        """The weight as [1, groups, outputs, inputs x window], without a copy if possible."""
        summed, results = self.channels
        groups, places, steps = self.window.groups, self.window.elements, self.weight_steps()
        w = self.w
        if not w.is_contiguous:
            w = engine.contiguous(w)
            steps = self._replace(w=w).weight_steps()
        if self.spread and places > 1:  # input channels are not next to their window elements
            apart = w.view(
                w.dtype, (groups, results, summed, places),
                tuple(s * w.itemsize for s in (steps[0], steps[1], steps[2], 1)),
            )  # fmt: skip
            return engine.contiguous(apart).view(w.dtype, (1, groups, results, summed * places))
        size = w.itemsize
        inner = steps[2] if places == 1 else 1
        strides = 0, steps[0] * size, steps[1] * size, inner * size
        return w.view(w.dtype, (1, groups, results, summed * places), strides)

    def to_struct(self) -> Any:
        """The struct Conv of conv_direct.cl as one argument: setting forty arguments is slow."""
        window, (summed, results) = self.window, self.channels
        x, o = self.x.steps, self.out.steps
        words = (
            window.groups, summed, results, *self.x.shape[2:], *window.sizes, *self.out.shape[2:],
            *window.stride, *window.padding, *window.dilation, *x, *self.weight_steps(), *o,
        )  # fmt: skip
        return numpy.void(numpy.array(words, numpy.int64).tobytes())
