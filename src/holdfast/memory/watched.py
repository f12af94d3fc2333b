"""The blocks of one pool while it is debugged.

Covers: making blocks that have records, taking them back, what is remembered of them, the state
that all debugged pools share.  Leaves to others: guards and poison (quarantine), switching it on
and off (debug).

Promise: a block is taken back before anybody is told what is wrong with it. Nothing here keeps a
pool alive.
"""

from __future__ import annotations

import itertools
import threading
import warnings
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from holdfast.base.errors import DoubleFree, ForeignPointer, Misuse
from holdfast.memory import compiled, stacks
from holdfast.memory.core import ROUNDING
from holdfast.memory.memory_pool import Block, MemoryPool
from holdfast.memory.pool import Pool
from holdfast.memory.quarantine import GUARD, Quarantine, Record

HISTORY = 1024  # blocks given back whose stacks are remembered, for each pool
FREE_DEPTH = 6  # frames kept of the place where a block was given back


class MemoryMisuseWarning(RuntimeWarning):
    """Memory was used against its rules, found where no error can be raised."""


@dataclass(frozen=True)
class Settings:
    """How blocks are watched."""

    depth: int  # frames of a stack
    canaries: bool


class State:
    """What all debugged pools share; there is one in a process."""

    def __init__(self) -> None:
        self.settings: Settings | None = None  # None: new blocks are not watched
        self.ever = False  # debugging was on once
        self.since = 0  # blocks with lower numbers are no leaks
        self.numbers = itertools.count(1)
        self.problems: deque[Misuse] = deque(maxlen=1000)
        self.quarantine = Quarantine(self.report)
        self.lock = threading.RLock()
        self._all: weakref.WeakSet[Watched] = weakref.WeakSet()

    def report(self, problem: Misuse) -> None:
        """Keep a problem and warn of it, without raising: this may be a destructor."""
        self.problems.append(problem)
        try:
            warnings.warn(str(problem), MemoryMisuseWarning, stacklevel=3)
        except MemoryMisuseWarning:
            return  # where warnings are errors; it is in the list

    def watch(self, pool: MemoryPool) -> Watched:
        """The one that watches a pool; the same for all pools over the same memory."""
        with self.lock:
            found = watched_of(pool.pool)
            if found is None:
                found = Watched(self, pool.pool)
                pool.pool.where = _Where(found)
                weakref.finalize(pool.pool, found.close).atexit = False
                self._all.add(found)
            return found

    def watched(self) -> list[Watched]:
        """All that watch, also those whose pool is gone while blocks are left."""
        with self.lock:
            return list(self._all)

    def live_records(self) -> list[Record]:
        """The blocks in use that have records, oldest first."""
        records = [record for one in self.watched() for record in list(one.live.values())]
        return sorted(records, key=lambda record: record.number)

    def known(self, block: Block | int) -> Record | None:
        """What is remembered of a block, or of the latest at an address."""
        address = int(block)
        freed = [record for one in self.watched() for record in list(one.history)]
        records = [*freed, *self.live_records()]
        at_address = [record for record in records if record.address == address]
        exact = [record for record in at_address if record.block() is block]
        return next(reversed(exact or at_address), None)


