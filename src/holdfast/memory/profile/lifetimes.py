"""Bytes alive after each event, reserved ranges, and the names of source lines and places."""

from __future__ import annotations

import re
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from holdfast.memory.profile.recording import BlockEvents, Frame, Kind, MemoryPlace, Recording

NO_STACK = "(no stack recorded)"
NO_TAG = "(no tag)"
# Frames of the allocating libraries: every block comes from them, so they say nothing.
_INNER = re.compile(
    r"(?:^|[/\\])(?:site-packages|dist-packages|src)[/\\](?:torch|numpy|holdfast)[/\\]|^<frozen "
)
_PACKAGES = re.compile(r"^.*[/\\](?:site-packages|dist-packages)[/\\]")


class Segment(NamedTuple):
    """A range that was reserved from event `begin` to event `end`."""

    begin: int
    end: int
    address: int
    size: int
    place: int


def totals(
    recording: Recording, blocks: BlockEvents, rows: Iterable[int] | None = None
) -> array[int]:
    """Bytes alive after every event, of all blocks or of the given rows of `blocks`."""
    changes = array("q", bytes(8 * len(recording)))
    never, sizes = len(recording), recording.sizes
    for row in range(len(blocks)) if rows is None else rows:
        begin, end = blocks.begins[row], blocks.ends[row]
        changes[begin] += sizes[begin]
        if end < never:
            changes[end] -= sizes[begin]
    total = 0
    for number, change in enumerate(changes):
        total += change
        changes[number] = total
    return changes


def alive_after(blocks: BlockEvents, event: int) -> Iterator[int]:
    """The rows of the blocks that were alive after event `event`."""
    last = bisect_right(blocks.begins, event)
    ends = blocks.ends
    return (row for row in range(last) if ends[row] > event)


def segments(recording: Recording) -> list[Segment]:
    """Every reserved range. A RELEASE of a part leaves the rest as separate ranges."""
    found: list[Segment] = []
    open_: dict[int, list[Segment]] = {}
    columns = (recording.kinds, recording.addresses, recording.sizes, recording.places)
    for number, (kind, address, size, place) in enumerate(zip(*columns, strict=True)):
        if kind < Kind.RESERVE:
            continue
        here = open_.setdefault(place, [])
        size = size or next((s.size for s in here if s.address == address), 0)
        kept: list[Segment] = []
        for segment in here:
            kept += _cut(segment, address, size, number, found)
        if kind == Kind.RESERVE:
            kept.append(Segment(number, len(recording), address, size, place))
        open_[place] = kept
    found += [segment for here in open_.values() for segment in here]
    return sorted(found)


def _cut(
    segment: Segment, address: int, size: int, number: int, found: list[Segment]
) -> Iterator[Segment]:
    """What is left of `segment` without the range; its past goes into `found`."""
    start, stop = segment.address, segment.address + segment.size
    if address >= stop or address + size <= start:
        yield segment
        return
    if segment.begin < number:
        found.append(segment._replace(end=number))
    for left, right in ((start, min(stop, address)), (max(start, address + size), stop)):
        if left < right:
            yield segment._replace(begin=number, address=left, size=right - left)


def site(stack: tuple[Frame, ...]) -> Frame | None:
    """The frame that a block is attributed to; None if its stack is unknown.

    The innermost one outside of torch, numpy, holdfast and the import system (a folder of that
    name in site-packages, dist-packages or src). If there is none, the innermost of all.
    """
    for frame in stack:
        if not is_inner(frame):
            return frame
    return stack[0] if stack else None


def is_inner(frame: Frame) -> bool:
    """Whether a frame belongs to an allocating library, not to its caller."""
    return _INNER.search(frame.file) is not None


def location(stack: tuple[Frame, ...]) -> str:
    """`site` as text: "train.py:12 in step". The path is cut after site-packages."""
    frame = site(stack)
    if frame is None:
        return NO_STACK
    return f"{_PACKAGES.sub('', frame.file)}:{frame.line} in {frame.function}"


def place_name(place: MemoryPlace) -> str:
    """A place as text: "torch cuda:0", or "pool cpu (weights)"."""
    return f"{place.source} {place.device}" + (f" ({place.name})" if place.name else "")
