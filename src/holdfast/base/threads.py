"""Threads that are certainly over when a block is left, also after Ctrl-C.

`Thread.join` does not promise that: before Python 3.13, one that Ctrl-C interrupts marks the
thread as ended while it still runs, and the next `join` returns at once. What the thread works
on (memory, a folder) would then go away under it.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Any


class Team(contextlib.AbstractContextManager["Team"]):
    """Start threads in the block; leaving it waits for every one of them, come what may.

    Whoever leaves early has to make the work end soon: close a gate, end a process.
    """

    def __init__(self) -> None:
        self._members: list[_Member] = []

    def start(self, work: Callable[..., object], *arguments: Any) -> None:
        """Run `work` in a thread of its own; it has to keep its exceptions to itself."""
        member = _Member(work, arguments)
        self._members.append(member)
        member.start()

    def wait(self) -> None:
        """Until all are over; Ctrl-C gets through."""
        for member in self._members:
            member.over.wait()

    def __exit__(self, *_: object) -> None:
        interrupt: KeyboardInterrupt | None = None
        while not all(member.over.is_set() for member in self._members):
            try:
                self.wait()
            except KeyboardInterrupt as exc:  # a second one: kept until it is safe to go
                interrupt = exc
        if interrupt is not None:
            raise interrupt


class _Member:
    """A thread and whether it is over. One that never began counts as over."""

    def __init__(self, work: Callable[..., object], arguments: tuple[Any, ...]) -> None:
        self.over = threading.Event()
        self._work, self._arguments = work, arguments
        self._lock = threading.Lock()
        self._begun = False

    def start(self) -> None:
        try:
            threading.Thread(target=self._run).start()
        except BaseException:  # no thread to be had, or Ctrl-C in the middle of starting
            with self._lock:
                if not self._begun:
                    self.over.set()
            raise

    def _run(self) -> None:
        with self._lock:
            if self.over.is_set():
                return
            self._begun = True
        try:
            self._work(*self._arguments)
        finally:
            self.over.set()
