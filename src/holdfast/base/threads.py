"""Threads that have ended when a block is left, also after Ctrl-C; callbacks at fork.

`Thread.join` does not promise that: before Python 3.13, an interrupted `join` marks the thread as
ended while it still runs, and the next `join` returns at once. The memory or folder that the thread
uses could then be freed too early.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from typing import Any


def register_at_fork(**callbacks: Callable[[], object]) -> None:
    """`os.register_at_fork`, which does nothing on systems without fork."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(**callbacks)


def renew_in_child(lock: Any) -> Any:
    """Make `lock` free in the child of a fork, where a thread that held it does not exist."""
    register_at_fork(after_in_child=lock._at_fork_reinit)
    return lock


class Team(contextlib.AbstractContextManager["Team"]):
    """Starts threads in a block; leaving the block waits for all of them.

    To leave early, first make the work end: set a flag, end a process.
    """

    def __init__(self) -> None:
        self._members: list[_Member] = []

    def start(self, work: Callable[..., object], *arguments: Any) -> None:
        """Run `work` in a new thread; it must not raise."""
        member = _Member(work, arguments)
        self._members.append(member)
        member.start()

    def wait(self) -> None:
        """Wait for all threads; Ctrl-C interrupts this."""
        for member in self._members:
            member.over.wait()

    def __exit__(self, *_: object) -> None:
        interrupt: KeyboardInterrupt | None = None
        while not all(member.over.is_set() for member in self._members):
            try:
                self.wait()
            except KeyboardInterrupt as exc:  # raised when all threads have ended
                interrupt = exc
        if interrupt is not None:
            raise interrupt


class _Member:
    """A thread and whether it has ended; one that could not start counts as ended."""

    def __init__(self, work: Callable[..., object], arguments: tuple[Any, ...]) -> None:
        self.over = threading.Event()
        self._work, self._arguments = work, arguments
        self._lock = threading.Lock()
        self._begun = False

    def start(self) -> None:
        try:
            threading.Thread(target=self._run).start()
        except BaseException:  # no thread available, or Ctrl-C during the start
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
