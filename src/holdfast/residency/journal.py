"""What happened to weights when: copies, decodes, stalls, what came to stay and what had to go.

Covers: noting cheaply while things run, times afterwards.
Leaves to others: showing it (chart).
Promise: while nobody records, noting costs an attribute read; recording changes no result and
makes the host wait only in `entries`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.residency.carriers.carrier import Carrier, Mark

KINDS = ("copy", "decode", "stall", "keep", "evict", "demand", "pass")


@dataclass(frozen=True, slots=True)
class Entry:
    """One thing that happened, in milliseconds since recording began."""

    kind: str
    name: str
    nbytes: int
    start_ms: float
    end_ms: float
    reason: str = ""


class Journal:
    """Notes of one device. Recording begins with `start` and goes on until `stop`."""

    def __init__(self, carrier: Carrier) -> None:
        self._carrier = carrier
        self._notes: list[tuple[str, str, int, Mark, Mark, str]] = []
        self._began: Mark = None
        self.recording = False
        self.label = ""
        self.counts = dict.fromkeys(KINDS, 0)

    def start(self) -> None:
        """Begin anew."""
        self._notes = []
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
        self.label = name
        yield

    def lane(self, kind: str, nbytes: int, start: Mark, end: Mark) -> None:
        """A copy or decode, from the carrier."""
        self._notes.append((kind, self.label, nbytes, start, end, ""))

    def waits(self, name: str, mark: Mark) -> None:
        """Have computing wait for a mark; how long it stood still is a stall."""
        if not self.recording:
            self._carrier.wait(mark)
            return
        before = self._carrier.mark(timed=True)
        self._carrier.wait(mark)
        after = self._carrier.mark(timed=True)
        self._notes.append(("stall", name, 0, before, after, "its weights had not arrived"))

    def note(self, kind: str, name: str, nbytes: int, reason: str = "") -> None:
        """Something that happened at this moment of the computing."""
        self.counts[kind] += 1
        if self.recording:
            now = self._carrier.mark(timed=True)
            self._notes.append((kind, name, nbytes, now, now, reason))

    def span(self, kind: str, name: str, start: Mark) -> None:
        """Something that began at a timed mark and ends now."""
        if self.recording and start is not None:
            self._notes.append((kind, name, 0, start, self._carrier.mark(timed=True), ""))

    def entries(self) -> list[Entry]:
        """All of it with times, in order. Waits until the device is done."""
        if not self._notes:
            return []
        self._carrier.synchronize()
        since = self._carrier.between_ms
        found = [
            Entry(kind, name, nbytes, since(self._began, start), since(self._began, end), reason)
            for kind, name, nbytes, start, end, reason in self._notes
        ]
        return sorted(
            (e for e in found if e.kind != "stall" or e.end_ms - e.start_ms > 0.02),
            key=lambda entry: entry.start_ms,
        )
