"""Delay Ctrl-C over a critical block; it is not lost."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType


@contextlib.contextmanager
def delay_ctrl_c() -> Iterator[None]:
    """Delay Ctrl-C until the block ends. A process started inside inherits the blocked signal.

    Does nothing outside of the main thread.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    with _defer_handler(), _block_signal():
        yield


@contextlib.contextmanager
def _defer_handler() -> Iterator[None]:
    """Blocking alone is not enough: the system delivers to another thread, Python to this one."""
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
def _block_signal() -> Iterator[None]:
    if sys.platform == "win32":
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def unblock() -> None:
    """Unblock the signal in a process that was started inside such a block."""
    if sys.platform != "win32":
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
