"""Ctrl-C at a moment that suits.

Covers: holding it back while something is made that has to be remembered to be cleared away.
Leaves to others: what Ctrl-C does (whoever has set the handler).
Promise: a Ctrl-C that is held back is not lost.
"""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType


@contextlib.contextmanager
def ctrl_c_later() -> Iterator[None]:
    """Hold Ctrl-C back for the block; a process that starts in it begins with it blocked.

    It comes when the block is left. Only the main thread can do so; in others it does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    with _noted(), _blocked():
        yield


@contextlib.contextmanager
def _noted() -> Iterator[None]:
    """Where it is blocked in one thread the system gives it to another, and Python to this one."""
    handler = signal.getsignal(signal.SIGINT)
    if not callable(handler):  # ignored, or not Python's to handle
        yield
        return
    noted: list[FrameType | None] = []
    signal.signal(signal.SIGINT, lambda _, frame: noted.append(frame))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if noted:
            handler(signal.SIGINT, noted[0])


@contextlib.contextmanager
def _blocked() -> Iterator[None]:
    if sys.platform == "win32":
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def unblock() -> None:
    """Undo in a process what it has inherited from such a block."""
    if sys.platform != "win32":
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
