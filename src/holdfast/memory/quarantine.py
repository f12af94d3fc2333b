"""What is known of a block that is debugged, and where it waits after it was given back.

Covers: a record for each block, the guard behind it, poison, the quarantine, pages that trap.
Leaves to others: which blocks have records (watched), switching it on and off (debug).

Promise: a free may come in the middle of anything, from any thread: nobody waits for a lock here.
Memory that leaves the quarantine is usable and goes back to its pool, also where it was damaged.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import threading
from collections import deque
from collections.abc import Callable
from time import monotonic_ns
from typing import TYPE_CHECKING, Any

from holdfast.base.errors import Misuse, Overrun, UseAfterFree
from holdfast.base.units import format_bytes
from holdfast.memory import stacks, tags
from holdfast.memory.core import ROUNDING
from holdfast.memory.recording import Frame
from holdfast.memory.system import make_unusable, make_usable

if TYPE_CHECKING:
    from holdfast.memory.watched import Watched

GUARD = 16  # bytes behind a block, at least; the rest of its chunk is guarded too
POISON = 0xDB
TRAPS = 8192  # blocks whose pages may be unusable at once; the system counts such ranges
_GUARD_BYTES = bytes(i * 83 % 251 + 2 for i in range(GUARD + ROUNDING))  # no 0 and no 255


class Record:
    """What is known of one block. It is also what the block calls when its last reference goes."""

    __slots__ = (
        *("address", "block", "end", "freed_stack", "giver", "guard", "number", "sealed", "size"),
        *("stack", "tag", "thread", "time_ns", "watched"),
    )

    def __init__(self, watched: Watched, giver: Any, address: int, size: int, end: int) -> None:
        self.watched = watched
        self.giver: Any = giver  # its give(address) takes the memory back
        self.address = address
        self.size = size
        self.end = end  # of the guard; 0: there is none
        self.guard = _GUARD_BYTES[: end - address - size] if end else b""  # as it was last seen
        self.number = next(watched.state.numbers)
        self.time_ns = monotonic_ns()
        self.thread = threading.get_ident()
        self.tag: str = getattr(tags._path, "now", "")
        self.sealed: tuple[int, int] | None = None  # pages made unusable
        self.stack: stacks.Stack = ()
        self.freed_stack: stacks.Stack | None = None
        self.block: Callable[[], Any] = _nothing

    def give(self, address: int) -> None:
        """The last reference to the block is gone. Never raises."""
        if self._is_live():  # else it was given back by its address
            problem = self.watched.take_back(self)
            if problem is not None:
                self.watched.state.report(problem)

    def give_at_exit(self, address: int) -> None:
        """The same when the interpreter ends, and little is left to use."""
        if self.watched.live.pop(address, None) is self:
            self.let_go()

    def let_go(self) -> None:
        """Give the memory back. The record may be remembered; what it came from is not kept."""
        self.giver.give(self.address)
        self.giver = None

    @property
    def frames(self) -> tuple[Frame, ...]:
        """The stack that allocated it, innermost first, from outside of this layer."""
        return stacks.resolve(self.stack)

    @property
    def location(self) -> str:
        """ "file:line in function"."""
        return stacks.place(self.stack)

    def words(self) -> str:
        """The block in a few words."""
        return f"the block of {format_bytes(self.size)} at {self.address:#x}"

    def history(self) -> str:
        """Lines that say where it was allocated and given back."""
        lines = f"\n  allocated: {stacks.place(self.stack)}"
        if self.freed_stack is not None:
            lines += f"\n  given back: {stacks.place(self.freed_stack)}"
        return lines

    def set_guard(self) -> None:
        """Write the guard behind the block."""
        ctypes.memmove(self.address + self.size, self.guard, len(self.guard))

    def damage(self) -> Overrun | None:
        """The error for a guard that was written over, once. For a block nobody else gives back."""
        found = ctypes.string_at(self.address + self.size, len(self.guard))
        return None if found == self.guard else self._overrun(found)

    def damage_in_use(self) -> Overrun | None:
        """The same for a block that may be given back meanwhile: whoever does that looks too."""
        block = self.block()  # held, so that the collector does not free it under our eyes
        if block is None or not self._is_live():
            return None
        found = ctypes.string_at(self.address + self.size, len(self.guard))
        # Poison comes after it left the live ones: what was read of a live block is its guard.
        return None if found == self.guard or not self._is_live() else self._overrun(found)

    def _is_live(self) -> bool:
        return self.watched.live.get(self.address) is self

    def _overrun(self, found: bytes) -> Overrun:
        at = next(i for i, byte in enumerate(found) if byte != self.guard[i])
        self.guard = found  # so that it is told once; the memory itself may be another's by now
        return Overrun(
            f"somebody wrote past the end of {self.words()}: "
            f"the first changed byte is {at + 1} past its end{self.history()}",
            expected=f"writes to its {self.size} bytes alone",
            hint="check_memory() between two steps tells which of them does it",
        )

    def late_write(self) -> UseAfterFree | None:
        """The error for poison that was written over."""
        low, high = self.sealed or (self.end, self.end)
        for start, end in ((self.address, low), (high, self.end)):
            at = _first_change(start, end - start)
            if at is not None:
                ctypes.memset(start, POISON, end - start)
                return UseAfterFree(
                    f"somebody wrote into {self.words()} after it was given back: "
                    f"the first changed byte is number {start + at - self.address}{self.history()}",
                    expected="no writes to a block that was given back",
                    hint="enable_memory_debugging(True, trap=True) stops the program where it "
                    "happens, for blocks of a page (4096 bytes) and more",
                )
        return None


class Quarantine:
    """Blocks that were given back and wait, poisoned, for somebody to write into them.

    Whoever gets the lock does the work for all; nobody waits for it. So a free in the middle of
    this code, or in a thread beside it, leaves its block in a queue and goes on.
    """

    def __init__(self, report: Callable[[Misuse], None]) -> None:
        self.limit = 0  # bytes that may wait
        self.trap = False  # whether pages become unusable while they wait
        self._report = report
        self._lock = threading.Lock()
        self._incoming: deque[Record] = deque()
        self._leaving: deque[Watched] = deque()
        self._inside: deque[Record] = deque()
        self.size_bytes = 0
        self._traps = 0

    def put(self, record: Record) -> None:
        """Poison a block and let it wait; the oldest leave where there is no room."""
        self._seal(record)
        self._incoming.append(record)
        self.settle()

    def leave(self, watched: Watched, wait_s: float = 0) -> None:
        """Let all blocks of a pool go."""
        self._leaving.append(watched)
        self.settle(wait_s)

    def check(self) -> list[Misuse]:
        """Late writes into what waits now."""
        self.settle()
        if not self._lock.acquire(timeout=1):  # held by the code this call came in the middle of
            return []
        try:
            found = [record.late_write() for record in self._inside]
        finally:
            self._lock.release()
        return [problem for problem in found if problem is not None]

    def after_fork(self) -> None:
        """In a child: the thread that held the lock may not be there."""
        self._lock = threading.Lock()
        self.size_bytes = sum(record.end - record.address for record in self._inside)

    def settle(self, wait_s: float = 0) -> None:
        """Take in and let go what is due, unless somebody else is doing it."""
        while self._incoming or self._leaving or self._too_much():
            if not self._lock.acquire(timeout=wait_s):
                return  # whoever holds it looks again after letting it go
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
            watched = self._leaving.popleft()
            gone = [record for record in self._inside if record.watched is watched]
            self._inside = deque(r for r in self._inside if r.watched is not watched)
            for record in gone:
                self._release(record, problems)
        while self._too_much():
            self._release(self._inside.popleft(), problems)
        if not self._inside:
            self.size_bytes = 0  # Ctrl-C in the middle may have left a wrong count

    def _too_much(self) -> bool:
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
        record.watched.waiting.pop(record.address, None)
        record.let_go()

    def _seal(self, record: Record) -> None:
        """Poison the block; its whole pages become unusable instead where that is wanted."""
        page = mmap.PAGESIZE
        low, high = -(-record.address // page) * page, record.end // page * page
        wanted = self.trap and not record.watched.pinned
        if wanted and low < high and self._traps < TRAPS and make_unusable(low, high - low):
            record.sealed = (low, high)
            self._traps += 1
        else:
            low = high = record.end
        ctypes.memset(record.address, POISON, low - record.address)
        ctypes.memset(high, POISON, record.end - high)


def _nothing() -> None:
    return None


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
