"""The Python core of a pool: which addresses are in use, counters, one call at a time.

It has the same calls as the C core in `native/`, and the same tests run over both. It only does
bookkeeping: the memory may be on a GPU, or not exist at all.

How it finds room: sizes are rounded up to 512 bytes. A freed block goes to a list of its exact
size, where the next request of that size finds it. If that list is empty, all lists are flushed
into the arenas, where free neighbours merge, and the smallest free chunk that is large enough is
cut. Blocks up to `small_limit` and larger ones have an arena each, so that small blocks do not
break up large chunks. Only then does a segment grow, and the other arena releases as many pages.

Promises: two blocks in use never overlap. A free may come from `__del__` in the middle of any call,
from any thread. After an exception in the middle of a call, such as Ctrl-C, the next call rebuilds
the free lists from the blocks in use. After a fork both processes can go on.
"""

from __future__ import annotations

import functools
import threading
import weakref
from bisect import bisect_left
from collections import deque
from collections.abc import Callable
from operator import index
from threading import get_ident
from time import monotonic_ns
from typing import Any, Concatenate, ParamSpec, TypeAlias, TypeVar

from holdfast.base.errors import Misuse
from holdfast.base.threads import register_at_fork
from holdfast.memory.core import tag_counters as tag_counts
from holdfast.memory.core.arenas import FIXED, ROUNDING, Arenas, Segment
from holdfast.memory.core.block import Block, Tie, block_class
from holdfast.memory.core.block import make_block as make_block  # as in `native/module.c`
from holdfast.memory.core.event_log import (
    ALLOC_EVENT,
    FREE_EVENT,
    RELEASE_EVENT,
    RESERVE_EVENT,
    Log,
)
from holdfast.memory.core.tag_counters import current_tag
from holdfast.memory.core.tag_counters import declare_tag as declare_tag
from holdfast.memory.core.tag_counters import set_tag as set_tag

FREE, QUICK, USED = 0, 1, 2  # states of chunks
NO_LIMIT = 2**64 - 1
# Of a block in use: rounded size, requested size, tag, stack, weak reference to its `Block`.
Entry: TypeAlias = tuple[int, int, int, int, Tie | None]
_P = ParamSpec("_P")
_R = TypeVar("_R")

# The names that `native/module.c` has too.
__all__ = ["Block", "Core", "Log", "declare_tag", "make_block", "set_tag", "set_tag_peaks"]
__all__ += ["tag_counters"]


def _under_lock(
    method: Callable[Concatenate[Core, _P], _R],
) -> Callable[Concatenate[Core, _P], _R]:
    """Run a method under the lock.

    Not a context manager: Ctrl-C while entering or leaving one would leave the lock taken. And
    nothing is called between taking the lock and noting its owner: a signal handler that frees a
    block could run there, and wait for itself.
    """

    @functools.wraps(method)
    def call(self: Core, *args: _P.args, **kwargs: _P.kwargs) -> _R:
        me = get_ident()
        if self._owner == me:
            raise _reentry_error()
        with self._lock:
            try:
                self._owner = me
                self._begin()
                self._busy = True
                result = method(self, *args, **kwargs)
                self._busy = False
            finally:
                self._owner = 0
        return result

    return call


def _setting(name: str, doc: str) -> Any:
    """A property over the attribute `name`; setting it chooses the class of blocks anew."""

    def write(self: Core, value: int) -> None:
        setattr(self, name, value)
        self._choose_kind()

    return property(lambda self: getattr(self, name), write, doc=doc)


