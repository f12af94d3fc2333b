"""torch's CUDA memory history, put on the time axis of a recording.

CUDA is never initialised from here: the history begins when the program itself initialises CUDA.

torch's events have wall-clock times; a recording counts monotonic time from its start. Both clocks
are read together when a recording begins. If the wall clock is set meanwhile, later CUDA events are
off by as much.
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from holdfast.base.errors import BadInput
from holdfast.memory.profile.recording import COLUMNS, Kind, Recording
from holdfast.memory.profile.torch_snapshot import from_torch_snapshot

MOST_ENTRIES = 2_000_000  # torch keeps that many of the last events


class CudaTrace:
    """torch's history of CUDA memory from `start` to `stop`."""

    def __init__(self) -> None:
        self._wanted = False
        self._began = False
        self._found: Recording | None = None
        self.notes: list[str] = []

    def start(self) -> None:
        """Begin now if CUDA is initialised, else when it is. A no-op without torch and CUDA."""
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
            self.notes.append(f"torch's CUDA memory is not recorded: {exc}")
        else:
            self._began = True

    def so_far(self) -> Recording | None:
        """What torch recorded until now, or until `stop`; None if CUDA was not used."""
        if self._began:
            self._found = self._snapshot()
        return self._found

    def stop(self) -> None:
        """Keep what there is, and switch the history off if it was switched on here."""
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
            self.notes.append(f"torch's CUDA memory is not recorded: {exc}")
            return None
        if len(found) >= MOST_ENTRIES:
            found.notes.append(f"of CUDA torch kept the last {MOST_ENTRIES:,} events")
        return found


def _cuda() -> Any:
    """torch.cuda, if the program has imported torch and torch has CUDA."""
    torch = sys.modules.get("torch")
    version = getattr(torch, "version", None)
    if torch is None or getattr(version, "cuda", None) is None:
        return None
    cuda = getattr(torch, "cuda", None)
    return cuda if hasattr(cuda, "_lazy_call") else None


def merge(recording: Recording, other: Recording, switches: Sequence[tuple[int, int]] = ()) -> None:
    """Merge the events of `other` into `recording`, by time.

    `switches` has (ns since the start, tag number) for each change of the tag: events of `other`
    without a tag get the tag of their time.

    Events from before `recording` began move to its start. Blocks that are segments of our own
    pools are left out: their content is in the recording already.
    """
    other = _drop_blocks(other, _pool_segments(recording))
    shift_ns = round((other.started_s - recording.started_s) * 1e9)
    maps = {
        "stacks": _merge_table(recording.stacks_table, other.stacks_table),
        "places": _merge_table(recording.places_table, other.places_table),
        "tags": _merge_table(recording.tags_table, other.tags_table),
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
    sort_events(recording)
    recording.notes += other.notes


def _pool_segments(recording: Recording) -> set[tuple[str, int]]:
    """(device, address) of the segments that our pools took from torch."""
    return {
        (place.device, event.address)
        for event in recording.events()
        if event.kind == Kind.RESERVE
        and (place := recording.places_table[event.place]).source == "pool"
        and place.device != "cpu"
    }


def _drop_blocks(recording: Recording, ours: set[tuple[str, int]]) -> Recording:
    if not ours:
        return recording
    left = replace(recording, **{name: array(code) for name, code in COLUMNS.items()})
    blocks = (Kind.ALLOC, Kind.FREE)
    for event in recording.events():
        place = recording.places_table[event.place]
        if event.kind not in blocks or (place.device, event.address) not in ours:
            left.add(event)
    return left


def sort_events(recording: Recording) -> None:
    """Sort the events by time; events of one moment keep their order."""
    # Fast, since the events are a few sorted runs.
    order = sorted(range(len(recording)), key=recording.times_ns.__getitem__)
    for name, code in COLUMNS.items():
        column = getattr(recording, name)
        setattr(recording, name, array(code, map(column.__getitem__, order)))


def _merge_table(mine: list[Any], other: list[Any]) -> list[int]:
    """Append what is missing to `mine`; for each row of `other`, its index in `mine`."""
    known = {row: number for number, row in enumerate(mine)}
    for row in other:
        if row not in known:
            known[row] = len(mine)
            mine.append(row)
    return [known[row] for row in other]
