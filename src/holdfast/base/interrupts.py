"""Ctrl-C and other people's code: what it must not break into, and what it comes out as."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def undisturbed(work: Callable[[], T]) -> T:
    """What `work` returns. Ctrl-C comes out of here at once, and does not break into the work.

    For importing large libraries: broken off in the middle, some swallow Ctrl-C and go on half
    imported, some abort the process when they are imported again. Python raises it in the main
    thread alone, so the work gets another; it goes on there to its end, whoever still waits.
    """
    if threading.current_thread() is not threading.main_thread():
        return work()
    done = threading.Event()
    results: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(work())
        except BaseException as exc:  # noqa: BLE001  raised below
            errors.append(exc)
        finally:
            done.set()

    threading.Thread(target=run, name="holdfast-undisturbed").start()
    done.wait()
    if errors:
        raise errors.pop()
    return results.pop()


def is_interrupt(exc: BaseException) -> bool:
    """Whether Ctrl-C is behind an exception: libraries that import lazily wrap what they catch."""
    seen: BaseException | None = exc
    while seen is not None:
        if isinstance(seen, KeyboardInterrupt):
            return True
        seen = seen.__cause__ or seen.__context__
    return False
