"""Fewer samples of the past, and none of its peaks lost.

Covers: which samples of a growing list may go.  Leaves to others: what a sample is, when to thin.
Promise: the first sample and the newer half stay as they are. Of the older half at most one in two
stays, and among them is, for every figure, the one where it was highest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

T = TypeVar("T")


def thinned(samples: Sequence[T], *figures: Callable[[T], Any]) -> list[T]:
    """The samples with the older half thinned: of each few the highest of each figure."""
    few = 2 * len(figures)
    middle = 1 + len(samples) // 2 // few * few
    kept = list(samples[:1])
    for start in range(1, middle, few):
        group = samples[start : start + few]
        best = {max(range(few), key=lambda at: figure(group[at])) for figure in figures}
        kept += [group[at] for at in sorted(best)]
    return [*kept, *samples[middle:]]
