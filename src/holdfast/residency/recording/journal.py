"""Notes copies, decodes, stalls, kept and evicted weights while a model runs.

While nobody records, a note costs an attribute read. Recording changes no result, and the host
waits for the device only in `entries`.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.residency.carriers.carrier import Carrier, Mark

KINDS = ("copy", "decode", "stall", "keep", "evict", "demand", "pass", "stay")
THERE_BEFORE = "it was there before"
NOT_ARRIVED = "its weights had not arrived"
# Shorter waits come from recording the two events themselves.
STALL_MS = 0.02


@dataclass(frozen=True, slots=True)
class Entry:
    """One event or span, in milliseconds since recording began.

    copy, decode: work in these lanes. stall: the compute stream waited. keep, evict, demand:
    points in time. pass: one run of a module. stay: streamed weights, from arrival to last use.
    """

    kind: str
    name: str
    nbytes: int
    start_ms: float
    end_ms: float
    reason: str = ""
    module: str = ""


class Journal:
    """The notes of one device, recorded between `start` and `stop`."""

    def __init__(self, carrier: Carrier) -> None:
        self._carrier = carrier
        self._notes: list[tuple[str, str, int, Mark, Mark, str, str]] = []
        self._began: Mark = None
        self._arrivals: dict[int, Mark] = {}  # timed ends of copies and decodes, by id
        self._latest: dict[tuple[str, str], Mark] = {}  # the latest of them by module and name
        self._owners: weakref.WeakKeyDictionary[object, str] = weakref.WeakKeyDictionary()
        self.recording = False
        self.label = ""
        self.module = ""
        self.counts: dict[str, int] = dict.fromkeys(KINDS, 0)

    def start(self) -> None:
        """Start a new recording and drop the notes of the last one."""
        self._notes, self._arrivals, self._latest = [], {}, {}
        self._began = self._carrier.mark(timed=True)
        self._carrier.log = self
        self.recording = True

    def stop(self) -> None:
        """Stop recording; the notes stay."""
        self.recording = False
        self._carrier.log = None

    @contextlib.contextmanager
    def labelled(self, name: str) -> Iterator[None]:
        """What is noted inside belongs to `name`."""
        before, self.label = self.label, name
        try:
            yield
        finally:
            self.label = before

    @contextlib.contextmanager
    def inside(self, owner: object, name: str) -> Iterator[None]:
        """Attribute notes made inside to the module of `owner`."""
        before, self.module = self.module, self.name_of(owner, name)
        try:
            yield
        finally:
            self.module = before

    def name_of(self, owner: object, name: str) -> str:
        """The display name of `owner`: `name`, with a number if another owner has it."""
        if owner not in self._owners:
            taken = set(self._owners.values())
            names = (name if i == 1 else f"{name} {i}" for i in range(1, len(taken) + 2))
            self._owners[owner] = next(n for n in names if n not in taken)
        return self._owners[owner]

    def note_lane(self, kind: str, nbytes: int, start: Mark, end: Mark) -> None:
        """Note a copy or decode; called by the carrier."""
        self._arrivals[id(end)] = end
        self._latest[self.module, self.label] = end
        self._notes.append((kind, self.label, nbytes, start, end, "", self.module))

    def wait(self, name: str, mark: Mark, reason: str = NOT_ARRIVED) -> None:
        """Make the compute stream wait for a mark, and note the wait as a stall."""
        if not self.recording:
            self._carrier.wait(mark)
            return
        before = self._carrier.mark(timed=True)
        self._carrier.wait(mark)
        after = self._carrier.mark(timed=True)
        self._notes.append(("stall", name, 0, before, after, reason, self.module))

    def note(self, kind: str, name: str, nbytes: int, reason: str = "") -> None:
        """Note an event at the current point of the compute stream."""
        self.counts[kind] += 1
        if self.recording:
            now = self._carrier.mark(timed=True)
            self._notes.append((kind, name, nbytes, now, now, reason, self.module))

    def moment(self) -> Mark:
        """A mark of now, to begin a `note_span`; None while nobody records."""
        return self._carrier.mark(timed=True) if self.recording else None

    def note_span(self, kind: str, name: str, start: Mark, reason: str = "") -> None:
        """Note a span from a `moment` until now."""
        if self.recording and start is not None:
            end = self._carrier.mark(timed=True)
            self._notes.append((kind, name, 0, start, end, reason, self.module))

    def note_stay(self, name: str, nbytes: int, arrived: Mark = None) -> None:
        """Note that streamed weights, there since `arrived`, are not needed any more."""
        if not self.recording:
            return
        if arrived is None:
            arrived = self._latest.get((self.module, name))
        start = self._arrivals.get(id(arrived), self._began)
        end = self._carrier.mark(timed=True)
        self._notes.append(("stay", name, nbytes, start, end, "", self.module))

    def entries(self) -> list[Entry]:
        """All notes with times, by start. Synchronizes the device."""
        if not self._notes:
            return []
        self._carrier.synchronize()
        found = []
        for kind, name, nbytes, start, end, reason, module in self._notes:
            start_ms = self._carrier.between_ms(self._began, start)
            # Weights that were never used may leave before they arrive.
            end_ms = max(start_ms, self._carrier.between_ms(self._began, end))
            if kind != "stall" or end_ms - start_ms > STALL_MS:
                found.append(Entry(kind, name, nbytes, start_ms, end_ms, reason, module))
        return sorted(found, key=lambda entry: entry.start_ms)
