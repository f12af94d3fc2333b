"""Bind the threads of this process to the CPUs next to its memory, and unbind them.

Several grants add up: threads run on the CPUs of all of them. When the last one is released, every
thread gets its old mask back, except those that somebody else has bound since. Threads that start
while a grant lasts inherit the mask of their parent.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterable
from pathlib import Path

from holdfast.base.errors import Unsupported
from holdfast.base.threads import renew_in_child

_TASKS = Path("/proc/self/task")


class Grant:
    """A request for CPUs, from `bind` until `release`."""

    def __init__(self, cpus: Iterable[int], bound: int | None = 0) -> None:
        self.cpus = frozenset(cpus)
        self.bound_threads = bound  # None if unknown
        self._released = False

    def bind(self) -> None:
        """Bind the threads of this process to its CPUs, and to those of the other grants.

        CPUs that this process may not use are left out. Raises Unsupported if none is left, or if
        the system cannot bind threads; then nothing has changed. After Ctrl-C, `release` undoes
        what was done.
        """
        if not supported():
            raise Unsupported(
                "threads cannot be bound to CPUs on this system", expected="Linux with /proc"
            )
        with _lock:
            usable = _anywhere or os.sched_getaffinity(0)
            if not self.cpus & usable:
                raise Unsupported(
                    f"cannot run on CPUs {sorted(self.cpus)}",
                    expected=f"some of the CPUs this process may use: {sorted(usable)}",
                )
            self.cpus &= usable
            if not _grants:
                _before.update(_masks())
                _anywhere.update(usable)
            _grants.append(self)
            self.bound_threads = _apply()

    def release(self) -> None:
        """Drop the request. A second call does nothing."""
        with _lock:
            if self in _grants:
                _grants.remove(self)
            if not self._released:
                _apply()  # may run twice: Ctrl-C may interrupt it
                self._released = True


# Reentrant: the garbage collector may run inside and free an allocation with a grant.
_lock = renew_in_child(threading.RLock())
_grants: list[Grant] = []
_before: dict[int, set[int]] = {}  # by thread: its mask before the first grant
_applied: list[set[int]] = []  # masks set since the first grant
_strangers: set[int] = set()  # threads bound by somebody else since
_anywhere: set[int] = set()  # mask for threads that started since


def supported() -> bool:
    """Whether single threads of this process can be bound."""
    return hasattr(os, "sched_setaffinity") and _TASKS.is_dir()


def bind(cpus: Iterable[int]) -> Grant:
    """Make a grant for `cpus` and bind it; see `Grant.bind`."""
    grant = Grant(cpus)
    try:
        grant.bind()
    except BaseException:
        grant.release()
        raise
    return grant


def _apply() -> int:
    while True:
        grants = tuple(_grants)
        count = _bind_all(set[int]().union(*(g.cpus for g in grants))) if grants else _unbind_all()
        if grants == tuple(_grants):
            return count


def _bind_all(cpus: set[int]) -> int:
    first = not _applied
    if cpus not in _applied:  # before it is done: Ctrl-C may come in the middle
        _applied.append(cpus)
    return sum(_set(tid, cpus, anyway=first) for tid in _threads())


def _unbind_all() -> int:
    if _applied:
        for tid in _threads():
            _set(tid, _before.get(tid, _anywhere))
    for known in (_before, _applied, _strangers, _anywhere):
        known.clear()
    return 0


def _set(tid: int, cpus: set[int], *, anyway: bool = False) -> bool:
    """Bind one thread, unless it has ended or somebody else has bound it."""
    try:
        if not anyway and (tid in _strangers or os.sched_getaffinity(tid) not in _applied):
            _strangers.add(tid)
            return False
        os.sched_setaffinity(tid, cpus)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def _masks() -> dict[int, set[int]]:
    found: dict[int, set[int]] = {}
    for tid in _threads():
        with contextlib.suppress(ProcessLookupError):
            found[tid] = os.sched_getaffinity(tid)
    return found


def _threads() -> list[int]:
    return [int(entry.name) for entry in _TASKS.iterdir()]
