"""Threads that take snapshots and send requests, so that no stuck process freezes the screen.

At most one snapshot waits to be shown. The threads are daemons; `stop` waits a second at most.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from holdfast.base.errors import HoldfastError
from holdfast.dashboard.snapshot.snapshot import Snapshot

EXPECTED = (HoldfastError, OSError)  # errors of snapshots and requests
GOODBYE_S = 1.0
Answer = Any  # the result, or the error
Then = Callable[[Answer], None]


class Looker:
    """Takes a snapshot every `interval_s` seconds; calls `tell` with it or the error."""

    def __init__(
        self,
        look: Callable[[], Snapshot],
        interval_s: float,
        tell: Callable[[Snapshot | Exception], None],
    ) -> None:
        self.interval_s = interval_s
        self._look, self._tell = look, tell
        self._stopped = threading.Event()
        self._shown = threading.Event()
        self._thread = threading.Thread(target=self._run, name="holdfast top", daemon=True)

    def start(self) -> None:
        """Start; the first snapshot is taken now."""
        self._thread.start()

    def allow_next(self) -> None:
        """The last snapshot is on the screen; the next may be taken."""
        self._shown.set()

    def stop(self) -> None:
        """Stop taking snapshots."""
        self._stopped.set()
        self._shown.set()
        if self._thread.is_alive():
            self._thread.join(GOODBYE_S)

    def _run(self) -> None:
        while not self._stopped.is_set():
            began = time.monotonic()
            self._shown.clear()
            try:
                found: Snapshot | Exception = self._look()
            except EXPECTED as exc:
                found = exc
            if self._stopped.is_set():
                return
            self._tell(found)
            self._shown.wait()
            self._stopped.wait(max(self.interval_s - (time.monotonic() - began), 0.01))


class Actor:
    """Runs each request in a thread; calls `tell` with the callback and the answer."""

    def __init__(self, tell: Callable[[Then, Answer], object]) -> None:
        self._tell = tell
        self._threads: list[threading.Thread] = []

    def ask(self, call: Callable[[], Any], then: Then) -> None:
        """Run `call`; `then` gets its result or its error."""
        self._threads = [thread for thread in self._threads if thread.is_alive()]
        thread = threading.Thread(
            target=self._run, args=(call, then), name="holdfast top acts", daemon=True
        )
        self._threads.append(thread)
        thread.start()

    def stop(self) -> None:
        """Wait for running requests, a second at most."""
        end_s = time.monotonic() + GOODBYE_S
        for thread in self._threads:
            thread.join(max(end_s - time.monotonic(), 0.0))

    def _run(self, call: Callable[[], Any], then: Then) -> None:
        try:
            answer = call()
        except EXPECTED as exc:
            answer = exc
        self._tell(then, answer)
