"""Looking at this machine and several of its processes, again and again.

Covers: finding processes as they come and go, asking all of them at once, one snapshot of it.
Leaves to others: one process (attaching), the machine (machine).
Promise: safe for threads. A look takes no longer than its limit, whatever a process does: one that
does not answer in time is left out, and left in peace for some seconds.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from holdfast.base.errors import HoldfastError, NotFound, OutOfTime
from holdfast.dashboard import meeting
from holdfast.dashboard.attaching import Attached
from holdfast.dashboard.machine import MachineLooker
from holdfast.dashboard.snapshot import VERSION, Process, Snapshot

LOOK_S = 1.0  # for all processes together to answer
SEARCH_S = 1.0  # between two searches for processes
PEACE_S = 5.0  # for one that did not answer


@dataclass(slots=True)
class _Watched:
    """A process: one connection for looks, another one for what takes longer."""

    pid: int
    looks: Attached | None = None
    acts: Attached | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)  # for acts
    not_before_s: float = 0.0

    def close(self) -> None:
        for one in (self.looks, self.acts):
            if one is not None:
                one.close()
        self.looks = self.acts = None


class Watcher(contextlib.AbstractContextManager["Watcher"]):
    """This machine, and the processes of these numbers; None: all that can be looked at.

        with Watcher() as watcher:
            snapshot = watcher.look()

    Safe for threads.
    """

    def __init__(self, pids: Sequence[int] | None = None) -> None:
        self._pids = None if pids is None else tuple(sorted(set(pids)))
        self._machine = MachineLooker()
        self._watched: dict[int, _Watched] = {}
        self._searched_s: float | None = None
        self._lock = threading.Lock()
        self._closed = False

    def look(self) -> Snapshot:
        """The machine and the processes now."""
        with self._lock:
            machine = self._machine.look()
            processes = [] if self._closed else self._ask_all()
            return Snapshot(VERSION, time.time(), machine, tuple(processes))

    @contextlib.contextmanager
    def attached(self, pid: int) -> Iterator[Attached]:
        """A connection for what takes longer, for this thread alone. Looks go on beside it.

        Raises NotFound for a process that is not watched or has ended.
        """
        with self._lock:
            watched = self._watched.get(pid)
            if watched is None and not self._closed and self._wanted(pid):
                watched = self._watched[pid] = _Watched(pid)
        if watched is None:
            raise NotFound(
                f"process {pid} is not watched", expected="one of the processes that are shown"
            )
        with watched.lock:
            if watched.acts is None:
                watched.acts = Attached(pid)
            yield watched.acts

    def close(self) -> None:
        """End all connections. Looks show the machine alone from then on."""
        with self._lock:
            self._closed = True
            for one in self._watched.values():
                one.close()
            self._watched.clear()

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- which processes

    def _wanted(self, pid: int) -> bool:
        return self._pids is None or pid in self._pids

    def _search(self) -> None:
        """Have an entry for each process that is there; once a second."""
        now_s = time.monotonic()
        if self._searched_s is not None and now_s - self._searched_s < SEARCH_S:
            return
        self._searched_s = now_s
        files = dict(meeting.meetings())
        for pid, file in files.items():
            if pid not in self._watched and self._wanted(pid) and meeting.is_alive(pid, file):
                self._watched[pid] = _Watched(pid)
        for pid in [pid for pid in self._watched if pid not in files]:
            self._watched.pop(pid).close()

    # ---- asking

    def _ask_all(self) -> list[Process]:
        """All are asked before the first answer is waited for."""
        self._search()
        now_s = time.monotonic()
        asked = [one for one in self._watched.values() if one.not_before_s <= now_s]
        asked = [one for one in sorted(asked, key=lambda one: one.pid) if self._ask(one)]
        end_s = time.monotonic() + LOOK_S
        found = [self._told(one, end_s) for one in asked]
        return [process for process in found if process is not None]

    def _ask(self, one: _Watched) -> bool:
        with self._failing(one):
            if one.looks is None:
                one.looks = Attached(one.pid, LOOK_S)
            one.looks.ask_for_process()
            return True
        return False

    def _told(self, one: _Watched, end_s: float) -> Process | None:
        with self._failing(one):
            if one.looks is not None:
                return one.looks.told_process(max(0.01, end_s - time.monotonic()))
        return None

    @contextlib.contextmanager
    def _failing(self, one: _Watched) -> Iterator[None]:
        """A process that fails is let go; it is found again if it is still there."""
        try:
            yield
        except HoldfastError as exc:
            if one.looks is not None:
                one.looks.close()
                one.looks = None
            if isinstance(exc, OutOfTime):
                one.not_before_s = time.monotonic() + PEACE_S
            elif isinstance(exc, NotFound):
                self._watched.pop(one.pid, None)
                one.close()
                self._searched_s = None
