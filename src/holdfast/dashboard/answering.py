"""What a process answers to those who look at it.

Covers: the questions and their arguments, errors as answers.
Leaves to others: the answers themselves (process, acting), the socket (offering).
Promise: every question gets an answer, and none ends the process. Looks are quick and wait for
nobody; what takes longer is done one at a time beside them.
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
from holdfast.dashboard import acting, process
from holdfast.dashboard.wire import PROTOCOL, told


class _Turn:
    """What takes longer is done one at a time."""

    lock = threading.Lock()


def _renew_lock() -> None:
    """In the child of a fork: another thread may have held the lock, and is not here."""
    _Turn.lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_lock)


def _hello() -> dict[str, Any]:
    """Who this is."""
    return {"protocol": PROTOCOL, "holdfast": holdfast.__version__, "pid": os.getpid()}


def _look() -> Any:
    """The process but for its memory in RAM, which the reader finds by itself."""
    return process.take(rss=False)


_QUICK: dict[str, Callable[[], Any]] = {
    "hello": _hello,
    "process": process.take,
    "look": _look,
    "interrupt": acting.interrupt,  # waits for nobody
}
_SLOW: dict[str, Callable[..., Any]] = {
    "holders": acting.holders,
    "leaks": acting.leaks,
    "set_debugging": acting.set_debugging,
    "free": acting.free,
    "set_budget": acting.set_budget,
}


def answer(message: Any) -> dict[str, Any]:
    """The answer to a message, whatever it is."""
    try:
        return {"ok": encode(_answered(message))}
    except HoldfastError as exc:
        return told(exc)
    except Exception as exc:  # noqa: BLE001  the promise above
        return told(Unsupported(f"process {os.getpid()} cannot tell: {type(exc).__name__}: {exc}"))


def _strange(ask: str) -> BadInput:
    if ask in _QUICK:
        return BadInput(f"cannot answer {ask!r}", expected="the question alone")
    known = ", ".join([*_QUICK, *_SLOW])
    return BadInput(f"unknown question {ask!r}", expected=f"one of {known}")


def _answered(message: Any) -> Any:
    if not isinstance(message, dict) or not isinstance(message.get("ask"), str):
        raise BadInput("this is no question", expected='an object such as {"ask": "process"}')
    arguments = dict(message)
    ask = arguments.pop("ask")
    if ask in _QUICK and not arguments:
        return _QUICK[ask]()
    work = _SLOW.get(ask)
    if work is None:
        raise _strange(ask)
    try:
        inspect.signature(work).bind(**arguments)
    except TypeError as exc:
        raise BadInput(f"cannot answer {ask!r}: {exc}") from exc
    with _Turn.lock:
        return work(**arguments)
