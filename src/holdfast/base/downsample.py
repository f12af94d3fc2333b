"""Drops old samples of a growing series without losing its peaks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

T = TypeVar("T")


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
