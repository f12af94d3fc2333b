"""`Pool`, a resource that reuses freed memory of its upstream resource.

Memory goes back upstream when the pool and all its blocks are gone, not before.

When there is no room, these steps are tried in order: merge free neighbours, ask upstream, collect
Python's garbage, empty the cache, call the `on_pressure` callbacks, spill movable blocks. Then an
OutOfMemory lists the ten largest holders.
"""

from __future__ import annotations

import gc
import itertools
import threading
import warnings
import weakref
from collections.abc import Callable
from typing import Any

from holdfast.base.announce import offer_once
from holdfast.base.errors import BadInput, DoubleFree, ForeignPointer, HoldfastError, OutOfMemory
from holdfast.base.threads import renew_in_child
from holdfast.base.units import format_bytes, parse_bytes
from holdfast.memory.core import native_build, tags
from holdfast.memory.core.arenas import FIXED
from holdfast.memory.core.pool_core import USED
from holdfast.memory.core.stats import LargeAllocation, MemoryStats
from holdfast.memory.hooks.import_hooks import notify_watch
from holdfast.memory.resources.adaptors import Adaptor
from holdfast.memory.resources.resource import Growable, Host, Resource, check_size

MB = 1 << 20
SEGMENT = 2 * MB  # segment sizes are multiples of this
# Address space for each arena, which costs nothing. If it runs out, a second range follows.
RESERVED = (16 << 30, 64 << 30)
_numbers = itertools.count(1)
_pools: weakref.WeakSet[Pool] = weakref.WeakSet()
_remains: list[tuple[weakref.ref[Any], dict[str, Any]]] = []
_watch_lock = renew_in_child(threading.RLock())
_watcher: tuple[Any, Callable[[Pool], int]] | None = None


def counter(name: str, doc: str) -> Any:
    """A property: one counter of the core in `pool.core`."""
    return property(lambda self: getattr(self, "pool", self).core.counters()[name], doc=doc)


