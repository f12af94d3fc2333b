"""Ctrl-C in code of other libraries: keeps it out of imports, finds it in wrapped exceptions."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def run_uninterrupted(work: Callable[[], T]) -> T:
    """Return `work()`. Ctrl-C is raised here at once, but does not interrupt the work.

    For importing large libraries: interrupted in the middle, some swallow Ctrl-C and go on half
    imported, some abort the process on the next import. Python raises KeyboardInterrupt only in
    the main thread, so the work runs in another one, to its end.
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

    threading.Thread(target=run, name="holdfast-uninterrupted").start()
    done.wait()
    if errors:
        raise errors.pop()
    return results.pop()


def is_interrupt(exc: BaseException) -> bool:
    """Whether Ctrl-C caused an exception; libraries that import lazily wrap it in their own."""
    return any(isinstance(cause, KeyboardInterrupt) for cause in list_causes(exc))


def list_causes(exc: BaseException) -> list[BaseException]:
    """An exception, its cause, the cause of that, and so on; a circle of causes ends."""
    found: list[BaseException] = []
    cause: BaseException | None = exc
    while cause is not None and not any(cause is known for known in found):
        found.append(cause)
        cause = cause.__cause__ or cause.__context__
    return found
