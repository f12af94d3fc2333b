"""Starts the dashboard's socket (`dashboard.ipc.server`) when a process first uses Holdfast.

Never raises. After the first call it costs one comparison. A forked child starts its own socket.
"""

from __future__ import annotations

from collections.abc import Callable

from holdfast.base.config import Config
from holdfast.base.registry import Entry, Registry
from holdfast.base.threads import register_at_fork

# A layer does not import those above it, so the server is looked up by name.
_SERVER: Registry[Callable[[], bool]] = Registry(
    "dashboard", {"offer": Entry("holdfast.dashboard.ipc.server:offer", "a socket of this user's")}
)


class _Process:
    started = False
    is_helper = False  # a short-lived process that works for another one


_process = _Process()


def offer_once() -> None:
    """Let other programs of this user inspect this process; only the first call does something."""
    if not _process.started:
        _start()


def never_offer() -> None:
    """Keep this process, a short-lived helper, out of the dashboard."""
    _process.started = _process.is_helper = True


def _start() -> None:
    _process.started = True
    try:
        if Config.load().offer:
            _SERVER["offer"]()
    except Exception:  # noqa: BLE001  the work must not fail because it cannot be watched
        return


def _after_fork() -> None:
    _process.started = _process.is_helper


register_at_fork(after_in_child=_after_fork)
