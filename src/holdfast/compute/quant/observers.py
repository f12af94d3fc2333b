"""Observers: the range of what passes through a layer. NaN and infinity raise at once."""

from __future__ import annotations

from typing import Any

import numpy

from holdfast.base.errors import BadInput, Misuse
from holdfast.compute.ops.schema import describe


class MinMax:
    """The minimum and maximum of everything seen."""

    def __init__(self, name: str = "", axis: int | None = None) -> None:
        self.name, self.axis = name, axis
        self.low: Any = None
        self.high: Any = None

    def __call__(self, tensor: Any) -> None:
        """Observe a batch. Raises BadInput for NaN and infinity."""
        array = numpy.asarray(tensor.data, numpy.float32)
        bad = array.size - int(numpy.isfinite(array).sum())
        if bad:
            raise BadInput(
                f"layer {self.name!r} received {bad} NaN or infinite elements of {array.size} "
                f"({describe(tensor)})",
                expected="finite numbers",
                hint="a smaller learning rate, or look for the layer before it that overflows",
            )
        if array.size:
            self._see(array)

    def _see(self, array: Any) -> None:
        low, high = self._ends(array)
        self.low = low if self.low is None else numpy.minimum(self.low, low)
        self.high = high if self.high is None else numpy.maximum(self.high, high)

    def _ends(self, array: Any) -> tuple[Any, Any]:
        if self.axis is None:
            return array.min(), array.max()
        dims = tuple(d for d in range(array.ndim) if d != self.axis % array.ndim)
        return array.min(axis=dims), array.max(axis=dims)

    def range(self) -> tuple[Any, Any]:
        """(lowest, highest). Raises Misuse if nothing was seen."""
        if self.low is None:
            raise Misuse(
                f"layer {self.name!r} has seen no data",
                expected="a few batches of typical data through the prepared model",
                hint="for batch in data: prepared(batch)",
            )
        return self.low, self.high


class MovingAverage(MinMax):
    """Moving averages of minimum and maximum, so that one outlier batch counts little."""

    def __init__(self, name: str = "", axis: int | None = None, momentum: float = 0.1) -> None:
        super().__init__(name, axis)
        self.momentum = momentum

    def _see(self, array: Any) -> None:
        low, high = self._ends(array)
        if self.low is None:
            self.low, self.high = low, high
        else:
            self.low = self.low + self.momentum * (low - self.low)
            self.high = self.high + self.momentum * (high - self.high)


class Histogram(MinMax):
    """The range with the smallest squared error: outliers are clipped if that pays."""

    BINS = 1024

    def __init__(self, name: str = "", axis: int | None = None, levels: int = 255) -> None:
        if axis is not None:
            raise BadInput("a histogram has no channels", expected="axis=None")
        super().__init__(name)
        self.levels = levels
        self.counts: Any = None

    def _see(self, array: Any) -> None:
        before = (self.low, self.high, self.counts)
        super()._see(array)
        self.counts = numpy.zeros(self.BINS)
        if before[2] is not None:
            edges = numpy.linspace(float(before[0]), float(before[1]), self.BINS + 1)
            self._add((edges[:-1] + edges[1:]) / 2, before[2])
        self._add(array.reshape(-1), None)

    def _add(self, numbers: Any, weights: Any) -> None:
        ends = (float(self.low), float(self.high))
        if ends[0] == ends[1]:
            room = max(0.5, abs(ends[0]) / 2)
            ends = (ends[0] - room, ends[1] + room)
        # In float64: the width of the range may exceed float32.
        counted = numpy.asarray(numbers, numpy.float64)
        self.counts += numpy.histogram(counted, self.BINS, ends, weights=weights)[0]

    def range(self) -> tuple[Any, Any]:
        low, high = (float(end) for end in super().range())
        if self.counts is None or low == high:
            return low, high
        edges = numpy.linspace(low, high, self.BINS + 1)
        centres = (edges[:-1] + edges[1:]) / 2
        parts = numpy.linspace(1.0, 0.05, 96)
        high = min((self._error(centres, low, high * part), high * part) for part in parts)[1]
        low = min((self._error(centres, low * part, high), low * part) for part in parts)[1]
        return low, high

    def _error(self, centres: Any, low: float, high: float) -> float:
        """The squared error of rounding inside low..high, and of clipping outside."""
        step = max((high - low) / self.levels, 1e-30)
        outside = numpy.maximum(centres - high, 0) + numpy.maximum(low - centres, 0)
        inside = step * step / 12
        return float((self.counts * numpy.where(outside > 0, outside**2, inside)).sum())


OBSERVERS = {"minmax": MinMax, "average": MovingAverage, "histogram": Histogram}


def make(kind: str, name: str) -> MinMax:
    """An observer by name. Raises BadInput."""
    if kind not in OBSERVERS:
        raise BadInput(f"there is no observer {kind!r}", expected=f"one of {', '.join(OBSERVERS)}")
    return OBSERVERS[kind](name)
