"""A pool as a resource: memory that was freed is handed out again.

Covers: a core over an upstream resource, growing, giving back, who may watch, what to do when
memory runs out.  Leaves to others: finding room (core), blocks for people (memory_pool).
Promise: memory goes back upstream when the pool and every block of it are gone, not before.

When there is no room, in this order: free neighbours are joined, the upstream is asked, Python's
garbage is collected, the cache is emptied, callbacks (`on_pressure`) are called, blocks that may
move are spilled; then an error lists the ten largest holders.
"""

from __future__ import annotations

import gc
import itertools
import os
import threading
import warnings
import weakref
from collections.abc import Callable
from typing import Any

from holdfast.base.errors import BadInput, DoubleFree, ForeignPointer, HoldfastError, OutOfMemory
from holdfast.base.offering import offer_once
from holdfast.base.units import format_bytes, parse_bytes
from holdfast.memory import compiled, tags
from holdfast.memory.adaptors import Adaptor
from holdfast.memory.arenas import FIXED
from holdfast.memory.core import USED
from holdfast.memory.hooks import tell_watch
from holdfast.memory.resource import Growable, Host, Resource, checked
from holdfast.memory.stats import LargeAllocation, MemoryStats

MB = 1 << 20
SEGMENT = 2 * MB  # what a segment is a multiple of
# Of address space for each arena, which costs nothing; where it does not last, there is a second.
RESERVED = (16 << 30, 64 << 30)
_numbers = itertools.count(1)
_pools: weakref.WeakSet[Pool] = weakref.WeakSet()
_remains: list[tuple[weakref.ref[Any], dict[str, Any]]] = []
_watch_lock = threading.RLock()
_watcher: tuple[Any, Callable[[Pool], int]] | None = None