class Watched:
    """The blocks of one pool's core; a `memory_pool.Watcher`."""

    def __init__(self, state: State, pool: Pool) -> None:
        self.state = state
        self.core = pool.core
        self.device = pool.device
        self.pinned = pool.pinned
        self.host = bool(self.core.host)
        self.reachable = self.host and self.device == "cpu"  # "nowhere" has addresses alone
        self.live: dict[int, Record] = {}
        self.waiting: dict[int, Record] = {}  # in quarantine
        self.history: deque[Record] = deque(maxlen=HISTORY)  # given back
        self.closed = False  # the pool is gone: nothing waits any more
        # Where a pool and its blocks are garbage together, the memory may go before the blocks do.
        self._memory = ["there"]
        weakref.finalize(self.core, self._memory.clear).atexit = False
        self._make: Callable[..., Block] = compiled.module_of(self.core).make_block

    # ---- what a pool asks of its watcher

    def allocate(self, pool: MemoryPool, size: int) -> Block:
        """A block with a record, and with a guard where there can be one."""
        settings = self.state.settings
        if settings is None:  # since a moment ago
            return self.core.allocate(size)
        if not (self.reachable and settings.canaries):
            return self._record(self.core, self.core.take(size), size, 0)
        room = (size + ROUNDING - 1) & -ROUNDING
        taken = size if room - size >= GUARD else size + GUARD
        address = self.core.take(taken)
        end = address + ((taken + ROUNDING - 1) & -ROUNDING)
        return self._record(self.core, address, size, end)

    def adopt(self, pool: MemoryPool, owner: Any, address: int, size: int) -> Block:
        """A block of a plan: its place is fixed, so there is no room for a guard."""
        return self._record(owner, address, size, 0)

    def give(self, pool: MemoryPool, address: int) -> bool:
        """Take back the block at an address; False where it has no record.

        Raises Overrun when it was taken back and its guard is damaged, DoubleFree where it is in
        quarantine.
        """
        record = self.live.get(address)
        if record is None:
            self._must_not_wait(pool, address)
            return False
        block = record.block()
        problem = self.take_back(record)
        if block is not None:
            block.detach()
        if problem is not None:
            raise problem
        return True

    def explain(
        self, error: DoubleFree | ForeignPointer, block: Block | int
    ) -> DoubleFree | ForeignPointer:
        """The error with where the block was allocated and given back."""
        record = self.state.known(block)
        if record is None or "\n  allocated: " in error.what:
            return error
        return type(error)(error.what + record.history(), expected=error.expected, hint=error.hint)

    # ---- records

    def _record(self, giver: Any, address: int, size: int, end: int) -> Block:
        """A block over memory that `giver` takes back, with the stack of the caller."""
        try:
            record = Record(self, giver, address, size, end)
            settings = self.state.settings
            record.stack = stacks.take(settings.depth if settings else 1)
            if end:
                record.set_guard()
            self.live[address] = record
            block = self._make(record, address, size, self.host, self.pinned)
            record.block = weakref.ref(block)
        except BaseException:  # Ctrl-C for one: the memory must not be lost
            self.live.pop(address, None)
            giver.give(address)
            raise
        return block

    def take_back(self, record: Record) -> Misuse | None:
        """Take a block back; returns what is wrong with its guard."""
        if self.live.pop(record.address, None) is not record:
            return None  # another thread was first
        if not self._memory:
            return None
        record.freed_stack = stacks.take(FREE_DEPTH)
        problem = record.damage()
        if not self.closed:
            self.history.append(record)
        quarantine = self.state.quarantine
        if record.end and not self.closed and record.end - record.address <= quarantine.limit:
            self.waiting[record.address] = record
            quarantine.put(record)
        else:
            record.let_go()
        return problem

    def close(self) -> None:
        """The pool is gone: let its blocks leave the quarantine, and no others enter it."""
        self.closed = True
        self.history.clear()  # or they would keep the memory, and that would keep them
        self.state.quarantine.leave(self)

    def _must_not_wait(self, pool: MemoryPool, address: int) -> None:
        waiting = self.waiting.get(address)
        if waiting is not None:
            raise DoubleFree(
                f"the block at {address:#x} was given back to {pool.name} before"
                f"{waiting.history()}",
                expected="a block that is in use",
                hint="give a block back once, or drop every reference to it instead",
            )


class _Where:
    """What a pool asks for places; it keeps neither the records nor the memory."""

    def __init__(self, watched: Watched) -> None:
        self.watched = weakref.ref(watched)

    def __call__(self, address: int) -> str | None:
        watched = self.watched()
        if watched is None:
            return None
        record = watched.live.get(address) or watched.waiting.get(address)
        if record is None:
            return None
        freed = "" if record.freed_stack is None else " (given back, in quarantine)"
        return record.location + freed


def watched_of(pool: Pool) -> Watched | None:
    """The one that watches the blocks of a pool."""
    where = pool.where
    return where.watched() if isinstance(where, _Where) else None
