"""Records of debugged blocks: guards behind them, and a quarantine for freed blocks.

A free may come in the middle of anything, from any thread, so nothing here waits for a lock. Memory
that leaves the quarantine is usable and is freed, even if it was damaged.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import threading
from collections import deque
from collections.abc import Callable
from time import monotonic_ns
from typing import Any, Protocol

from holdfast.base.errors import Misuse, Overrun, UseAfterFree
from holdfast.base.units import format_bytes
from holdfast.memory.core import stacks, tags
from holdfast.memory.core.pool_core import ROUNDING
from holdfast.memory.core.system_pages import make_unusable, make_usable
from holdfast.memory.profile.recording import Frame

GUARD = 16  # minimum bytes behind a block; the rest of its chunk is guarded too
POISON = 0xDB
TRAPS = 8192  # most blocks with unusable pages; the system limits the number of such ranges
_GUARD_BYTES = bytes(i * 83 % 251 + 2 for i in range(GUARD + ROUNDING))  # no 0 and no 255


class RecordOwner(Protocol):
    """What a record needs of the debugger of its pool (`debug_pool.PoolDebugger`)."""

    live: dict[int, Record]  # address -> block in use
    waiting: dict[int, Record]  # address -> block in quarantine
    device: str
    pinned: bool

    def next_number(self) -> int: ...
    def report(self, problem: Misuse) -> None: ...
    def take_back(self, record: Record) -> Misuse | None: ...


class Record:
    """What is known about one block. The block calls `give` when its last reference goes."""

    __slots__ = (
        *("address", "block", "end", "freed_stack", "giver", "guard", "number", "sealed", "size"),
        *("stack", "tag", "thread", "time_ns", "owner"),
    )

    def __init__(self, owner: RecordOwner, giver: Any, address: int, size: int, end: int) -> None:
        self.owner = owner
        self.giver: Any = giver  # giver.give(address) frees the memory
        self.address = address
        self.size = size
        self.end = end  # of the guard; 0: no guard
        self.guard = _GUARD_BYTES[: end - address - size] if end else b""  # as it was last seen
        self.number = owner.next_number()
        self.time_ns = monotonic_ns()
        self.thread = threading.get_ident()
        self.tag: str = getattr(tags._path, "now", "")
        self.sealed: tuple[int, int] | None = None  # pages made unusable
        self.stack: stacks.Stack = ()
        self.freed_stack: stacks.Stack | None = None
        self.block: Callable[[], Any] = lambda: None

    def give(self, address: int) -> None:
        """Free the block: its last reference is gone. Never raises."""
        if self._is_live():  # else it was freed by its address
            problem = self.owner.take_back(self)
            if problem is not None:
                self.owner.report(problem)

    def give_at_exit(self, address: int) -> None:
        """The same at interpreter exit, when modules are already gone."""
        if self.owner.live.pop(address, None) is self:
            self.release()

    def release(self) -> None:
        """Free the memory. The record may be kept, but not what it came from."""
        self.giver.give(self.address)
        self.giver = None

    @property
    def frames(self) -> tuple[Frame, ...]:
        """The stack that allocated it, innermost first, without frames of this layer."""
        return stacks.resolve(self.stack)

    @property
    def location(self) -> str:
        """ "file:line in function"."""
        return stacks.format_location(self.stack)

    def describe(self) -> str:
        return f"the block of {format_bytes(self.size)} at {self.address:#x}"

    def history(self) -> str:
        """Lines with where it was allocated and freed."""
        lines = f"\n  allocated: {stacks.format_location(self.stack)}"
        if self.freed_stack is not None:
            lines += f"\n  freed: {stacks.format_location(self.freed_stack)}"
        return lines

    def set_guard(self) -> None:
        ctypes.memmove(self.address + self.size, self.guard, len(self.guard))

    def damage(self) -> Overrun | None:
        """The error for an overwritten guard, once. For a block that only this thread can free."""
        found = ctypes.string_at(self.address + self.size, len(self.guard))
        return None if found == self.guard else self._overrun(found)

    def damage_in_use(self) -> Overrun | None:
        """The same for a block that another thread may free meanwhile, and then check itself."""
        block = self.block()  # referenced, so that the collector does not free it meanwhile
        if block is None or not self._is_live():
            return None
        found = ctypes.string_at(self.address + self.size, len(self.guard))
        # Poison is written after a block leaves `live`, so bytes read of a live block are guard.
        return None if found == self.guard or not self._is_live() else self._overrun(found)

    def _is_live(self) -> bool:
        return self.owner.live.get(self.address) is self

    def _overrun(self, found: bytes) -> Overrun:
        at = next(i for i, byte in enumerate(found) if byte != self.guard[i])
        self.guard = found  # so that it is reported once; the memory may have a new owner by now
        return Overrun(
            f"a write past the end of {self.describe()}: "
            f"the first changed byte is {at + 1} past its end{self.history()}",
            expected=f"writes to its {self.size} bytes only",
            hint="call check_memory() between two steps to find the one that does it",
        )

    def late_write(self) -> UseAfterFree | None:
        low, high = self.sealed or (self.end, self.end)
        for start, end in ((self.address, low), (high, self.end)):
            at = _first_change(start, end - start)
            if at is not None:
                ctypes.memset(start, POISON, end - start)
                return UseAfterFree(
                    f"a write into {self.describe()} after it was freed: "
                    f"the first changed byte is at offset {start + at - self.address}"
                    f"{self.history()}",
                    expected="no writes to a freed block",
                    hint="enable_memory_debugging(True, trap=True) stops the program at the "
                    "write, for blocks of a page (4096 bytes) or more",
                )
        return None


class Quarantine:
    """Freed blocks that wait, poisoned, so that late writes are found.

    Whichever thread gets the lock does the work for all; none waits for it. A free in the middle of
    this code, or in another thread, leaves its block in a queue and goes on.
    """

    def __init__(self, report: Callable[[Misuse], None]) -> None:
        self.limit = 0  # bytes that may wait
        self.trap = False  # whether pages become unusable while they wait
        self._report = report
        self._lock = threading.Lock()
        self._incoming: deque[Record] = deque()
        self._leaving: deque[RecordOwner] = deque()
        self._inside: deque[Record] = deque()
        self.size_bytes = 0
        self._traps = 0

    def put(self, record: Record) -> None:
        """Poison a block and let it wait; the oldest leave if there is no room."""
        self._seal(record)
        self._incoming.append(record)
        self.settle()

    def leave(self, owner: RecordOwner, wait_s: float = 0) -> None:
        self._leaving.append(owner)
        self.settle(wait_s)

    def check(self) -> list[Misuse]:
        """Late writes into the waiting blocks."""
        self.settle()
        if not self._lock.acquire(timeout=1):  # held by the code that this call interrupted
            return []
        try:
            found = [record.late_write() for record in self._inside]
        finally:
            self._lock.release()
        return [problem for problem in found if problem is not None]

    def after_fork(self) -> None:
        """In the child of a fork: the thread that held the lock may not exist."""
        self._lock = threading.Lock()
        self.size_bytes = sum(record.end - record.address for record in self._inside)

    def settle(self, wait_s: float = 0) -> None:
        """Do the pending work, unless another thread is doing it."""
        while self._incoming or self._leaving or self._is_over_limit():
            if not self._lock.acquire(timeout=wait_s):
                return  # the thread that holds it checks again after releasing it
            problems: list[Misuse] = []
            try:
                self._work(problems)
            finally:
                self._lock.release()
            for problem in problems:
                self._report(problem)

    def _work(self, problems: list[Misuse]) -> None:
        while self._incoming:
            record = self._incoming.popleft()
            self._inside.append(record)
            self.size_bytes += record.end - record.address
        while self._leaving:
            owner = self._leaving.popleft()
            gone = [record for record in self._inside if record.owner is owner]
            self._inside = deque(r for r in self._inside if r.owner is not owner)
            for record in gone:
                self._release(record, problems)
        while self._is_over_limit():
            self._release(self._inside.popleft(), problems)
        if not self._inside:
            self.size_bytes = 0  # Ctrl-C may have left a wrong count

    def _is_over_limit(self) -> bool:
        return bool(self._inside) and self.size_bytes > self.limit

    def _release(self, record: Record, problems: list[Misuse]) -> None:
        self.size_bytes -= record.end - record.address
        problem = record.late_write()
        if problem is not None:
            problems.append(problem)
        if record.sealed is not None:
            low, high = record.sealed
            make_usable(low, high - low)
            record.sealed = None
            self._traps -= 1
        record.owner.waiting.pop(record.address, None)
        record.release()

    def _seal(self, record: Record) -> None:
        """Poison the block; with `trap`, make its whole pages unusable instead."""
        page = mmap.PAGESIZE
        low, high = -(-record.address // page) * page, record.end // page * page
        wanted = self.trap and not record.owner.pinned
        if wanted and low < high and self._traps < TRAPS and make_unusable(low, high - low):
            record.sealed = (low, high)
            self._traps += 1
        else:
            low = high = record.end
        ctypes.memset(record.address, POISON, low - record.address)
        ctypes.memset(high, POISON, record.end - high)


@functools.cache
def _memcmp() -> Callable[[int, int, int], int]:
    compare = ctypes.CDLL(None).memcmp
    compare.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
    return compare


def _all_poison(address: int, length: int) -> bool:
    if not length:
        return True
    first = ctypes.string_at(address, 1)[0]
    return first == POISON and _memcmp()(address, address + 1, length - 1) == 0


def _first_change(address: int, length: int) -> int | None:
    """The offset of the first byte that is not poison."""
    if _all_poison(address, length):
        return None
    low, high = 0, length  # it lies in [low, high)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if _all_poison(address + low, middle - low) else (low, middle)
    return low
