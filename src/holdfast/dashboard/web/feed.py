"""One snapshot loop for all listeners, and the past.

One snapshot at a time is taken and encoded once, however many listen. A listener that does not keep
up is dropped; its queue is bounded.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

from holdfast.base.codec import encode
from holdfast.base.errors import BadInput, HoldfastError
from holdfast.dashboard.snapshot.snapshot import Snapshot
from holdfast.dashboard.web.history import History, Point, point
from holdfast.dashboard.web.refusals import Busy
from holdfast.dashboard.web.workers import Workers

IDLE_S = 2.0  # between snapshots while nobody listens
LISTENERS = 64
BACKLOG = 64  # queued snapshots per listener


@dataclass(frozen=True, slots=True)
class Look:
    """A snapshot, and its JSON."""

    number: int
    snapshot: Snapshot
    text: bytes


class Listener:
    """Gets every snapshot from now on."""

    def __init__(self, drop: Callable[[], None]) -> None:
        self._line: asyncio.Queue[Look | None] = asyncio.Queue(BACKLOG)
        self._drop = drop

    def tell(self, look: Look | None) -> None:
        """Queue a snapshot, or None for the end; drops a listener that is too slow."""
        try:
            self._line.put_nowait(look)
        except asyncio.QueueFull:
            self._drop()

    async def looks(self, quiet_s: float) -> AsyncIterator[Look | None]:
        """Snapshots as they come; None after `quiet_s` without one. Ends with the feed."""
        while True:
            try:
                look = await asyncio.wait_for(self._line.get(), quiet_s)
            except TimeoutError:
                yield None
                continue
            if look is None:
                return
            yield look


class Feed:
    """Takes snapshots repeatedly; belongs to one event loop."""

    def __init__(self, look: Callable[[], Snapshot], interval_s: float) -> None:
        self.interval_s = interval_s
        self._look = look
        self._looker = Workers("looking", threads=1, waiting=LISTENERS)
        self._history = History(interval_s)
        self._listeners: list[Listener] = []
        self._joined = asyncio.Event()
        self._one_at_a_time = asyncio.Lock()
        self._last: Look | None = None
        self._last_at = 0.0
        self.trouble: str | None = None

    async def run(self) -> None:
        """Run until cancelled."""
        while True:
            began = time.monotonic()
            with contextlib.suppress(HoldfastError, OSError):  # kept in `trouble`; retried
                async with self._one_at_a_time:
                    look = await self._new_look()
                for listener in tuple(self._listeners):
                    listener.tell(look)
            self._joined.clear()
            await self._rest(began)

    async def latest(self) -> Look:
        """The last snapshot if younger than the interval, else a new one, which may raise."""
        async with self._one_at_a_time:
            if self._last is not None and time.monotonic() - self._last_at < self.interval_s:
                return self._last
            return await self._new_look()

    def past(self, seconds: float | None = None) -> tuple[Point, ...]:
        """Values over time, oldest first."""
        return self._history.points(0.0 if seconds is None else time.time() - seconds)

    def join(self, drop: Callable[[], None]) -> Listener:
        """Add a listener; `drop` is called if it is too slow. Raises Busy."""
        if len(self._listeners) >= LISTENERS:
            raise Busy(
                f"{LISTENERS} pages are open already",
                expected=f"at most {LISTENERS} at once",
                hint="close some, or ask for /api/v1/snapshot",
            )
        listener = Listener(drop)
        self._listeners.append(listener)
        self._joined.set()
        return listener

    def leave(self, listener: Listener) -> None:
        """Remove a listener."""
        self._listeners.remove(listener)

    def end(self) -> None:
        """Tell all listeners that the feed ends."""
        for listener in self._listeners:
            listener.tell(None)

    def close(self) -> None:
        """Stop the thread."""
        self._looker.close()

    async def _new_look(self) -> Look:
        number = 1 if self._last is None else self._last.number + 1
        try:
            look = await self._looker.do(lambda: _take(self._look, number))
        except (HoldfastError, OSError) as exc:
            self.trouble = str(exc)
            raise
        self._last, self._last_at, self.trouble = look, time.monotonic(), None
        self._history.add(point(look.snapshot))
        return look

    async def _rest(self, began: float) -> None:
        """Wait for the next snapshot: longer without listeners, at once when one joins."""
        passed = time.monotonic() - began
        if self._listeners:
            await asyncio.sleep(max(self.interval_s - passed, 0.0))
            return
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(
                self._joined.wait(), max(self.interval_s - passed, IDLE_S - passed, 0.0)
            )


def _take(look: Callable[[], Snapshot], number: int) -> Look:
    snapshot = look()
    try:
        text = json.dumps(encode(snapshot), separators=(",", ":"), allow_nan=False)
    except ValueError as exc:
        raise BadInput("a figure of the snapshot is infinite or no number") from exc
    return Look(number, snapshot, text.encode())