class Core(Arenas):
    """Bookkeeping over addresses; see the module docstring."""

    def __init__(
        self, small_limit: int = 1 << 20, small_step: int = 1 << 20, large_step: int = 1 << 21
    ) -> None:
        super().__init__(small_limit, small_step, large_step)
        self.grow: Callable[[int], object] | None = None
        self.trim: Callable[[int], object] | None = None
        self._cache_limit = NO_LIMIT
        self.hard = 0  # whether NumPy and torch must keep the limit (compiled core only)
        self._host, self._pinned = 1, 0
        self._kind: type[Block] = Block
        self._at_once = False  # whether blocks free themselves in `__del__`
        self._lock = threading.Lock()
        self._owner = 0  # the thread that holds the lock
        self._busy = False  # a call runs; if set when one starts, the last was interrupted
        # Blocks that died, and frees that came in the middle of a call.
        self._gone: deque[tuple[int, Entry] | Tie] = deque()
        self._take_note = self._gone.append
        self._used: dict[int, Entry] = {}
        self._allocated = self._peak_allocated = self._active = self._peak_active = 0
        self._cumulative = self._peak_live = 0
        _cores.add(self)

    # ---- the hot path

    def allocate(self, size: int) -> Block:
        """A block of `size` bytes; calls `grow` for more memory until it fits or `grow` raises."""
        if size.__class__ is not int:
            size = index(size)
        # The block is made first: Ctrl-C between taking and returning must not lose memory.
        block = self._kind(self, 0, size)
        if not self._take(size, block):
            self._take_slowly(size, block)
        return block

    def take(self, size: int) -> int:
        """The same as a bare address, which the caller frees with `give`."""
        size = index(size)
        return self._take(size) or self._take_slowly(size)

    def try_take(self, size: int) -> int:
        """An address, or 0 if there is no room."""
        return self._take(index(size))

    def _take(self, wanted: int, block: Block | None = None, asked: bool = False) -> int:
        if wanted >> 64:
            raise OverflowError(
                "can't convert negative int to unsigned" if wanted < 0 else "int too big to convert"
            )
        size = (wanted + 511) & -512 or ROUNDING
        me = get_ident()
        if self._owner == me:
            raise _reentry_error()
        log = self._log
        stack = log.stack(3) if log else 0  # past this and its caller, which is in this file
        with self._lock:
            try:
                self._owner = me
                if self._busy:
                    self._rebuild()
                self._busy = True
                if self._gone:
                    self._drain()
                quick = self._quick.get(size)
                if quick and not self._closed:
                    address = quick.pop()
                    self._hits += 1
                else:
                    address = self._find(size, asked)
                if address:
                    tag = current_tag()
                    if block is None:
                        entry = (size, wanted, tag, stack, None)
                    elif self._at_once:
                        block.entry = entry = (size, wanted, tag, stack, None)
                        block.address = address
                    else:
                        tie = Tie(block, self._take_note)
                        tie.address = block.address = address
                        block.entry = entry = (size, wanted, tag, stack, tie)
                    self._cumulative += wanted
                    self._allocated = now = self._allocated + wanted
                    if now > self._peak_allocated:
                        self._peak_allocated = now
                    self._active = now = self._active + size
                    if now > self._peak_active:
                        self._peak_active = now
                    used = self._used
                    used[address] = entry
                    if len(used) > self._peak_live:
                        self._peak_live = len(used)
                    if tag:
                        tag_counts.add(tag, wanted)
                    if log:
                        log.write(
                            (monotonic_ns(), ALLOC_EVENT, address, wanted, stack, self._place, tag)
                        )
                self._busy = False
            finally:
                self._owner = 0
        return address

    @_under_lock
    def fits(self, size: int) -> bool:
        """Whether a block of `size` bytes would fit now; counts nothing."""
        rounded = (size + 511) & -512 or ROUNDING
        arena = int(rounded > self.small_limit)
        self._flush()
        free = self._free[arena]
        there = bool(free) and free[-1][0] >= rounded
        if not there and not any(
            s.arena == arena and self._extend(s, rounded) for s in self._segments
        ):
            return False
        chunk = free[bisect_left(free, (rounded, 0))][1]
        return not self._over_limit(chunk, rounded)

    def holds(self, address: int, entry: object) -> bool:
        """Whether the block at `address` is still the one with this `entry`."""
        return self._used.get(address) is entry

    def give_block(self, block: Block) -> int:
        """Free a block; -1 if it is not of this core or was freed before."""
        return self.give(block.address, block.entry) if block.of(self) else -1

    def give(self, address: int, only: object = None) -> int:
        """Free a block (only the one with entry `only`): its requested size, or -1."""
        me = get_ident()
        if self._owner == me:  # in the middle of another call of this thread: later
            entry = self._used.get(address)
            if entry is None or (only is not None and entry is not only):
                return -1
            self._gone.append((address, entry))
            return entry[1]
        with self._lock:
            try:
                self._owner = me
                if self._busy or self._gone:
                    self._begin()
                self._busy = True
                entry = self._used.get(address)
                if entry is None or (only is not None and entry is not only):
                    wanted = -1
                else:
                    size, wanted, tag, _, _ = entry
                    del self._used[address]
                    self._allocated -= wanted
                    self._active -= size
                    quick = self._quick.get(size)
                    if quick is None:
                        self._quick[size] = [address]
                    else:
                        quick.append(address)
                    log = self._log
                    if log:
                        log.write(
                            (monotonic_ns(), FREE_EVENT, address, wanted, 0, self._place, tag)
                        )
                    if tag:
                        tag_counts.remove(tag, wanted)
                self._busy = False
            finally:
                self._owner = 0
        if self._reserved - self._active > self._cache_limit and wanted >= 0:
            self._shrink_cache()
        return wanted

    def _note_free(self, address: int, wanted: int, tag: int) -> None:
        if self._log:
            self._log.write((monotonic_ns(), FREE_EVENT, address, wanted, 0, self._place, tag))
        if tag:
            tag_counts.remove(tag, wanted)

    def _take_slowly(self, size: int, block: Block | None = None) -> int:
        address = 0
        while not address:
            if self.grow is None:
                raise MemoryError(f"no room for {size} bytes")
            self.grow(size)
            address = self._take(size, block, asked=True)
        return address

    # ---- segments

    @_under_lock
    def add_segment(self, arena: int, kind: int, base: int, length: int, reserved: int) -> None:
        """Add `length` usable bytes at `base`; unless FIXED, a segment grows up to `reserved`."""
        segment = Segment(int(arena != 0), kind, base, length, reserved)
        self._segments.append(segment)
        self._starts.add(base)
        if length:
            self._count_reserved(length)
            self._note(RESERVE_EVENT, base, length)
            self._add_free(base, length, segment.arena)

    @_under_lock
    def drop_free_segments(self, keep: int) -> list[tuple[int, int]]:
        """Forget free FIXED segments above `keep` bytes of cache; returns their ranges to free."""
        dropped = []
        self._flush()
        for s in self._segments[:]:
            whole = s.kind == FIXED and self._free_at.get(s.base) == s.length
            if not whole or self._reserved - self._active <= keep:
                continue
            self._remove_free(s.base, s.arena)
            self._segments.remove(s)
            self._starts.discard(s.base)
            self._reserved -= s.length
            self._note(RELEASE_EVENT, s.base, s.length)
            dropped.append((s.base, s.length))
        return dropped

    @_under_lock
    def give_back_pages(self, keep: int) -> int:
        """Release free pages until at most `keep` bytes are cached; returns the bytes."""
        given = 0
        self._flush()
        for segment in self._segments:
            cached = self._reserved - self._active
            if cached > keep:
                given += self._release_from(segment, cached - keep)
        return given

    def _shrink_cache(self) -> None:
        if self.trim is not None:
            self.trim(self._cache_limit)
        else:
            self.give_back_pages(self._cache_limit)

    @_under_lock
    def settle(self) -> None:
        """Free the blocks that died since the last call."""

    @_under_lock
    def flush(self) -> None:
        self._flush()

    @_under_lock
    def close(self) -> None:
        """Refuse every request from now on; the memory may go away."""
        self._flush()
        self._closed = True
        self.grow = self.trim = None

    # ---- queries

    def owns(self, address: int) -> bool:
        return any(s.base <= address < s.base + s.reserved for s in self._segments[:])

    @_under_lock
    def state(self, address: int) -> str:
        """ "used" if a block begins there, "inside" one, "free", or "foreign"."""
        address = int(address)
        if address in self._used:
            return "used"
        if any(a < address < a + entry[0] for a, entry in self._used.items()):
            return "inside"
        return "free" if self.owns(address) else "foreign"

    @_under_lock
    def segments(self) -> list[tuple[int, int, int, int, int]]:
        """(base, length, reserved, arena, kind) of each."""
        return [(s.base, s.length, s.reserved, s.arena, s.kind) for s in self._segments]

    @_under_lock
    def chunks(self) -> list[tuple[int, int, int, int, int, int, int, int]]:
        """(segment, arena, address, size, wanted, state, tag, stack) in order of address."""
        found = [(a, s, 0, FREE, 0, 0) for a, s in self._free_at.items()]
        found += [(a, s, 0, QUICK, 0, 0) for s, quick in self._quick.items() for a in quick]
        found += [(a, s, w, USED, tag, st) for a, (s, w, tag, st, _) in self._used.items()]
        segments = list(self._segments)
        found.sort()
        rows = []
        for s in segments:
            low, high = bisect_left(found, (s.base,)), bisect_left(found, (s.end,))
            rows += [(s.base, s.arena, *chunk) for chunk in found[low:high]]
        return rows

    @_under_lock
    def counters(self) -> dict[str, int]:
        live, allocs = len(self._used), self._hits + self._misses
        return {
            "allocated": self._allocated,
            "peak_allocated": self._peak_allocated,
            "active": self._active,
            "peak_active": self._peak_active,
            "reserved": self._reserved,
            "peak_reserved": self._peak_reserved,
            "cumulative": self._cumulative,
            "allocs": allocs,
            "frees": allocs - live,
            "hits": self._hits,
            "misses": self._misses,
            "live": live,
            "peak_live": self._peak_live,
        }

    @_under_lock
    def reset_peaks(self) -> None:
        self._peak_allocated = self._allocated
        self._peak_active = self._active
        self._peak_reserved = self._reserved
        self._peak_live = len(self._used)

    @_under_lock
    def watch(self, log: Log | None, place: int) -> None:
        """Write events to `log` from now on; None stops that."""
        self._log, self._place = log, place
        self._choose_kind()

    # ---- settings

    host = _setting("_host", "Whether the CPU can reach the memory.")
    pinned = _setting("_pinned", "Whether the pages are locked.")
    cache_limit = _setting("_cache_limit", "The most free bytes to keep.")

    def _choose_kind(self) -> None:
        # A dead block is freed by the next call. That is too late where the time of the free is
        # logged, or where the cache has to shrink at once.
        self._at_once = self._log is not None or self._cache_limit != NO_LIMIT
        self._kind = block_class(bool(self._host), bool(self._pinned), self._at_once)

    # ---- pending frees, and repair

    def _begin(self) -> None:
        if self._busy:
            self._rebuild()
        if self._gone:
            self._busy = True
            self._drain()

    def _drain(self) -> None:
        gone, used = self._gone, self._used
        while gone:
            item = gone[0]  # removed from the queue last: Ctrl-C must not lose it
            if isinstance(item, Tie):
                address = item.address
                entry = used.get(address)
                ours = entry is not None and entry[4] is item
            else:
                address, entry = item
                ours = used.get(address) is entry
            if entry is not None and ours:
                size, wanted, tag, _, _ = entry
                del used[address]
                self._allocated -= wanted
                self._active -= size
                quick = self._quick.get(size)
                if quick is None:
                    self._quick[size] = [address]
                else:
                    quick.append(address)
                if tag or self._log:
                    self._note_free(address, wanted, tag)
            gone.popleft()

    def _rebuild(self) -> None:
        self._quick.clear()
        self._free_at.clear()
        self._free_end.clear()
        self._released.clear()
        self._free = ([], [])
        self._starts = {s.base for s in self._segments}
        used = sorted((a, entry[0]) for a, entry in self._used.items())
        for s in self._segments:
            at = s.base
            for address, size in [*used[bisect_left(used, (s.base,)) :], (s.end, 0)]:
                address = min(address, s.end)
                if address > at:
                    self._add_free(at, address - at, s.arena)
                at = address + size
                if at >= s.end:
                    break
        self._active = sum(entry[0] for entry in self._used.values())
        self._allocated = sum(entry[1] for entry in self._used.values())
        self._reserved = sum(s.length for s in self._segments)
        # An interrupted request may or may not have been counted; the blocks in use are certain.
        self._misses = max(self._misses, len(self._used) - self._hits)
        self._peak_allocated = max(self._peak_allocated, self._allocated)
        self._peak_active = max(self._peak_active, self._active)
        self._peak_reserved = max(self._peak_reserved, self._reserved)
        self._peak_live = max(self._peak_live, len(self._used))
        self._busy = False


