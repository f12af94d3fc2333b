"""Memory debugging: switching it on and off for every `MemoryPool`, checks, and the problems found.

When on, every block has its stack recorded and a guard behind it (finds writes past the end); freed
blocks wait in a quarantine (finds writes, and with `trap` reads, after a free); errors for double
frees and foreign pointers say where the block was allocated and freed.

Promises: a block is freed before an error about it is raised, so the pool stays sound. Destructors
never raise: a problem found there is kept (`problems`) and warned about once. A free may come in
the middle of anything, from any thread, without waiting for a lock. Blocks made while debugging was
on are freed correctly after it is off, and their guards are still checked.

Cost: about 20 µs for each block with 16 frames of stack, and 0.2 ms for each MB that is freed
(poison is written once and read once); without canaries about 9 µs, whatever the size.

Limits: a block in quarantine counts as in use in the statistics of its pool, and up to 16 bytes of
guard count as requested. For blocks on a GPU and blocks of a plan (`MemoryPool.step`) only stacks
are recorded. Addresses taken with `Pool.allocate` are not debugged.
"""

from __future__ import annotations

import atexit
import faulthandler
import sys
import threading

from holdfast.base.announce import offer_once
from holdfast.base.errors import BadInput, Misuse
from holdfast.base.threads import register_at_fork
from holdfast.base.units import parse_bytes
from holdfast.memory.debug.debug_pool import DebugState, Settings, debugger_of
from holdfast.memory.debug.debug_pool import MemoryMisuseWarning as MemoryMisuseWarning
from holdfast.memory.debug.quarantine import Record
from holdfast.memory.pools.memory_pool import watch_all
from holdfast.memory.pools.pool import Pool, on_pressure

_state = DebugState()


def enable_memory_debugging(
    enabled: bool = True,
    *,
    depth: int = 16,
    canaries: bool = True,
    quarantine_bytes: int | str = 64 << 20,
    trap: bool = False,
) -> None:
    """Debug every block of every pool from now on; False switches it off.

    `depth` frames are kept of each stack. `canaries` puts guards behind blocks and keeps up to
    `quarantine_bytes` of freed blocks in quarantine; larger blocks are freed at once. With `trap`
    the pages of those cannot even be read: the program ends at the access, with a traceback.
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
        _set_up_once()
        _state.quarantine.limit = limit if canaries else 0
        _state.quarantine.trap = trap
        _state.settings = Settings(depth, canaries)
        if trap and not faulthandler.is_enabled():
            faulthandler.enable(file=sys.__stderr__ or sys.stderr)
        watch_all(_state.watch)
    _state.quarantine.settle()


def problems() -> list[Misuse]:
    """Problems found where no error could be raised, oldest first (the last 1000)."""
    return list(_state.problems)


def clear_problems() -> None:
    """Forget the problems found so far."""
    _state.problems.clear()


def check_memory(*, raises: bool = True) -> list[Misuse]:
    """Check all guards and the quarantine now.

    Raises the first problem found and adds the others to `problems()`; with `raises=False` all
    are returned. A problem is reported once.
    """
    damage = (record.damage_in_use() for record in live_records())
    found: list[Misuse] = [problem for problem in damage if problem is not None]
    found += _state.quarantine.check()
    if found and raises:
        _state.problems.extend(found[1:])
        raise found[0]
    return found


def quarantined_bytes() -> int:
    """Bytes in quarantine; they count as in use in the statistics of the pools."""
    return _state.quarantine.size_bytes


def live_records() -> list[Record]:
    """The records of blocks in use that were made while debugging was on, oldest first."""
    return _state.live_records()


def mark() -> None:
    """Blocks that exist now do not count as leaks."""
    _state.since = next_number()


def is_enabled() -> bool:
    return _state.settings is not None


def next_number() -> int:
    """A number above that of every block so far, and below that of every later one."""
    return next(_state.numbers)


def first_leak_number() -> int | None:
    """The first block number that may be a leak; None if debugging was never on."""
    return _state.since if _state.ever else None


def _disable() -> None:
    watch_all(None)
    _state.settings = None
    _state.quarantine.limit = 0
    _state.quarantine.trap = False
    for debugger in _state.debuggers():
        _state.quarantine.leave(debugger, wait_s=1)


def _set_up_once() -> None:
    if not _state.ever:
        _state.ever = True
        on_pressure(_make_room)
        atexit.register(_at_exit)
        register_at_fork(after_in_child=_after_fork)


def _make_room(pool: Pool, size: int) -> None:
    debugger = debugger_of(pool)
    if debugger is not None:
        _state.quarantine.leave(debugger, wait_s=1)


def _after_fork() -> None:
    _state.lock = threading.RLock()
    _state.quarantine.after_fork()


def _at_exit() -> None:
    for problem in check_memory(raises=False):
        _state.report(problem)
    # From here on modules are torn down, and blocks are freed with little else left to use.
    Record.give = Record.give_at_exit
    _disable()
