"""torch's own record of its CUDA memory, brought onto the time axis of a recording.

Covers: switching torch's memory history on and off, merging what it holds.
Leaves to others: reading a snapshot (torch_snapshot), torch's CPU memory (torch_cpu).
Promise: CUDA is never initialised from here. The history begins when the program itself
initialises CUDA, if it ever does.

torch stamps its events with the wall clock; a recording counts from its start by the monotonic
one. Both are read together when a recording begins, and the difference is kept. Where the wall
clock is set in the middle, CUDA events after that are off by as much.
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from holdfast.base.errors import BadInput
from holdfast.memory.recording import COLUMNS, Kind, Recording
from holdfast.memory.torch_snapshot import from_torch_snapshot

MOST_ENTRIES = 2_000_000  # torch keeps the last so many


class CudaTrace:
    """torch's history of CUDA memory from `start` to `stop`."""

    def __init__(self) -> None:
        self._wanted = False
        self._began = False
        self._found: Recording | None = None
        self.notes: list[str] = []

    def start(self) -> None:
        """Begin now where CUDA is up, else when it comes up. Nothing without torch and CUDA."""
        cuda = _cuda()
        if cuda is not None and not self._wanted:
            self._wanted = True
            cuda._lazy_call(self._begin)  # calls at once, or when CUDA is initialised

    def _begin(self) -> None:
        cuda = _cuda()
        if cuda is None or not self._wanted:
            return
        try:
            cuda.memory._record_memory_history(
                "all", context="alloc", stacks="python", max_entries=MOST_ENTRIES
            )
        except (RuntimeError, TypeError) as exc:
            self.notes.append(f"torch's CUDA memory is not in it: {exc}")
        else:
            self._began = True

    def so_far(self) -> Recording | None:
        """What torch wrote down up to now, or up to `stop`; None where CUDA was not used."""
        if self._began:
            self._found = self._snapshot()
        return self._found

    def stop(self) -> None:
        """Keep what there is, and switch the history off where it was switched on."""
        self._wanted = False
        cuda = _cuda()
        if cuda is not None and self._began:
            self.so_far()
            self._began = False
            cuda.memory._record_memory_history(None)

    def _snapshot(self) -> Recording | None:
        cuda = _cuda()
        try:
            found = from_torch_snapshot(cuda.memory._snapshot())
        except (RuntimeError, BadInput) as exc:
            self.notes.append(f"torch's CUDA memory is not in it: {exc}")
            return None
        if len(found) >= MOST_ENTRIES:
            found.notes.append(f"of CUDA torch kept the last {MOST_ENTRIES:,} events")
        return found


def _cuda() -> Any:
    """torch.cuda, where the program has imported torch and torch has CUDA."""
    torch = sys.modules.get("torch")
    version = getattr(torch, "version", None)
    if torch is None or getattr(version, "cuda", None) is None:
        return None
    cuda = getattr(torch, "cuda", None)
    return cuda if hasattr(cuda, "_lazy_call") else None


def merge(recording: Recording, other: Recording, switches: Sequence[tuple[int, int]] = ()) -> None:
    """Put the events of `other` among those of `recording`, by time.

    `switches` says when which tag began, as (ns since the beginning, number): events of `other`
    that have none get the one of their time.

    Events from before `recording` began are put at its beginning. Blocks that are segments of our
    own pools are left out: what lies in them is in the recording already.
    """
    other = _without(other, _segments(recording))
    shift_ns = round((other.started_s - recording.started_s) * 1e9)
    maps = {
        "stacks": _table(recording.stacks_table, other.stacks_table),
        "places": _table(recording.places_table, other.places_table),
        "tags": _table(recording.tags_table, other.tags_table),
    }
    times = [max(0, time + shift_ns) for time in other.times_ns]
    recording.times_ns.extend(times)
    for name in COLUMNS:
        if name != "times_ns":
            rows, numbers = getattr(other, name), maps.get(name)
            found = rows if numbers is None else [numbers[row] for row in rows]
            if name == "tags" and switches:
                began = [when for when, _ in switches]
                found = [
                    tag or (switches[at - 1][1] if (at := bisect_right(began, time)) else 0)
                    for tag, time in zip(found, times, strict=True)
                ]
            getattr(recording, name).extend(found)
    in_order(recording)
    recording.notes += other.notes


def _segments(recording: Recording) -> set[tuple[str, int]]:
    """(device, address) of what our pools took from torch."""
    return {
        (place.device, event.address)
        for event in recording.events()
        if event.kind == Kind.RESERVE
        and (place := recording.places_table[event.place]).source == "pool"
        and place.device != "cpu"
    }


def _without(recording: Recording, ours: set[tuple[str, int]]) -> Recording:
    if not ours:
        return recording
    left = replace(recording, **{name: array(code) for name, code in COLUMNS.items()})
    blocks = (Kind.ALLOC, Kind.FREE)
    for event in recording.events():
        place = recording.places_table[event.place]
        if event.kind not in blocks or (place.device, event.address) not in ours:
            left.add(event)
    return left


def in_order(recording: Recording) -> None:
    """Sort the events by time; those of one moment stay in their order."""
    # Quick where there are a few sorted runs, as there are.
    order = sorted(range(len(recording)), key=recording.times_ns.__getitem__)
    for name, code in COLUMNS.items():
        column = getattr(recording, name)
        setattr(recording, name, array(code, map(column.__getitem__, order)))


def _table(mine: list[Any], other: list[Any]) -> list[int]:
    """Append what is missing; for each row of `other` its number in `mine`."""
    known = {row: number for number, row in enumerate(mine)}
    for row in other:
        if row not in known:
            known[row] = len(mine)
            mine.append(row)
    return [known[row] for row in other]
