"""The flag that stops long work: checked before every layer and between the parts of a load.

A check costs one attribute read while the flag is not set. One request stops one piece of work,
however many threads check.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType


class InterruptProcessingException(Exception):
    """A stop was requested. Not a failure, so not a HoldfastError."""


class _Request:
    """The stop flag. `wanted` is read without the lock and changed under it."""

    __slots__ = ("lock", "wanted")

    def __init__(self) -> None:
        self.wanted = False
        self.lock = threading.RLock()  # a signal handler may run while its own thread holds it


_request = _Request()


def interrupt_current_processing(value: bool = True) -> None:
    """Ask running work to stop at its next check; False withdraws the request."""
    with _request.lock:
        _request.wanted = bool(value)


def processing_interrupted() -> bool:
    """Whether a stop request is pending. Does not clear it."""
    return _request.wanted


def throw_exception_if_processing_interrupted() -> None:
    """Raise InterruptProcessingException if a stop request is pending, and clear it."""
    if not _request.wanted:
        return
    with _request.lock:
        taken, _request.wanted = _request.wanted, False
    if taken:
        raise InterruptProcessingException("processing was interrupted")


@contextlib.contextmanager
def interrupting(on_signal: Callable[[], object] = interrupt_current_processing) -> Iterator[None]:
    """In the block, the first Ctrl-C calls `on_signal` (sets the flag); a second one interrupts.

    For a main thread that waits for other threads; in any other thread this does nothing. The
    previous handler is restored afterwards, and a request from Ctrl-C that was not seen is cleared.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGINT)
    requested = False

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal requested
        requested = True
        signal.signal(signal.SIGINT, before if callable(before) else signal.default_int_handler)
        on_signal()

    signal.signal(signal.SIGINT, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.SIG_DFL if before is None else before)
        if requested and on_signal is interrupt_current_processing:
            interrupt_current_processing(False)
