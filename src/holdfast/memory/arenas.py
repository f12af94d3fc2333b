"""Which addresses are free: two arenas of chunks, cut at best fit and joined with their neighbours.

Covers: segments, free chunks, lists of exact sizes in front of them, pages given back, growing.
Leaves to others: blocks in use, locks, counters of requests (core).
Promise: a chunk is in one list at a time; free neighbours of one segment are one chunk after
`_flush`. Nothing here is safe for several threads, or after an exception in the middle: the core
sees to both.
"""

from __future__ import annotations

import mmap
from bisect import bisect_left, insort
from time import monotonic_ns

from holdfast.memory.log import RELEASE_EVENT, RESERVE_EVENT, Log
from holdfast.memory.system import give_pages_back, make_usable

ROUNDING = 512
PAGE = mmap.PAGESIZE
NUMBERS_ONLY, SYSTEM, FIXED = 0, 1, 2  # kinds of segments


class Segment:
    """A range of addresses; one that is not FIXED grows up to `reserved` bytes."""

    __slots__ = ("arena", "base", "kind", "length", "reserved")

    def __init__(self, arena: int, kind: int, base: int, length: int, reserved: int) -> None:
        self.arena, self.kind, self.base = arena, kind, base
        self.length, self.reserved = length, reserved

    @property
    def end(self) -> int:
        """Where the usable part ends."""
        return self.base + self.length


class Arenas:
    """Free memory, for blocks up to `small_limit` and for larger ones."""

    def __init__(self, small_limit: int, small_step: int, large_step: int) -> None:
        self.small_limit = small_limit
        self.limit = 0  # the most bytes to reserve; 0: as many as there are
        self._steps = (small_step, large_step)
        self._segments: list[Segment] = []
        self._starts: set[int] = set()  # of segments: chunks are not joined across
        self._quick: dict[int, list[int]] = {}
        self._free: tuple[list[tuple[int, int]], list[tuple[int, int]]] = ([], [])
        self._free_at: dict[int, int] = {}  # address -> size of the free chunk
        self._free_end: dict[int, int] = {}  # its end -> its address
        self._given_back: dict[int, int] = {}  # address -> bytes of it that are with the system
        self._reserved = self._peak_reserved = 0
        self._hits = self._misses = 0
        self._closed = False
        self._log: Log | None = None
        self._place = 0

    def _find(self, size: int, asked: bool) -> int:
        """The address of a chunk of `size` bytes that is in no list any more, or 0.

        `asked`: somebody had to make room for it, so it does not count as a hit.
        """
        if self._closed:
            return 0
        self._flush()
        arena = int(size > self.small_limit)
        free = self._free[arena]
        at = bisect_left(free, (size, 0))
        grown = at == len(free)
        if grown:
            self._make_up_for(arena, size)
            if not any(s.arena == arena and self._extend(s, size) for s in self._segments):
                return 0
            at = bisect_left(free, (size, 0))
        address = self._cut(free[at][1], size, arena)
        if address:
            self._misses += grown or asked
            self._hits += not (grown or asked)
        return address

    def _add_free(self, address: int, size: int, arena: int, given_back: int = 0) -> None:
        """A chunk becomes free, and one with its free neighbours."""
        before = None if address in self._starts else self._free_end.get(address)
        if before is not None:
            given_back += self._given_back.get(before, 0)
            size += self._remove_free(before, arena)
            address = before
        after = address + size
        if after in self._free_at and after not in self._starts:
            given_back += self._given_back.get(after, 0)
            size += self._remove_free(after, arena)
        self._free_at[address] = size
        self._free_end[address + size] = address
        if given_back:
            self._given_back[address] = given_back
        insort(self._free[arena], (size, address))

    def _remove_free(self, address: int, arena: int) -> int:
        size = self._free_at.pop(address)
        del self._free_end[address + size]
        self._given_back.pop(address, None)
        free = self._free[arena]
        del free[bisect_left(free, (size, address))]
        return size

    def _cut(self, address: int, size: int, arena: int) -> int:
        have = self._free_at[address]
        back = self._given_back.get(address, 0)
        if back:  # at worst, all that is taken are pages that are with the system
            if self._over_limit(address, size):
                return 0
            self._count_reserved(min(back, size))
            low, high = address // PAGE * PAGE, -(-(address + size) // PAGE) * PAGE
            self._note(RESERVE_EVENT, low, high - low)
        self._remove_free(address, arena)
        if have > size:
            self._add_free(address + size, have - size, arena, max(0, back - size))
        return address

    def _over_limit(self, address: int, size: int) -> bool:
        """Whether the pages that come back from the system with a block are too many."""
        more = min(self._given_back.get(address, 0), size)
        return bool(more and self.limit and self._reserved + more > self.limit)

    def _flush(self) -> None:
        if not self._quick:
            return
        for size, addresses in self._quick.items():
            arena = int(size > self.small_limit)
            for address in addresses:
                self._add_free(address, size, arena)
        self._quick.clear()

    def _extend(self, segment: Segment, size: int) -> bool:
        if segment.kind == FIXED:
            return False
        last = self._free_end.get(segment.end, segment.end)
        need = size - (segment.end - max(last, segment.base))
        step = self._steps[segment.arena]
        more = min(-(-need // step) * step, segment.reserved - segment.length)
        if self.limit and self._reserved + more > self.limit:
            more = -(-need // PAGE) * PAGE
            if self._reserved + more > self.limit:
                return False
        if more < need or (segment.kind == SYSTEM and not make_usable(segment.end, more)):
            return False
        start = segment.end
        segment.length += more
        self._count_reserved(more)
        self._note(RESERVE_EVENT, start, more)
        self._add_free(start, more, segment.arena)
        return True

    def _count_reserved(self, more: int) -> None:
        self._reserved += more
        self._peak_reserved = max(self._peak_reserved, self._reserved)

    def _give_back_from(self, segment: Segment, most: int) -> int:
        """Hand free pages of one segment to the system, `most` bytes or a little more."""
        given = 0
        if segment.kind == FIXED:
            return 0
        chunks = [a for a in self._free_at if segment.base <= a < segment.end]
        for address in sorted(chunks, reverse=True):  # the low ones are used most
            if given >= most:
                break
            low = -(-address // PAGE) * PAGE
            high = (address + self._free_at[address]) // PAGE * PAGE
            new = high - low - self._given_back.get(address, 0)
            if high <= low or new <= 0:
                continue
            if segment.kind == SYSTEM and not give_pages_back(low, high - low):
                continue
            self._given_back[address] = high - low
            self._reserved -= new
            given += new
            self._note(RELEASE_EVENT, low, high - low)
        return given

    def _make_up_for(self, arena: int, size: int) -> None:
        """Before an arena grows, the other one gives up as much of what it keeps."""
        for segment in self._segments:
            if segment.arena != arena and size > 0:
                size -= self._give_back_from(segment, size)

    def _note(self, kind: int, address: int, size: int) -> None:
        """Write down that memory came from above, or went back."""
        if self._log:
            self._log.write((monotonic_ns(), kind, address, size, 0, self._place, 0))
