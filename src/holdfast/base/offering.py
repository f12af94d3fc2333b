"""The moment when a process begins to use Holdfast: from then on it can be looked at.

Covers: telling the dashboard once, from whichever layer it begins in; processes that are never
looked at.  Leaves to others: the socket (dashboard.offering).
Promise: never raises, whatever the folder, the settings or the system are; after the first call
it costs one comparison. In the child of a fork the next use begins anew.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from holdfast.base.config import Config
from holdfast.base.registry import Entry, Registry

# Layers may not know those above them, so this one is found by its name.
_OFFERING: Registry[Callable[[], bool]] = Registry(
    "dashboard", {"offer": Entry("holdfast.dashboard.offering:offer", "a socket of this user's")}
)


class _State:
    """Of this process."""

    begun = False
    helper = False  # whether it works for another, and ends soon


_state = _State()


def offer_once() -> None:
    """Let other programs of this user look at this process, from the first call on."""
    if not _state.begun:
        _begin()


def never_offer() -> None:
    """This process helps another one for a moment: nobody looks at it."""
    _state.begun = _state.helper = True


def _begin() -> None:
    _state.begun = True
    try:
        if Config.load().offer:
            _OFFERING["offer"]()
    except Exception:  # noqa: BLE001  to be looked at is never a reason to fail
        return


def _after_fork() -> None:
    _state.begun = _state.helper


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
