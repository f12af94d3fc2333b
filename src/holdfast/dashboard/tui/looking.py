"""Looking and acting away from the screen, in threads, so that a stuck process freezes nothing.

Covers: a look every so often, and what people ask of a process.
Leaves to others: the connection (watching), what is shown of it (app).
Promise: never more than one look waits to be shown. No thread is a reason for the process to stay;
`stop` waits for them a second at most.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from holdfast.base.errors import HoldfastError
from holdfast.dashboard.snapshot import Snapshot

EXPECTED = (HoldfastError, OSError)  # what looking and acting may fail with
GOODBYE_S = 1.0
Answer = Any  # what was asked for, or the error instead
Then = Callable[[Answer], None]


class Looker:
    """Looks every `interval_s` seconds; `tell` gets the snapshot or the error, in this thread."""

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
        """Begin with a look now."""
        self._thread.start()

    def shown(self) -> None:
        """What was told last is on the screen: the next may come."""
        self._shown.set()

    def stop(self) -> None:
        """No more looks."""
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
    """Does what it is asked, each in a thread; `tell` gets the answer and what to do then."""

    def __init__(self, tell: Callable[[Then, Answer], None]) -> None:
        self._tell = tell
        self._threads: list[threading.Thread] = []

    def ask(self, call: Callable[[], Any], then: Then) -> None:
        """Have `call` done; `then` gets what it returns, or the error it raises."""
        self._threads = [thread for thread in self._threads if thread.is_alive()]
        thread = threading.Thread(
            target=self._run, args=(call, then), name="holdfast top acts", daemon=True
        )
        self._threads.append(thread)
        thread.start()

    def stop(self) -> None:
        """Wait for what is under way, a second at most."""
        end_s = time.monotonic() + GOODBYE_S
        for thread in self._threads:
            thread.join(max(end_s - time.monotonic(), 0.0))

    def _run(self, call: Callable[[], Any], then: Then) -> None:
        try:
            answer = call()
        except EXPECTED as exc:
            answer = exc
        self._tell(then, answer)