class Pool(Adaptor):
    """Hands out parts of what it gets from `upstream`, and hands them out again."""

    def __init__(
        self, upstream: Resource | None = None, *, name: str = "", core: Any = None
    ) -> None:
        super().__init__(Host() if upstream is None else upstream)
        self.number = next(_numbers)
        self.name = name or f"pool {self.number}"
        self.core: Any = (core or compiled.core()).Core()
        self.core.host = int(self.device in ("cpu", "nowhere"))
        self.core.pinned = int(self.pinned)
        self.on_pressure: list[Callable[[Pool, int], object]] = []
        self.spill: Callable[[int], int] | None = None  # bytes wanted -> bytes freed
        self.where: Callable[[int], str | None] = lambda address: None  # who holds it
        self._ranges: list[tuple[int, int]] = []
        self._fixed: dict[int, int] = {}
        self._grow_lock = threading.RLock()
        self.core.grow = _weakly(self, "_grow")
        # Not at exit: arrays over this memory may still be looked at then.
        end = weakref.finalize(self.core, _return, self.upstream, self._ranges, self._fixed)
        end.atexit = False
        weakref.finalize(self, _leave, self.__dict__).atexit = False
        if isinstance(self.upstream, Growable):
            for arena in (0, 1):
                self._add_range(arena)
        else:
            self.core.trim = _if_there(self)
        _register(self)
        offer_once()

    # ---- the protocol of a resource

    def allocate(self, size: int) -> int:
        """The address of `size` bytes, a multiple of 512. Raises OutOfMemory."""
        return self.core.take(checked(size))

    def free(self, address: int) -> None:
        """Take a block back. Raises DoubleFree or ForeignPointer; nothing is changed then."""
        if self.core.give(int(address)) < 0:
            raise misfreed(self, int(address))

    def owns(self, address: int) -> bool:
        """Whether `address` lies in memory of this pool."""
        return self.core.owns(int(address))

    # ---- figures

    @property
    def allocated_bytes(self) -> int:
        """Bytes that were asked for and not given back."""
        return self.core.counters()["allocated"]

    @property
    def peak_allocated_bytes(self) -> int:
        """The most of that at once."""
        return self.core.counters()["peak_allocated"]

    @property
    def reserved_bytes(self) -> int:
        """Bytes got from upstream."""
        return self.core.counters()["reserved"]

    @property
    def peak_reserved_bytes(self) -> int:
        """The most of that at once."""
        return self.core.counters()["peak_reserved"]

    def stats(self) -> MemoryStats:
        """All figures at one moment."""
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
        """The blocks in use, largest first, with where they came from as far as that is known."""
        names = tags.names()
        used = [chunk for chunk in self.core.chunks() if chunk[5] == USED]
        used.sort(key=lambda chunk: -chunk[4])
        return [
            LargeAllocation(
                size=wanted,
                location=self.where(address) or "a place that was not recorded",
                device=self.device,
                tag=names[tag] if tag < len(names) else "",
                address=address,
            )
            for _, _, address, _, wanted, _, tag, _ in used[:count]
        ]

    # ---- settings and housekeeping

    def set_limit(self, limit: int | str | None, *, hard: bool = False) -> None:
        """Reserve at most so many bytes; None takes the limit away.

        Where this pool is under NumPy or torch, what it has no room for comes from the system, as
        before; a `hard` limit refuses it with a MemoryError.
        """
        if limit is not None and bytes_of(limit) < 1:
            raise BadInput(
                f"cannot use {limit!r} as a limit", expected="at least a byte, or None for no limit"
            )
        self.core.limit = 0 if limit is None else bytes_of(limit)
        self.core.hard = int(hard and limit is not None)

    def set_cache_size(self, size: int | str | None) -> None:
        """Keep at most so many free bytes; what is more goes back. None: as many as there are."""
        self.core.cache_limit = 2**64 - 1 if size is None else bytes_of(size)
        if size is not None:
            self.empty_cache(bytes_of(size))

    def empty_cache(self, keep: int = 0) -> int:
        """Give free memory back to upstream until at most `keep` bytes of it are left.

        Returns how many bytes went back. Blocks in use stay where they are.
        """
        before = self.reserved_bytes
        while dropped := self.core.drop_free_segments(keep):  # some hundreds at a time
            for address, _ in dropped:
                self._fixed.pop(address, None)
                self.upstream.free(address)
        self.core.give_back_pages(keep)
        return max(0, before - self.reserved_bytes)

    # ---- growing

    def _add_range(self, arena: int, least: int = 64 * MB) -> bool:
        """A range that can grow; smaller ones are tried as long as the address space is short."""
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
        """Room for `size` bytes, or OutOfMemory. Called by the core, which then tries again."""
        with self._grow_lock:
            reason: HoldfastError | None = None
            for step in (self._nothing, self._garbage, self._cached, self._callbacks, self._spill):
                step(size)
                try:
                    if self.core.fits(size) or self._add_segment(size):
                        return
                except OutOfMemory as exc:
                    reason = exc
            raise self._exhausted(size, reason) from reason

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
        """Where it is the range that has ended, and not the memory or the limit."""
        arena = int(size > MB)
        for _, length, reserved, own, _ in self.core.segments():
            if own == arena and reserved - length >= size + SEGMENT:
                return False
        if self.core.limit and self.reserved_bytes + size > self.core.limit:
            return False
        return self._add_range(arena, -(-(size + SEGMENT) // SEGMENT) * SEGMENT)

    def _nothing(self, size: int) -> None:
        self.core.flush()

    def _garbage(self, size: int) -> None:
        gc.collect()

    def _cached(self, size: int) -> None:
        self.empty_cache()

    def _callbacks(self, size: int) -> None:
        for callback in [*self.on_pressure, *_on_pressure]:
            try:
                callback(self, size)
            except Exception as exc:  # noqa: BLE001 - whoever it is, others may still help
                warnings.warn(
                    f"{callback!r}, called because memory ran out, failed: {exc!r}",
                    RuntimeWarning,
                    stacklevel=2,
                )
        self.empty_cache()  # what they freed counts against the limit until its pages go

    def _spill(self, size: int) -> None:
        if self.spill is not None:
            self.spill(size)
            self.empty_cache()

    def _exhausted(self, size: int, reason: HoldfastError | None) -> OutOfMemory:
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
            "and asking every callback",
            hint="free one of these blocks, or raise the limit; "
            "enable_memory_debugging(True) records where blocks come from",
        )


_on_pressure: list[Callable[[Pool, int], object]] = []


def on_pressure(callback: Callable[[Pool, int], object]) -> Callable[[], None]:
    """Have `callback(pool, size)` called when a pool has no room; returns what takes it back."""
    if not callable(callback):
        raise BadInput(f"cannot call {callback!r}", expected="a function of a pool and a size")
    _on_pressure.append(callback)

    def take_back() -> None:
        if callback in _on_pressure:
            _on_pressure.remove(callback)

    return take_back


def misfreed(pool: Pool, address: int) -> HoldfastError:
    """The error for an address that is not the start of a block in use."""
    state = pool.core.state(address)
    if state == "free":
        return DoubleFree(
            f"the block at {address:#x} was given back to {pool.name} before",
            expected="a block that is in use",
            hint="give a block back once, or drop every reference to it instead",
        )
    where = "lies inside a block of" if state == "inside" else "was not handed out by"
    return ForeignPointer(
        f"{address:#x} {where} {pool.name}",
        expected="the address that allocate() returned",
    )


def live_pools() -> list[Pool]:
    """Every pool of this process, oldest first; also one that is gone but for blocks in use."""
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


def _leave(state: dict[str, Any]) -> None:
    """A pool is gone. Where blocks of it are in use, what is known about it is kept for figures."""
    core = state.pop("core")
    if core.counters()["live"]:
        _remains.append((weakref.ref(core), state))


def watch_pools(log: Any, place_of: Callable[[Pool], int] = lambda pool: 0) -> None:
    """Write the events of all pools, also of those to come, to `log`; None stops that."""
    global _watcher
    with _watch_lock:
        _watcher = None if log is None else (log, place_of)
        for pool in live_pools():
            if log is None:
                pool.core.watch(None, 0)
            elif _can_write(pool, log):
                pool.core.watch(log, place_of(pool))
    tell_watch()


def recorded() -> bool:
    """Whether events of pools are written to a log just now."""
    return _watcher is not None


def _renew_lock() -> None:
    """In the child of a fork: another thread may have held the lock, and is not here."""
    global _watch_lock
    _watch_lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_lock)


