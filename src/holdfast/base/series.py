"""Bytes over time: series, charts of several series, thinning that keeps peaks.

Every picture of memory over time is made from these: pages (`html`), the chart in the terminal,
the pictures of nodes.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

T = TypeVar("T")


class Series(NamedTuple):
    """Bytes at times; a value holds until the next event."""

    times_ns: Sequence[int]
    bytes: Sequence[int]


@dataclass(frozen=True, slots=True)
class Layer:
    """One series of a panel; None while it did not exist."""

    name: str
    nbytes: tuple[int | None, ...]

    @property
    def peak(self) -> int | None:
        """The index of the highest value, or None."""
        known = [at for at, count in enumerate(self.nbytes) if count is not None]
        return max(known, key=lambda at: self.nbytes[at] or 0, default=None)


@dataclass(frozen=True, slots=True)
class Span:
    """A stage, in seconds since the begin of the document."""

    name: str
    from_s: float
    to_s: float


@dataclass(frozen=True, slots=True)
class Panel:
    """One chart: layers over the same times, stacked, or as lines if `kind` is "lines"."""

    title: str
    kind: str
    capacity_bytes: int | None
    at_s: tuple[float, ...]  # since the document began
    layers: tuple[Layer, ...]
    stages: tuple[Span, ...] = ()


def thin(samples: Sequence[T], *figures: Callable[[T], Any]) -> list[T]:
    """Drop at least half of the older half of `samples`; the order stays.

    The first sample and the newer half are kept. Of the older half, each group of
    `2 * len(figures)` samples keeps the one where each figure is highest.
    """
    few = 2 * len(figures)
    middle = 1 + len(samples) // 2 // few * few
    kept = list(samples[:1])
    for start in range(1, middle, few):
        group = samples[start : start + few]
        best = {max(range(few), key=lambda at: figure(group[at])) for figure in figures}
        kept += [group[at] for at in sorted(best)]
    return [*kept, *samples[middle:]]


def thin_series(series: Series, points: int) -> Series:
    """At most `points` of a series: the lowest and highest value of each part of the time."""
    kept = kept_events(series, points)
    return Series([series.times_ns[i] for i in kept], [series.bytes[i] for i in kept])


def kept_events(series: Series, points: int) -> list[int]:
    """The rows that `thin_series` keeps, first and last included. `points` is at least 4."""
    times, values = series
    count = len(values)
    if count <= points:
        return list(range(count))
    parts = max((points - 2) // 2, 1)
    start, span = times[0], times[-1] - times[0] + 1
    kept, before = {0, count - 1}, 0
    for part in range(parts):
        until = bisect_left(times, start + span * (part + 1) // parts, before)
        if until > before:
            rows = range(before, until)
            kept |= {min(rows, key=values.__getitem__), max(rows, key=values.__getitem__)}
        before = until
    return sorted(kept)


def ticks(low: float, high: float, count: int) -> list[float]:
    """About `count` round numbers between the two."""
    rough = max((high - low) / count, 1e-9)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [round(step * at, 9) for at in range(first, math.floor(high / step + 1e-9) + 1)]
