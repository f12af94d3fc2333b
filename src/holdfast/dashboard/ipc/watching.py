"""Repeated snapshots of this machine and several of its processes.

Thread-safe. A look never takes longer than its limit: a process that does not answer in time is
left out, and not asked again for some seconds.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from holdfast.base.errors import HoldfastError, NotFound, OutOfTime
from holdfast.dashboard.ipc import socket_dir
from holdfast.dashboard.ipc.client import Attached
from holdfast.dashboard.snapshot.machine import MachineLooker
from holdfast.dashboard.snapshot.snapshot import VERSION, Process, Snapshot

LOOK_S = 1.0  # for the answers of all processes together
SEARCH_S = 1.0  # between two searches for processes
RETRY_S = 5.0  # before asking a silent process again


@dataclass(slots=True)
class _Watched:
    """A process: one connection for snapshots, another for slow requests."""

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


class Watches(Protocol):
    """What the dashboards use of a `Watcher`."""

    def look(self) -> Snapshot: ...

    def attached(self, pid: int) -> contextlib.AbstractContextManager[Attached]: ...


class Watcher(contextlib.AbstractContextManager["Watcher"]):
    """This machine, and the processes with these pids; None is all that are offered.

        with Watcher() as watcher:
            snapshot = watcher.look()

    Thread-safe.
    """

    def __init__(self, pids: Sequence[int] | None = None) -> None:
        self._pids = None if pids is None else tuple(sorted(set(pids)))
        self._machine = MachineLooker()
        self._watched: dict[int, _Watched] = {}
        self._searched_s: float | None = None
        self._lock = threading.Lock()
        self._closed = False

    def look(self) -> Snapshot:
        """Take a snapshot."""
        with self._lock:
            machine = self._machine.look()
            processes = [] if self._closed else self._ask_all()
            return Snapshot(VERSION, time.time(), machine, tuple(processes))

    @contextlib.contextmanager
    def attached(self, pid: int) -> Iterator[Attached]:
        """A connection for slow requests, for this thread alone. Snapshots continue meanwhile.

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
        """Close all connections. Later snapshots show the machine alone."""
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
        """Update the list of processes, at most once a second."""
        now_s = time.monotonic()
        if self._searched_s is not None and now_s - self._searched_s < SEARCH_S:
            return
        self._searched_s = now_s
        files = dict(socket_dir.socket_files())
        for pid, file in files.items():
            if pid not in self._watched and self._wanted(pid) and socket_dir.is_alive(pid, file):
                self._watched[pid] = _Watched(pid)
        for pid in [pid for pid in self._watched if pid not in files]:
            self._watched.pop(pid).close()

    # ---- asking

    def _ask_all(self) -> list[Process]:
        self._search()
        now_s = time.monotonic()
        asked = [one for one in self._watched.values() if one.not_before_s <= now_s]
        asked = [one for one in sorted(asked, key=lambda one: one.pid) if self._ask(one)]
        end_s = time.monotonic() + LOOK_S
        found = [self._receive(one, end_s) for one in asked]
        return [process for process in found if process is not None]

    def _ask(self, one: _Watched) -> bool:
        with self._drop_on_error(one):
            if one.looks is None:
                one.looks = Attached(one.pid, LOOK_S)
            one.looks.ask_for_process()
            return True
        return False

    def _receive(self, one: _Watched, end_s: float) -> Process | None:
        with self._drop_on_error(one):
            if one.looks is not None:
                return one.looks.receive_process(max(0.01, end_s - time.monotonic()))
        return None

    @contextlib.contextmanager
    def _drop_on_error(self, one: _Watched) -> Iterator[None]:
        """Drop a process that fails; the next search finds it again if it still runs."""
        try:
            yield
        except HoldfastError as exc:
            if one.looks is not None:
                one.looks.close()
                one.looks = None
            if isinstance(exc, OutOfTime):
                one.not_before_s = time.monotonic() + RETRY_S
            elif isinstance(exc, NotFound):
                self._watched.pop(one.pid, None)
                one.close()
                self._searched_s = None
