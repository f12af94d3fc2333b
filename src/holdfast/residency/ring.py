"""Addresses in a ring that serves the same sequence of stays again and again.

Covers: one fixed place for each stay, and which earlier stays have to be over before it is filled.
Promise: two stays that overlap in time never overlap in memory; a place never changes from pass to
pass, so captured graphs and views stay valid.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

ALIGNMENT = 512


@dataclass(frozen=True, slots=True)
class Slot:
    """A place in a ring. `after` are numbers of stays whose place it takes over.

    A number not below that of the stay itself means that stay in the pass before.
    """

    offset: int
    nbytes: int
    after: tuple[int, ...]


def aligned(nbytes: int) -> int:
    """Rounded up, so that every weight begins where kernels like to read."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def lay_out(stays: Sequence[tuple[int, int, int]], ring_bytes: int) -> list[Slot] | None:
    """A place for each stay (bytes, first use, last use) in turn; None if they do not fit.

    Stays come in the order in which they are filled, which is that of their first uses.
    """
    offsets = find_offsets(stays, ring_bytes)
    if offsets is None:
        return None
    sizes = [size for size, _, _ in stays]
    return [Slot(offsets[i], sizes[i], _predecessors(i, offsets, sizes)) for i in range(len(stays))]


def find_offsets(stays: Sequence[tuple[int, int, int]], ring_bytes: int) -> list[int] | None:
    """Where each stay begins, or None if they do not fit: what `lay_out` finds first.

    First fit behind the latest stay, past stays that are still open; each pass begins at 0.
    """
    offsets: list[int] = []
    recent: list[int] = []  # stays that may still be open
    head = 0
    for size, first, _ in stays:
        recent = [i for i in recent if stays[i][2] >= first]
        place = _place(stays, offsets, recent, size, head, ring_bytes)
        if place is None:
            return None
        recent.append(len(offsets))
        offsets.append(place)
        head = place + size
    return offsets


def _place(
    stays: Sequence[tuple[int, int, int]],
    offsets: Sequence[int],
    open_stays: Sequence[int],
    size: int,
    head: int,
    ring_bytes: int,
) -> int | None:
    for start, end in ((head, ring_bytes), (0, ring_bytes)):
        place = start
        while place + size <= end:
            clash = [
                offsets[i] + stays[i][0]
                for i in open_stays
                if offsets[i] < place + size and place < offsets[i] + stays[i][0]
            ]
            if not clash:
                return place
            place = max(clash)
    return None


def _predecessors(number: int, offsets: Sequence[int], sizes: Sequence[int]) -> tuple[int, ...]:
    """The stays, latest first, that lay in this place since it was last filled whole."""
    begin, end = offsets[number], offsets[number] + sizes[number]
    uncovered = [(begin, end)]
    found: list[int] = []
    count = len(offsets)
    for back in range(1, count + 1):
        other = (number - back) % count
        low = offsets[other]
        high = low + sizes[other]
        if high <= begin or end <= low:
            continue
        left = [part for span in uncovered for part in _without(span, low, high)]
        if left != uncovered:
            found.append(other)
            uncovered = left
        if not uncovered:
            break
    return tuple(found)


def _without(span: tuple[int, int], low: int, high: int) -> list[tuple[int, int]]:
    begin, end = span
    if high <= begin or end <= low:
        return [span]
    return [part for part in ((begin, low), (high, end)) if part[0] < part[1]]
