"""Assigns a fixed offset in a ring buffer to each stay of a pass that repeats.

A stay is the time a chunk spends in the ring. Stays that overlap in time never overlap in memory.
Offsets are the same in every pass, so views and captured graphs stay valid.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

ALIGNMENT = 512


@dataclass(frozen=True, slots=True)
class RingSlot:
    """A range of bytes in a ring. `after` lists the stays whose memory it overwrites.

    An index ≥ this stay's refers to the previous pass.
    """

    offset: int
    nbytes: int
    after: tuple[int, ...]


def aligned(nbytes: int) -> int:
    """`nbytes` rounded up to ALIGNMENT, so that every weight starts aligned."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def lay_out(stays: Sequence[tuple[int, int, int]], ring_bytes: int) -> list[RingSlot] | None:
    """A slot for each stay (bytes, first use, last use), by first use; None if they do not fit."""
    offsets = find_offsets(stays, ring_bytes)
    if offsets is None:
        return None
    sizes = [size for size, _, _ in stays]
    return [
        RingSlot(offsets[i], sizes[i], _predecessors(i, offsets, sizes)) for i in range(len(stays))
    ]


def find_offsets(stays: Sequence[tuple[int, int, int]], ring_bytes: int) -> list[int] | None:
    """The offset of each stay, first fit behind the latest one; None if they do not fit."""
    offsets: list[int] = []
    recent: list[int] = []  # stays that may still be open
    head = 0
    for size, first, _ in stays:
        recent = [i for i in recent if stays[i][2] >= first]
        offset = _first_fit(stays, offsets, recent, size, head, ring_bytes)
        if offset is None:
            return None
        recent.append(len(offsets))
        offsets.append(offset)
        head = offset + size
    return offsets


def _first_fit(
    stays: Sequence[tuple[int, int, int]],
    offsets: Sequence[int],
    open_stays: Sequence[int],
    size: int,
    head: int,
    ring_bytes: int,
) -> int | None:
    for start, end in ((head, ring_bytes), (0, ring_bytes)):
        offset = start
        while offset + size <= end:
            clash = [
                offsets[i] + stays[i][0]
                for i in open_stays
                if offsets[i] < offset + size and offset < offsets[i] + stays[i][0]
            ]
            if not clash:
                return offset
            offset = max(clash)
    return None


def _predecessors(number: int, offsets: Sequence[int], sizes: Sequence[int]) -> tuple[int, ...]:
    """The stays, latest first, whose bytes this one overwrites."""
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
