"""Requests that a process answers, and errors as answers.

Every request gets an answer, and none ends the process. Snapshots are quick and never wait; slow
requests run one at a time.
"""

from __future__ import annotations

import inspect
import os
import threading
from collections.abc import Callable
from typing import Any

import holdfast
from holdfast.base.codec import encode
from holdfast.base.errors import BadInput, HoldfastError, Unsupported
from holdfast.base.threads import register_at_fork
from holdfast.dashboard.ipc import actions
from holdfast.dashboard.ipc.wire import PROTOCOL, error_message
from holdfast.dashboard.snapshot import process


class _Turn:
    """Slow requests run one at a time."""

    lock = threading.Lock()


def _renew_lock() -> None:
    """In the child of a fork: a thread that held the lock does not exist here."""
    _Turn.lock = threading.Lock()


register_at_fork(after_in_child=_renew_lock)


_QUICK: dict[str, Callable[[], Any]] = {
    "hello": lambda: {
        "protocol": PROTOCOL,
        "holdfast": holdfast.__version__,
        "pid": os.getpid(),
    },
    "process": process.take,
    "look": lambda: process.take(rss=False),  # the reader reads the RSS itself
    "interrupt": actions.interrupt,  # never waits
}
_SLOW: dict[str, Callable[..., Any]] = {
    "holders": actions.holders,
    "leaks": actions.leaks,
    "set_debugging": actions.set_debugging,
    "free": actions.free,
    "set_budget": actions.set_budget,
}


def answer(message: Any) -> dict[str, Any]:
    """The answer to any message."""
    try:
        return {"ok": encode(_execute(message))}
    except HoldfastError as exc:
        return error_message(exc)
    except Exception as exc:  # noqa: BLE001  the promise above
        return error_message(
            Unsupported(f"process {os.getpid()} failed: {type(exc).__name__}: {exc}")
        )


def _execute(message: Any) -> Any:
    if not isinstance(message, dict) or not isinstance(message.get("ask"), str):
        raise BadInput("this is not a request", expected='an object such as {"ask": "process"}')
    arguments = dict(message)
    ask = arguments.pop("ask")
    if ask in _QUICK and not arguments:
        return _QUICK[ask]()
    work = _SLOW.get(ask)
    if ask in _QUICK:
        raise BadInput(f"cannot answer {ask!r}", expected="no arguments")
    if work is None:
        known = ", ".join([*_QUICK, *_SLOW])
        raise BadInput(f"unknown request {ask!r}", expected=f"one of {known}")
    try:
        inspect.signature(work).bind(**arguments)
    except TypeError as exc:
        raise BadInput(f"cannot answer {ask!r}: {exc}") from exc
    with _Turn.lock:
        return work(**arguments)
