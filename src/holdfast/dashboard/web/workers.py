"""A bounded pool of daemon threads for blocking work of the event loop.

Unlike those of `concurrent.futures`, the threads do not keep the program alive while a hung process
is being asked.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from holdfast.dashboard.web.refusals import Busy

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Task:
    work: Callable[[], Any]
    loop: asyncio.AbstractEventLoop
    answer: asyncio.Future[Any]


class Workers:
    """A few threads and a bounded queue."""

    def __init__(self, name: str, threads: int, waiting: int) -> None:
        self._line: queue.Queue[_Task | None] = queue.Queue(waiting)
        self._threads = [
            threading.Thread(target=self._work, name=f"holdfast-{name}-{number}", daemon=True)
            for number in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    async def do(self, work: Callable[[], T], limit_s: float = 30.0) -> T:
        """Run `work` in a thread. Raises Busy if the queue is full or time runs out."""
        loop = asyncio.get_running_loop()
        task = _Task(work, loop, loop.create_future())
        try:
            self._line.put_nowait(task)
        except queue.Full:
            raise Busy(
                "too many requests wait for other processes",
                expected=f"at most {self._line.maxsize} that wait",
                hint="ask again in a second",
            ) from None
        # Not wait_for, which before Python 3.12 may lose a cancellation.
        try:
            await asyncio.wait([task.answer], timeout=limit_s)
        finally:
            task.answer.cancel()  # if it has not come, nobody waits for it any more
        if task.answer.cancelled():
            raise Busy(
                f"no answer within {limit_s:g} s", hint="ask again; what was asked may go on"
            )
        return task.answer.result()

    def close(self, wait_s: float = 1.0) -> None:
        """Stop idle threads; busy ones end with the program."""
        with contextlib.suppress(queue.Full):
            for _ in self._threads:
                self._line.put_nowait(None)
        for thread in self._threads:
            thread.join(wait_s / len(self._threads))

    def _work(self) -> None:
        while (task := self._line.get()) is not None:
            if not task.answer.cancelled():
                _do(task)
            del task  # else it would keep the answer alive


def _do(task: _Task) -> None:
    try:
        value = task.work()
    except BaseException as exc:  # noqa: BLE001  raised where it was asked for
        _tell(task, task.answer.set_exception, exc)
    else:
        _tell(task, task.answer.set_result, value)


def _tell(task: _Task, tell: Callable[[Any], None], what: Any) -> None:
    def unless_given_up() -> None:
        if not task.answer.done():
            tell(what)

    with contextlib.suppress(RuntimeError):  # the loop is closed
        task.loop.call_soon_threadsafe(unless_given_up)
