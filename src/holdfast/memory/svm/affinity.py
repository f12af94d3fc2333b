"""Run the work beside its memory: bind the threads of this process, and give them back.

Covers: all threads that are there; several allocations that each want some CPUs.
Leaves to others: which CPUs (placement).
Promise: when the last grant is given back every thread may run where it might before; a thread that
was bound elsewhere in the meantime keeps what it was given.

Threads that begin while a grant lasts inherit it from the thread that starts them.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterable
from pathlib import Path

from holdfast.base.errors import Unsupported

_TASKS = Path("/proc/self/task")


class Grant:
    """That some CPUs are wanted, from `bind` until it is given back."""

    def __init__(self, cpus: Iterable[int], bound: int | None = 0) -> None:
        self.cpus = frozenset(cpus)
        self.bound_threads = bound  # None where nobody knows
        self._given_back = False

    def bind(self) -> None:
        """Have the threads of this process run on its CPUs, and on those of the other grants.

        CPUs that this process may not use are left out. Raises Unsupported where none is left, or
        where the system has no such call; then nothing has changed. Where Ctrl-C breaks it off,
        `give_back` takes back what was done.
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

    def give_back(self) -> None:
        """Its CPUs are not wanted any more. A second time does nothing."""
        with _lock:
            if self in _grants:
                _grants.remove(self)
            if not self._given_back:
                _apply()  # may be done a second time: Ctrl-C may break it off
                self._given_back = True


# Held again by the same thread where its garbage is collected inside, an allocation with it.
_lock = threading.RLock()
_grants: list[Grant] = []
_before: dict[int, set[int]] = {}  # by thread: where it might run before the first grant
_given: list[set[int]] = []  # what threads were bound to since the first grant
_strangers: set[int] = set()  # threads that somebody else has bound since
_anywhere: set[int] = set()  # for threads that began in between


def _renew_lock() -> None:
    """In the child of a fork: another thread may have held it, and is not here."""
    global _lock
    _lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_lock)


def supported() -> bool:
    """Whether threads of this process can be bound, each by itself."""
    return hasattr(os, "sched_setaffinity") and _TASKS.is_dir()


def bind(cpus: Iterable[int]) -> Grant:
    """A grant for `cpus` that is bound; see `Grant.bind`."""
    grant = Grant(cpus)
    try:
        grant.bind()
    except BaseException:
        grant.give_back()
        raise
    return grant


def _apply() -> int:
    """Bind every thread to what the grants want together; returns how many were bound."""
    while True:
        grants = tuple(_grants)
        count = _bind_all(set[int]().union(*(g.cpus for g in grants))) if grants else _unbind_all()
        if grants == tuple(_grants):
            return count


def _bind_all(cpus: set[int]) -> int:
    first = not _given
    if cpus not in _given:  # before it is done: Ctrl-C may come in the middle
        _given.append(cpus)
    return sum(_set(tid, cpus, anyway=first) for tid in _threads())


def _unbind_all() -> int:
    if _given:
        for tid in _threads():
            _set(tid, _before.get(tid, _anywhere))
    for known in (_before, _given, _strangers, _anywhere):
        known.clear()
    return 0


def _set(tid: int, cpus: set[int], *, anyway: bool = False) -> bool:
    """Bind one thread, unless it is over or somebody else has bound it."""
    try:
        if not anyway and (tid in _strangers or os.sched_getaffinity(tid) not in _given):
            _strangers.add(tid)
            return False
        os.sched_setaffinity(tid, cpus)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def _masks() -> dict[int, set[int]]:
    """Where each thread may run; not of those that end meanwhile."""
    found: dict[int, set[int]] = {}
    for tid in _threads():
        with contextlib.suppress(ProcessLookupError):
            found[tid] = os.sched_getaffinity(tid)
    return found


def _threads() -> list[int]:
    return [int(entry.name) for entry in _TASKS.iterdir()]
