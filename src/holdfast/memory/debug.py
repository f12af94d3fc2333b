"""Memory debugging: where each block came from, and what was done to it that should not be.

Covers: switching it on and off for every `MemoryPool`, looking at all guards, the problems found.
Leaves to others: the blocks of a pool (watched), guards and blocks that were given back
(quarantine), what is a leak (leaks).

On, it gives the stack of every block, guards behind blocks (writes past the end), a quarantine for
blocks that were given back (writes, and with `trap` reads, after that), places in the errors for
double frees and foreign pointers.

Promises: a block is taken back before an error about it is raised, so the pool stays sound. Nothing
is raised out of a destructor: a problem found there is kept (`problems`) and warned about once. A
free may come in the middle of anything, from any thread: nobody waits for a lock there. Blocks made
while debugging was on are freed rightly after it is off, and their guards are still looked at.

Cost: about 20 µs for each block with 16 frames of stack, and 0.2 ms for each MB that is given back
(poison is written once and read once); without canaries about 9 µs, whatever the size.

Limits: while it is on, a block in quarantine counts as in use in the figures of its pool, and up to
16 bytes of guard count as asked for. Blocks on a GPU and blocks of a plan (`MemoryPool.step`) have
their stacks recorded and nothing else. Addresses taken with `Pool.allocate` are not watched.
"""

from __future__ import annotations

import atexit
import faulthandler
import os
import sys
import threading

from holdfast.base.errors import BadInput, Misuse
from holdfast.base.offering import offer_once
from holdfast.base.units import parse_bytes
from holdfast.memory.memory_pool import watch_all
from holdfast.memory.pool import Pool, on_pressure
from holdfast.memory.quarantine import Record
from holdfast.memory.watched import MemoryMisuseWarning, Settings, State, watched_of

__all__ = [
    "MemoryMisuseWarning",
    "check_memory",
    "clear_problems",
    "enable_memory_debugging",
    "is_enabled",
    "live_records",
    "mark",
    "next_number",
    "problems",
    "quarantined_bytes",
    "recorded_since",
]

_state = State()


def enable_memory_debugging(
    enabled: bool = True,
    *,
    depth: int = 16,
    canaries: bool = True,
    quarantine_bytes: int | str = 64 << 20,
    trap: bool = False,
) -> None:
    """Watch every block of every pool from now on; False goes back.

    `depth` frames are kept of each stack. `canaries` puts guards behind blocks and keeps up to
    `quarantine_bytes` of freed blocks for a while; larger blocks are freed at once. With `trap`
    the pages of those cannot even be read: the program ends there, and says where.
    """
    if depth < 1:
        raise BadInput(f"cannot keep {depth} frames of a stack", expected="at least 1")
    limit = parse_bytes(quarantine_bytes)
    offer_once()
    with _state.lock:
        if not enabled:
            _disable()
            return
        if _state.settings is None:
            mark()
        _once()
        _state.quarantine.limit = limit if canaries else 0
        _state.quarantine.trap = trap
        _state.settings = Settings(depth, canaries)
        if trap and not faulthandler.is_enabled():
            faulthandler.enable(file=sys.__stderr__ or sys.stderr)
        watch_all(_state.watch)
    _state.quarantine.settle()


def problems() -> list[Misuse]:
    """What was found so far where no error could be raised, oldest first (the last 1000)."""
    return list(_state.problems)


def clear_problems() -> None:
    """Forget them."""
    _state.problems.clear()


def check_memory(*, raises: bool = True) -> list[Misuse]:
    """Look at all guards and at the quarantine now.

    Raises the first problem found, the rest of them are in `problems()`; with `raises=False` they
    are returned. A problem is found once.
    """
    looked = [record.damage_in_use() for record in live_records()]
    found: list[Misuse] = [problem for problem in looked if problem is not None]
    found += _state.quarantine.check()
    if found and raises:
        _state.problems.extend(found[1:])
        raise found[0]
    return found


def quarantined_bytes() -> int:
    """What waits in quarantine; it counts as in use in the figures of the pools."""
    return _state.quarantine.size_bytes


def live_records() -> list[Record]:
    """The blocks in use that were made while debugging was on, oldest first."""
    return _state.live_records()


def mark() -> None:
    """Blocks that are there now are no leaks."""
    _state.since = next_number()


def is_enabled() -> bool:
    """Whether blocks are watched now."""
    return _state.settings is not None


def next_number() -> int:
    """A number below that of every block to come, and above that of every block so far."""
    return next(_state.numbers)


def recorded_since() -> int | None:
    """Blocks from this number on may be leaks; None where debugging was never on."""
    return _state.since if _state.ever else None


def _disable() -> None:
    watch_all(None)
    _state.settings = None
    _state.quarantine.limit = 0
    _state.quarantine.trap = False
    for watched in _state.watched():
        _state.quarantine.leave(watched, wait_s=1)


def _once() -> None:
    if not _state.ever:
        _state.ever = True
        on_pressure(_make_room)
        atexit.register(_at_exit)
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=_after_fork)


def _make_room(pool: Pool, size: int) -> None:
    watched = watched_of(pool)
    if watched is not None:
        _state.quarantine.leave(watched, wait_s=1)


def _after_fork() -> None:
    _state.lock = threading.RLock()
    _state.quarantine.after_fork()


def _at_exit() -> None:
    for problem in check_memory(raises=False):
        _state.report(problem)
    # From here on modules are taken apart, and blocks are freed with nothing else left to use.
    Record.give = Record.give_at_exit
    _disable()