def tag_counters(tag: int) -> tuple[int, ...]:
    """(current, peak, total) bytes of a tag, then the same for its number of blocks."""
    _settle_all()
    return tag_counts.tag_counters(tag)


def set_tag_peaks(tag: int, peak_bytes: int, peak_count: int) -> None:
    """Set the peaks of a tag, but never below its current values."""
    _settle_all()
    tag_counts.set_tag_peaks(tag, peak_bytes, peak_count)


def _settle_all() -> None:
    for core in list(_cores):
        if core._gone:
            core.settle()


def _reentry_error() -> Misuse:
    return Misuse(
        "a pool was called in the middle of another call of the same thread",
        expected="nothing but frees in signal handlers and __del__ (the compiled core can do more)",
    )


_cores: weakref.WeakSet[Core] = weakref.WeakSet()
_held: list[Core] = []


def _before_fork() -> None:
    me = get_ident()
    for core in list(_cores):
        core._lock.acquire()
        core._owner = me  # other fork hooks may collect garbage, and so free blocks
        _held.append(core)


def _after_fork() -> None:
    while _held:
        core = _held.pop()
        core._owner = 0
        core._lock.release()


def _after_fork_in_child() -> None:
    _after_fork()
    for core in list(_cores):
        if core._lock.locked():  # made since then by a thread that this process does not have
            core._lock, core._owner = threading.Lock(), 0


register_at_fork(
    before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork_in_child
)
