"""What happened to weights when: copies, decodes, stalls, what came to stay and what had to go.

Covers: noting cheaply while things run, times afterwards.
Leaves to others: showing it (chart), keeping it (recorded).
Promise: while nobody records, noting costs an attribute read; recording changes no result and
makes the host wait only in `entries`.
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
# Waits that are shorter are the marks themselves.
STALL_MS = 0.02


@dataclass(frozen=True, slots=True)
class Entry:
    """One thing that happened, in milliseconds since recording began.

    copy, decode: in these lanes. stall: computing stood still. keep, evict, demand: moments.
    pass: one run of a module. stay: streamed weights, from their arrival to the end of their use.
    """

    kind: str
    name: str
    nbytes: int
    start_ms: float
    end_ms: float
    reason: str = ""
    module: str = ""


class Journal:
    """Notes of one device. Recording begins with `start` and goes on until `stop`."""

    def __init__(self, carrier: Carrier) -> None:
        self._carrier = carrier
        self._notes: list[tuple[str, str, int, Mark, Mark, str, str]] = []
        self._began: Mark = None
        self._arrivals: dict[int, Mark] = {}  # ends of copies and decodes that have a time, by id
        self._latest: dict[tuple[str, str], Mark] = {}  # the same by module and name
        self._owners: weakref.WeakKeyDictionary[object, str] = weakref.WeakKeyDictionary()
        self.recording = False
        self.label = ""
        self.module = ""
        self.counts: dict[str, int] = dict.fromkeys(KINDS, 0)

    def start(self) -> None:
        """Begin anew."""
        self._notes, self._arrivals, self._latest = [], {}, {}
        self._began = self._carrier.mark(timed=True)
        self._carrier.log = self
        self.recording = True

    def stop(self) -> None:
        """Note nothing more."""
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
        """What is noted inside belongs to the module of `owner`."""
        before, self.module = self.module, self.name_of(owner, name)
        try:
            yield
        finally:
            self.module = before

    def name_of(self, owner: object, name: str) -> str:
        """What the module of `owner` is called here: `name`, with a number if others have it."""
        if owner not in self._owners:
            taken = set(self._owners.values())
            names = (name if i == 1 else f"{name} {i}" for i in range(1, len(taken) + 2))
            self._owners[owner] = next(n for n in names if n not in taken)
        return self._owners[owner]

    def lane(self, kind: str, nbytes: int, start: Mark, end: Mark) -> None:
        """A copy or decode, from the carrier."""
        self._arrivals[id(end)] = end
        self._latest[self.module, self.label] = end
        self._notes.append((kind, self.label, nbytes, start, end, "", self.module))

    def waits(self, name: str, mark: Mark, reason: str = NOT_ARRIVED) -> None:
        """Have computing wait for a mark; how long it stood still is a stall."""
        if not self.recording:
            self._carrier.wait(mark)
            return
        before = self._carrier.mark(timed=True)
        self._carrier.wait(mark)
        after = self._carrier.mark(timed=True)
        self._notes.append(("stall", name, 0, before, after, reason, self.module))

    def note(self, kind: str, name: str, nbytes: int, reason: str = "") -> None:
        """Something that happened at this moment of the computing."""
        self.counts[kind] += 1
        if self.recording:
            now = self._carrier.mark(timed=True)
            self._notes.append((kind, name, nbytes, now, now, reason, self.module))

    def moment(self) -> Mark:
        """This moment, for `span`; None while nobody records."""
        return self._carrier.mark(timed=True) if self.recording else None

    def span(self, kind: str, name: str, start: Mark, reason: str = "") -> None:
        """Something that began at a `moment` and ends now."""
        if self.recording and start is not None:
            end = self._carrier.mark(timed=True)
            self._notes.append((kind, name, 0, start, end, reason, self.module))

    def stay(self, name: str, nbytes: int, arrived: Mark = None) -> None:
        """Weights that came over the link are of no use from now on.

        `arrived` is the mark of their arrival (default: of the latest that came under that name);
        one from before the recording has no time, and they are taken as there from its start.
        """
        if not self.recording:
            return
        if arrived is None:
            arrived = self._latest.get((self.module, name))
        start = self._arrivals.get(id(arrived), self._began)
        end = self._carrier.mark(timed=True)
        self._notes.append(("stay", name, nbytes, start, end, "", self.module))

    def entries(self) -> list[Entry]:
        """All of it with times, in order. Waits until the device is done."""
        if not self._notes:
            return []
        self._carrier.synchronize()
        found = [self._entry(*note) for note in self._notes]
        return sorted(
            (e for e in found if e.kind != "stall" or e.end_ms - e.start_ms > STALL_MS),
            key=lambda entry: entry.start_ms,
        )

    def _entry(
        self, kind: str, name: str, nbytes: int, start: Mark, end: Mark, reason: str, module: str
    ) -> Entry:
        start_ms = self._carrier.between_ms(self._began, start)
        # What was never used may be over before it arrived.
        end_ms = max(start_ms, self._carrier.between_ms(self._began, end))
        return Entry(kind, name, nbytes, start_ms, end_ms, reason, module)
