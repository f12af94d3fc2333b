"""The blocks of one pool while it is debugged, and the state that all debugged pools share.

A block is freed before a problem with it is reported. Nothing here keeps a pool alive.
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
from holdfast.memory.core import native_build, stacks
from holdfast.memory.core.pool_core import ROUNDING
from holdfast.memory.core.protocols import Block, BlockPool
from holdfast.memory.debug.quarantine import GUARD, Quarantine, Record
from holdfast.memory.pools.pool import Pool, double_free_error

HISTORY = 1024  # freed blocks whose stacks are kept, for each pool
FREE_DEPTH = 6  # frames kept of the stack that freed a block


class MemoryMisuseWarning(RuntimeWarning):
    """Memory was misused; found where no error can be raised."""


@dataclass(frozen=True)
class Settings:
    """What debugging records."""

    depth: int  # frames of a stack
    canaries: bool


class DebugState:
    """What all debugged pools share; one instance per process."""

    def __init__(self) -> None:
        self.settings: Settings | None = None  # None: debugging is off
        self.ever = False  # debugging was on at some time
        self.since = 0  # blocks with lower numbers do not count as leaks
        self.numbers = itertools.count(1)
        self.problems: deque[Misuse] = deque(maxlen=1000)
        self.quarantine = Quarantine(self.report)
        self.lock = threading.RLock()
        self._all: weakref.WeakSet[PoolDebugger] = weakref.WeakSet()

    def report(self, problem: Misuse) -> None:
        """Keep a problem and warn of it, without raising: this may be a destructor."""
        self.problems.append(problem)
        try:
            warnings.warn(str(problem), MemoryMisuseWarning, stacklevel=3)
        except MemoryMisuseWarning:
            return  # warnings are errors here; the problem is in the list

    def watch(self, pool: BlockPool) -> PoolDebugger:
        """The debugger of a pool; pools over the same memory share one."""
        with self.lock:
            found = debugger_of(pool.pool)
            if found is None:
                found = PoolDebugger(self, pool.pool)
                pool.pool.where = _Where(found)
                weakref.finalize(pool.pool, found.close).atexit = False
                self._all.add(found)
            return found

    def debuggers(self) -> list[PoolDebugger]:
        """All debuggers, also those of dropped pools with blocks still in use."""
        with self.lock:
            return list(self._all)

    def live_records(self) -> list[Record]:
        records = [record for one in self.debuggers() for record in list(one.live.values())]
        return sorted(records, key=lambda record: record.number)

    def known(self, block: Block | int) -> Record | None:
        """The record of a block, or of the latest block at an address."""
        address = int(block)
        freed = [record for one in self.debuggers() for record in list(one.history)]
        records = [*freed, *self.live_records()]
        at_address = [record for record in records if record.address == address]
        exact = [record for record in at_address if record.block() is block]
        return next(reversed(exact or at_address), None)


class PoolDebugger:
    """The blocks of one pool's core; a `protocols.Watcher`."""

    def __init__(self, state: DebugState, pool: Pool) -> None:
        self.state = state
        self.report = state.report  # itself, not a method around it: it warns by stack level
        self.next_number = state.numbers.__next__
        self.core = pool.core
        self.device = pool.device
        self.pinned = pool.pinned
        self.host = bool(self.core.host)
        self.reachable = self.host and self.device == "cpu"  # "nowhere" has no memory
        self.live: dict[int, Record] = {}
        self.waiting: dict[int, Record] = {}  # in quarantine
        self.history: deque[Record] = deque(maxlen=HISTORY)  # freed
        self.closed = False  # the pool is gone: no block enters the quarantine any more
        # If a pool and its blocks are garbage together, the memory may go before the blocks.
        self._memory = ["there"]
        weakref.finalize(self.core, self._memory.clear).atexit = False
        self._make: Callable[..., Block] = native_build.module_of(self.core).make_block

    def allocate(self, pool: BlockPool, size: int) -> Block:
        """A block with a record, and with a guard if the memory is the host's."""
        settings = self.state.settings
        if settings is None:  # switched off a moment ago
            return self.core.allocate(size)
        if not (self.reachable and settings.canaries):
            return self._record(self.core, self.core.take(size), size, 0)
        room = (size + ROUNDING - 1) & -ROUNDING
        taken = size if room - size >= GUARD else size + GUARD
        address = self.core.take(taken)
        end = address + ((taken + ROUNDING - 1) & -ROUNDING)
        return self._record(self.core, address, size, end)

    def adopt(self, pool: BlockPool, owner: Any, address: int, size: int) -> Block:
        """A block of a plan: its offset is fixed, so there is no room for a guard."""
        return self._record(owner, address, size, 0)

    def give(self, pool: BlockPool, address: int) -> bool:
        """Free the block at an address; False if it has no record.

        Raises Overrun, after freeing it, if its guard is damaged; DoubleFree if it is in
        quarantine.
        """
        record = self.live.get(address)
        if record is None:
            if address in self.waiting:
                what = f"the block at {address:#x} of {pool.name}"
                raise double_free_error(what, self.waiting[address].history())
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
        """The error with where the block was allocated and freed."""
        record = self.state.known(block)
        if record is None or "\n  allocated: " in error.what:
            return error
        return type(error)(error.what + record.history(), expected=error.expected, hint=error.hint)

    def _record(self, giver: Any, address: int, size: int, end: int) -> Block:
        try:
            record = Record(self, giver, address, size, end)
            settings = self.state.settings
            record.stack = stacks.capture(settings.depth if settings else 1)
            if end:
                record.set_guard()
            self.live[address] = record
            block = self._make(record, address, size, self.host, self.pinned)
            record.block = weakref.ref(block)
        except BaseException:  # such as Ctrl-C: the memory must not leak
            self.live.pop(address, None)
            giver.give(address)
            raise
        return block

    def take_back(self, record: Record) -> Misuse | None:
        """Free a block; returns the problem with its guard, if any."""
        if self.live.pop(record.address, None) is not record:
            return None  # another thread was first
        if not self._memory:
            return None
        record.freed_stack = stacks.capture(FREE_DEPTH)
        problem = record.damage()
        if not self.closed:
            self.history.append(record)
        quarantine = self.state.quarantine
        if record.end and not self.closed and record.end - record.address <= quarantine.limit:
            self.waiting[record.address] = record
            quarantine.put(record)
        else:
            record.release()
        return problem

    def close(self) -> None:
        """The pool is gone: empty its part of the quarantine, and let no more blocks in."""
        self.closed = True
        self.history.clear()  # records and memory would keep each other alive
        self.state.quarantine.leave(self)


class _Where:
    """Tells a pool where a block was allocated; keeps neither records nor memory alive."""

    def __init__(self, debugger: PoolDebugger) -> None:
        self.debugger = weakref.ref(debugger)

    def __call__(self, address: int) -> str | None:
        debugger = self.debugger()
        if debugger is None:
            return None
        record = debugger.live.get(address) or debugger.waiting.get(address)
        if record is None:
            return None
        freed = "" if record.freed_stack is None else " (freed, in quarantine)"
        return record.location + freed


def debugger_of(pool: Pool) -> PoolDebugger | None:
    where = pool.where
    return where.debugger() if isinstance(where, _Where) else None
