"""Free chunks of two arenas: best fit, merging of free neighbours, growing segments.

A chunk is in one list at a time; after `_flush`, free neighbours in a segment are one chunk. Not
thread-safe, and not safe after an exception in the middle: `pool_core` handles both.
"""

from __future__ import annotations

import mmap
from bisect import bisect_left, insort
from time import monotonic_ns

from holdfast.memory.core.event_log import RELEASE_EVENT, RESERVE_EVENT, Log
from holdfast.memory.core.system_pages import discard_pages, make_usable

ROUNDING = 512
PAGE = mmap.PAGESIZE
ADDRESSES_ONLY, SYSTEM, FIXED = 0, 1, 2  # kinds of segments


class Segment:
    """A range of addresses; one that is not FIXED grows up to `reserved` bytes."""

    __slots__ = ("arena", "base", "kind", "length", "reserved")

    def __init__(self, arena: int, kind: int, base: int, length: int, reserved: int) -> None:
        self.arena, self.kind, self.base = arena, kind, base
        self.length, self.reserved = length, reserved

    @property
    def end(self) -> int:
        return self.base + self.length


class Arenas:
    """Free memory: one arena for blocks up to `small_limit` bytes, one for larger blocks."""

    def __init__(self, small_limit: int, small_step: int, large_step: int) -> None:
        self.small_limit = small_limit
        self.limit = 0  # the most bytes to reserve; 0: no limit
        self._steps = (small_step, large_step)
        self._segments: list[Segment] = []
        self._starts: set[int] = set()  # of segments: chunks are not merged across them
        self._quick: dict[int, list[int]] = {}
        self._free: tuple[list[tuple[int, int]], list[tuple[int, int]]] = ([], [])
        self._free_at: dict[int, int] = {}  # address -> size of the free chunk
        self._free_end: dict[int, int] = {}  # its end -> its address
        self._released: dict[int, int] = {}  # address of a free chunk -> its released bytes
        self._reserved = self._peak_reserved = 0
        self._hits = self._misses = 0
        self._closed = False
        self._log: Log | None = None
        self._place = 0

    def _find(self, size: int, asked: bool) -> int:
        """Remove a chunk from the free lists: its address, or 0. `asked`: it is no hit."""
        if self._closed:
            return 0
        self._flush()
        arena = int(size > self.small_limit)
        free = self._free[arena]
        at = bisect_left(free, (size, 0))
        grown = at == len(free)
        if grown:
            self._shrink_other(arena, size)
            if not any(s.arena == arena and self._extend(s, size) for s in self._segments):
                return 0
            at = bisect_left(free, (size, 0))
        address = self._cut(free[at][1], size, arena)
        if address:
            self._misses += grown or asked
            self._hits += not (grown or asked)
        return address

    def _add_free(self, address: int, size: int, arena: int, released: int = 0) -> None:
        """Add a free chunk, merged with its free neighbours."""
        before = None if address in self._starts else self._free_end.get(address)
        if before is not None:
            released += self._released.get(before, 0)
            size += self._remove_free(before, arena)
            address = before
        after = address + size
        if after in self._free_at and after not in self._starts:
            released += self._released.get(after, 0)
            size += self._remove_free(after, arena)
        self._free_at[address] = size
        self._free_end[address + size] = address
        if released:
            self._released[address] = released
        insort(self._free[arena], (size, address))

    def _remove_free(self, address: int, arena: int) -> int:
        size = self._free_at.pop(address)
        del self._free_end[address + size]
        self._released.pop(address, None)
        free = self._free[arena]
        del free[bisect_left(free, (size, address))]
        return size

    def _cut(self, address: int, size: int, arena: int) -> int:
        have = self._free_at[address]
        back = self._released.get(address, 0)
        if back:  # at worst, every byte taken lies in released pages
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
        """Whether taking released pages again would exceed the limit."""
        more = min(self._released.get(address, 0), size)
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

    def _release_from(self, segment: Segment, most: int) -> int:
        """Release free pages of one segment to the system: `most` bytes or a little more."""
        given = 0
        if segment.kind == FIXED:
            return 0
        chunks = [a for a in self._free_at if segment.base <= a < segment.end]
        for address in sorted(chunks, reverse=True):  # the low ones are used most
            if given >= most:
                break
            low = -(-address // PAGE) * PAGE
            high = (address + self._free_at[address]) // PAGE * PAGE
            new = high - low - self._released.get(address, 0)
            if high <= low or new <= 0:
                continue
            if segment.kind == SYSTEM and not discard_pages(low, high - low):
                continue
            self._released[address] = high - low
            self._reserved -= new
            given += new
            self._note(RELEASE_EVENT, low, high - low)
        return given

    def _shrink_other(self, arena: int, size: int) -> None:
        """Before an arena grows, release as many free pages of the other one."""
        for segment in self._segments:
            if segment.arena != arena and size > 0:
                size -= self._release_from(segment, size)

    def _note(self, kind: int, address: int, size: int) -> None:
        if self._log:
            self._log.write((monotonic_ns(), kind, address, size, 0, self._place, 0))