class Pool(Adaptor):
    """Allocates from `upstream` in large segments and reuses what is freed."""

    def __init__(
        self, upstream: Resource | None = None, *, name: str = "", core: Any = None
    ) -> None:
        super().__init__(Host() if upstream is None else upstream)
        self.number = next(_numbers)
        self.name = name or f"pool {self.number}"
        self.core: Any = (core or native_build.core()).Core()
        self.core.host = int(self.device in ("cpu", "nowhere"))
        self.core.pinned = int(self.pinned)
        self.on_pressure: list[Callable[[Pool, int], object]] = []
        self.spill: Callable[[int], int] | None = None  # bytes wanted -> bytes freed
        self.where: Callable[[int], str | None] = lambda address: None  # who allocated it
        self._ranges: list[tuple[int, int]] = []
        self._fixed: dict[int, int] = {}
        self._grow_lock = threading.RLock()
        self.core.grow = _weak_grow(self)
        # Not at exit: arrays over this memory may still be used then.
        end = weakref.finalize(self.core, _free_upstream, self.upstream, self._ranges, self._fixed)
        end.atexit = False
        weakref.finalize(self, _keep_remains, self.__dict__).atexit = False
        if isinstance(self.upstream, Growable):
            for arena in (0, 1):
                self._add_range(arena)
        else:
            self.core.trim = _weak_trim(self)
        _register(self)
        offer_once()

    # ---- the protocol of a resource

    def allocate(self, size: int) -> int:
        """The address of `size` bytes, a multiple of 512. Raises OutOfMemory."""
        return self.core.take(check_size(size))

    def free(self, address: int) -> None:
        """Free a block. Raises DoubleFree or ForeignPointer, and changes nothing then."""
        if self.core.give(int(address)) < 0:
            raise free_error(self, int(address))

    def owns(self, address: int) -> bool:
        return self.core.owns(int(address))

    # ---- figures

    allocated_bytes = counter("allocated", "Requested bytes of the blocks in use.")
    peak_allocated_bytes = counter("peak_allocated", "The peak of `allocated_bytes`.")
    reserved_bytes = counter("reserved", "Bytes taken from upstream.")
    peak_reserved_bytes = counter("peak_reserved", "The peak of `reserved_bytes`.")

    def stats(self) -> MemoryStats:
        """All statistics at one moment."""
        c = self.core.counters()
        return MemoryStats(
            allocated_bytes=c["allocated"],
            reserved_bytes=c["reserved"],
            active_bytes=c["active"],
            inactive_bytes=c["reserved"] - c["active"],
            cached_bytes=c["reserved"] - c["active"],
            peak_allocated=c["peak_allocated"],
            peak_reserved=c["peak_reserved"],
            num_allocs=c["allocs"],
            num_frees=c["frees"],
            cache_hits=c["hits"],
        )

    def holders(self, count: int | None = None) -> list[LargeAllocation]:
        """The blocks in use, largest first, with who allocated them if that is known."""
        names = tags.names()
        used = [chunk for chunk in self.core.chunks() if chunk[5] == USED]
        used.sort(key=lambda chunk: -chunk[4])
        return [
            LargeAllocation(
                size=wanted,
                location=self.where(address) or "an unrecorded location",
                device=self.device,
                tag=names[tag] if tag < len(names) else "",
                address=address,
            )
            for _, _, address, _, wanted, _, tag, _ in used[:count]
        ]

    # ---- settings and housekeeping

    def set_limit(self, limit: int | str | None, *, hard: bool = False) -> None:
        """Reserve at most `limit` bytes; None removes the limit.

        If this pool serves NumPy or torch, requests above the limit go to the system allocator,
        unless the limit is `hard`: then they fail with a MemoryError.
        """
        if limit is not None and parse_size(limit) < 1:
            raise BadInput(
                f"cannot use {limit!r} as a limit", expected="at least a byte, or None for no limit"
            )
        self.core.limit = 0 if limit is None else parse_size(limit)
        self.core.hard = int(hard and limit is not None)

    def set_cache_size(self, size: int | str | None) -> None:
        """Keep at most `size` free bytes and release the rest; None keeps all."""
        self.core.cache_limit = 2**64 - 1 if size is None else parse_size(size)
        if size is not None:
            self.empty_cache(parse_size(size))

    def empty_cache(self, keep: int = 0) -> int:
        """Release free memory upstream, all but `keep` bytes of it; returns the bytes released."""
        before = self.reserved_bytes
        while dropped := self.core.drop_free_segments(keep):  # some hundreds at a time
            for address, _ in dropped:
                self._fixed.pop(address, None)
                self.upstream.free(address)
        self.core.give_back_pages(keep)
        return max(0, before - self.reserved_bytes)

    # ---- growing

    def _add_range(self, arena: int, least: int = 64 * MB) -> bool:
        """Reserve a range that can grow; smaller ones are tried if address space is short."""
        upstream, length = self.upstream, max(RESERVED[arena], least)
        while isinstance(upstream, Growable) and length >= least:
            try:
                address = upstream.reserve(length)
            except OutOfMemory:
                length //= 4
                continue
            self._ranges.append((address, length))
            self.core.add_segment(arena, upstream.kind, address, 0, length)
            return True
        return False

    def _grow(self, size: int) -> None:
        """Make room for `size` bytes, or raise OutOfMemory. Called by the core, which retries."""
        with self._grow_lock:
            reason: HoldfastError | None = None
            steps = (
                self.core.flush,
                gc.collect,
                self.empty_cache,
                lambda: self._call_back(size),
                lambda: self._spill(size),
            )
            for step in steps:
                step()
                try:
                    if self.core.fits(size) or self._add_segment(size):
                        return
                except OutOfMemory as exc:
                    reason = exc
            raise self._out_of_memory(size, reason) from reason

    def _add_segment(self, size: int) -> bool:
        if isinstance(self.upstream, Growable):
            return self._add_another_range(size)
        least = -(-max(size, 1) // SEGMENT) * SEGMENT
        small = size <= MB
        room = self.core.limit - self.reserved_bytes if self.core.limit else None
        for length in dict.fromkeys((least if small else max(least, 8 * MB), least)):
            if room is not None and length > room:
                continue
            try:
                address = self.upstream.allocate(length)
            except OutOfMemory:
                if length == least:
                    raise
                continue
            self._fixed[address] = length
            self.core.add_segment(int(not small), FIXED, address, length, length)
            return True
        return False

    def _add_another_range(self, size: int) -> bool:
        """Add a range if the last one has ended, and not the memory or the limit."""
        arena = int(size > MB)
        for _, length, reserved, own, _ in self.core.segments():
            if own == arena and reserved - length >= size + SEGMENT:
                return False
        if self.core.limit and self.reserved_bytes + size > self.core.limit:
            return False
        return self._add_range(arena, -(-(size + SEGMENT) // SEGMENT) * SEGMENT)

    def _call_back(self, size: int) -> None:
        for callback in [*self.on_pressure, *_on_pressure]:
            try:
                callback(self, size)
            except Exception as exc:  # noqa: BLE001 - other callbacks may still help
                warnings.warn(
                    f"{callback!r}, called because memory ran out, failed: {exc!r}",
                    RuntimeWarning,
                    stacklevel=2,
                )
        self.empty_cache()  # freed memory counts against the limit until its pages are released

    def _spill(self, size: int) -> None:
        if self.spill is not None:
            self.spill(size)
            self.empty_cache()

    def _out_of_memory(self, size: int, reason: HoldfastError | None) -> OutOfMemory:
        c = self.core.counters()
        limit = self.core.limit
        what = (
            f"cannot allocate {format_bytes(size)} on {self.device}: "
            f"{format_bytes(c['allocated'])} are in use in {c['live']} blocks"
        )
        if limit:
            what += f", the limit of {self.name} is {format_bytes(limit)}"
        if reason is not None:
            what += f"; {reason.what}"
        holders = self.holders(10)
        if holders:
            what += "\n  largest holders:" + "".join(f"\n    {holder}" for holder in holders)
        return OutOfMemory(
            what,
            expected=f"room for {format_bytes(size)} after collecting garbage, emptying the cache "
            "and calling every callback",
            hint="free one of these blocks, or raise the limit; "
            "enable_memory_debugging(True) records where blocks come from",
        )


_on_pressure: list[Callable[[Pool, int], object]] = []


def on_pressure(callback: Callable[[Pool, int], object]) -> Callable[[], None]:
    """Call `callback(pool, size)` when a pool has no room; returns the function to undo that."""
    if not callable(callback):
        raise BadInput(f"cannot call {callback!r}", expected="a function of a pool and a size")
    _on_pressure.append(callback)

    def unregister() -> None:
        if callback in _on_pressure:
            _on_pressure.remove(callback)

    return unregister


def double_free_error(what: str, history: str = "") -> DoubleFree:
    return DoubleFree(
        f"{what} was freed before{history}",
        expected="a block that is in use",
        hint="free a block once, or drop every reference to it instead",
    )


def free_error(pool: Pool, address: int) -> HoldfastError:
    """The error for an address that is not the start of a block in use."""
    state = pool.core.state(address)
    if state == "free":
        return double_free_error(f"the block at {address:#x} of {pool.name}")
    where = "lies inside a block of" if state == "inside" else "was not allocated by"
    return ForeignPointer(
        f"{address:#x} {where} {pool.name}",
        expected="the address that allocate() returned",
    )


def live_pools() -> list[Pool]:
    """Every pool of this process, oldest first, and dropped pools with blocks still in use."""
    with _watch_lock:
        found = [*_pools]
        for entry in _remains[:]:
            reference, state = entry
            core = reference()
            if core is None:
                _remains.remove(entry)
            else:
                left = object.__new__(Pool)
                left.__dict__.update(state, core=core)
                found.append(left)
    return sorted(found, key=lambda pool: pool.number)


def _keep_remains(state: dict[str, Any]) -> None:
    """When a pool is dropped with blocks in use, keep its state for statistics."""
    core = state.pop("core")
    if core.counters()["live"]:
        _remains.append((weakref.ref(core), state))


def watch_pools(log: Any, place_of: Callable[[Pool], int] = lambda pool: 0) -> None:
    """Log the events of all pools, present and future; None stops that."""
    global _watcher
    with _watch_lock:
        _watcher = None if log is None else (log, place_of)
        for pool in live_pools():
            if log is None:
                pool.core.watch(None, 0)
            elif _can_write(pool, log):
                pool.core.watch(log, place_of(pool))
    notify_watch()


def is_recorded() -> bool:
    """Whether the events of pools are being logged."""
    return _watcher is not None


def _register(pool: Pool) -> None:
    with _watch_lock:
        _pools.add(pool)
        if _watcher is not None and _can_write(pool, _watcher[0]):
            pool.core.watch(_watcher[0], _watcher[1](pool))


def _can_write(pool: Pool, log: Any) -> bool:
    return isinstance(log, native_build.module_of(pool.core).Log)


def _weak_grow(pool: Pool) -> Callable[[int], None]:
    """`_grow` of a pool that it does not keep alive."""
    reference = weakref.ref(pool)

    def grow(size: int) -> None:
        there = reference()
        if there is None:
            raise OutOfMemory("the pool of this memory is gone", expected="a pool that is kept")
        there._grow(size)

    return grow


def _weak_trim(pool: Pool) -> Callable[[int], int]:
    """Shrinks the cache of a pool; if the pool is gone, the last block releases all."""
    reference = weakref.ref(pool)

    def trim(keep: int) -> int:
        there = reference()
        return 0 if there is None else there.empty_cache(keep)

    return trim


def _free_upstream(upstream: Any, ranges: list[tuple[int, int]], fixed: dict[int, int]) -> None:
    for address, length in ranges:
        upstream.unreserve(address, length)
    for address in fixed:
        upstream.free(address)


def parse_size(size: int | str) -> int:
    """A size in bytes from an int or a text such as "2GB". Raises BadInput."""
    found = parse_bytes(size) if isinstance(size, str) else size
    if not isinstance(found, int) or found < 0:
        raise BadInput(f"cannot use {size!r} as a size", expected="bytes from 0 up, such as '2GB'")
    return found
