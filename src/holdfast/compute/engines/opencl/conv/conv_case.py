"""The arrays and the window of a convolution, with three spatial dimensions."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy

from holdfast.compute.engines.opencl.runtime.array import Array, NotHere
from holdfast.compute.engines.opencl.runtime.engine_protocol import CLEngine
from holdfast.compute.ops.layers.convolution import ConvWindow

DIMENSIONS = 3  # spatial; missing ones have size 1


def window_to_3d(window: ConvWindow) -> ConvWindow:
    """The window with three dimensions. Raises NotHere if it has more."""
    missing = DIMENSIONS - len(window.sizes)
    if missing < 0:
        raise NotHere("a convolution of more than three dimensions")
    given = zip((1, 1, 0, 1), window[:4], strict=True)
    wide = [(fill,) * missing + values for fill, values in given]
    return ConvWindow._make([*wide, window.groups])


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
        return [group, *((second, first) if self.spread else (first, second)), *steps[2:]]

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