def _register(pool: Pool) -> None:
    with _watch_lock:
        _pools.add(pool)
        if _watcher is not None and _can_write(pool, _watcher[0]):
            pool.core.watch(_watcher[0], _watcher[1](pool))


def _can_write(pool: Pool, log: Any) -> bool:
    """Whether the log is of the same core, the compiled one or Python's."""
    return isinstance(log, compiled.module_of(pool.core).Log)


def _weakly(pool: Pool, name: str) -> Callable[..., Any]:
    """A method of a pool that does not keep the pool alive."""
    reference = weakref.ref(pool)

    def call(*arguments: Any) -> Any:
        there = reference()
        if there is None:
            raise OutOfMemory("the pool of this memory is gone", expected="a pool that is kept")
        return getattr(there, name)(*arguments)

    return call


def _if_there(pool: Pool) -> Callable[[int], int]:
    """Shrink the cache of a pool; of one that is gone, all goes back with the last block."""
    reference = weakref.ref(pool)

    def trim(keep: int) -> int:
        there = reference()
        return 0 if there is None else there.empty_cache(keep)

    return trim


def _return(upstream: Any, ranges: list[tuple[int, int]], fixed: dict[int, int]) -> None:
    for address, length in ranges:
        upstream.unreserve(address, length)
    for address in fixed:
        upstream.free(address)


def bytes_of(size: int | str) -> int:
    """A size in bytes, as a number or as text. Raises BadInput."""
    found = parse_bytes(size) if isinstance(size, str) else size
    if not isinstance(found, int) or found < 0:
        raise BadInput(f"cannot use {size!r} as a size", expected="bytes from 0 up, such as '2GB'")
    return found
