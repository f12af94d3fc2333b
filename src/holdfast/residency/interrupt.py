"""Breaking off long work: one flag that loads and steps look at.

Covers: setting, reading and taking the flag; Ctrl-C that sets it.
Leaves to others: where to look (before every layer, between the parts of a load) and how to leave
things whole.
Promise: looking costs one attribute read while nobody asked to stop; one request stops one piece
of work, however many threads look.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType


class InterruptProcessingException(Exception):
    """Somebody asked for the work under way to stop. No failure, so no HoldfastError."""


class _Request:
    """Whether to stop. `wanted` is read without the lock, and changed under it."""

    __slots__ = ("lock", "wanted")

    def __init__(self) -> None:
        self.wanted = False
        self.lock = threading.RLock()  # a signal may set the flag while its own thread takes it


_request = _Request()


def interrupt_current_processing(value: bool = True) -> None:
    """Ask the work under way to stop at its next look; False takes the request back."""
    with _request.lock:
        _request.wanted = bool(value)


def processing_interrupted() -> bool:
    """Whether a request to stop is waiting to be seen. Does not clear it."""
    return _request.wanted


def throw_exception_if_processing_interrupted() -> None:
    """Raise InterruptProcessingException if a request is waiting, and clear it.

    Of several threads that look at once, one gets the exception.
    """
    if not _request.wanted:
        return
    with _request.lock:
        taken, _request.wanted = _request.wanted, False
    if taken:
        raise InterruptProcessingException("processing was interrupted")


@contextlib.contextmanager
def interrupting(
    on_signal: Callable[[], object] = interrupt_current_processing,
) -> Iterator[None]:
    """In the block, the first Ctrl-C calls `on_signal` (sets the flag); a second one is Ctrl-C.

    For a main thread that waits for work in other threads. Handlers belong to the main thread: in
    any other this does nothing. The handler that was there is back afterwards, and so is the flag:
    a request made by Ctrl-C that nobody saw does not stop later work.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGINT)
    asked = False

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        asked = True
        signal.signal(signal.SIGINT, before if callable(before) else signal.default_int_handler)
        on_signal()

    signal.signal(signal.SIGINT, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.SIG_DFL if before is None else before)
        if asked and on_signal is interrupt_current_processing:
            interrupt_current_processing(False)
