"""`MemoryPool`: memory for people, as blocks that free themselves.

Covers: the pools of specification 004 on the CPU, blocks, statistics, the cache, plan mode.
Leaves to others: the addresses (pool, core), a GPU (cuda), debugging (debug).
Promise: a block lives as long as anything refers to it, an array or a tensor over it included. One
that is given back by hand while an array looks at it is refused, and nothing changes.
"""

from __future__ import annotations

import contextlib
import gc
import os
import re
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from holdfast.base.errors import BadInput, DoubleFree, ForeignPointer, InUse, OutOfMemory
from holdfast.base.units import format_bytes, parse_bytes
from holdfast.memory import compiled, tags
from holdfast.memory.core import FREE, QUICK, USED
from holdfast.memory.hooks import tell_watch
from holdfast.memory.movable import Movable, Movables
from holdfast.memory.planned import Planned
from holdfast.memory.pool import Pool, misfreed, recorded
from holdfast.memory.protocols import Block, BlockInfo, Watcher
from holdfast.memory.resource import Host, Pinned, Resource
from holdfast.memory.stats import LargeAllocation, MemoryStats


class _Step:
    """While a step lasts: blocks for its thread at the places of a plan."""

    def __init__(self, planned: Planned) -> None:
        self._planned = planned
        self._thread = threading.get_ident()

    def allocate(self, pool: MemoryPool, size: int) -> Block:
        if threading.get_ident() != self._thread:
            return pool._allocate_unplanned(size)
        return pool.make_block(self, self._planned.allocate(size), size)

    def give(self, address: int) -> None:
        self._planned.free(address)


_all: weakref.WeakSet[MemoryPool] = weakref.WeakSet()
_watch: Callable[[MemoryPool], Watcher] | None = None  # for pools to come
_lock = threading.RLock()  # for the list of pools and their routes; nothing is called inside


class MemoryPool:
    """Blocks of one device, used again: cut from larger ones, joined with their neighbours.

        pool = MemoryPool("cpu")
        block = pool.allocate("64MB")
        array = block.array("float32", (4096, 4096))     # no copy; keeps the block

    `resource` is what the memory comes from (`Limit(Host(), "2GB")`, `Numa(1)`), by default the
    host's pages. `limit` is the most it may reserve, `cache_size` the most it keeps when free.
    """

    def __init__(
        self,
        device_type: str = "cpu",
        *,
        resource: Resource | None = None,
        name: str = "",
        limit: int | str | None = None,
        cache_size: int | str | None = None,
    ) -> None:
        self.device_type = device_type
        upstream = resource if resource is not None else _default_resource(device_type)
        self.pool = upstream if isinstance(upstream, Pool) else Pool(upstream, name=name)
        self.pool.name = name or self.pool.name
        self._core = self.pool.core
        self.watcher: Watcher | None = None
        self._route: Callable[[MemoryPool, int], Block] | None = None  # None: the core's own way
        self._planned: Planned | None = None
        self._step: _Step | None = None
        self._closed = False
        self._movables = Movables(self)
        self.pool.spill = self._movables.spill
        if limit is not None:
            self.pool.set_limit(limit)
        if cache_size is not None:
            self.pool.set_cache_size(cache_size)
        with _lock:
            _all.add(self)
        watch = _watch
        if watch is not None:
            self._be_watched(watch)

    def __repr__(self) -> str:
        c = self._core.counters()
        return (
            f"<{type(self).__name__} {self.name!r} on {self.pool.device}: "
            f"{format_bytes(c['allocated'])} in {c['live']} blocks, "
            f"{format_bytes(c['reserved'])} reserved>"
        )

    @property
    def name(self) -> str:
        """What the pool is called in reports."""
        return self.pool.name

    # ---- blocks

    def allocate(self, size: int | str) -> Block:
        """A block of `size` bytes ("2GB" is fine). Raises OutOfMemory that names the holders."""
        route = self._route
        if route is None:
            try:
                return self._core.allocate(size)
            except (TypeError, OverflowError):
                return self._core.allocate(_size(size))
        return route(self, _size(size))

    def deallocate(self, block: Block | int) -> None:
        """Give a block back before its last reference goes.

        Raises InUse where an array or a tensor looks at it, DoubleFree, or ForeignPointer.
        """
        try:
            if isinstance(block, int):
                self._give(block)
                return
            if block.exports and not block.freed:
                raise _looked_at(block)
            if self._core.give_block(block) < 0:  # not a block of the core itself, or not any more
                if block.freed:
                    raise _given_before(block)
                self._give(block.address)
            block.detach()
        except (DoubleFree, ForeignPointer) as exc:
            if self.watcher is None:
                raise
            raise self.watcher.explain(exc, block) from None

    def _give(self, address: int) -> None:
        if self.watcher is not None and self.watcher.give(self, address):
            return
        if self._planned is not None:
            self._planned.free(address)  # passes on what it did not serve
        elif self._core.give(address) < 0:
            raise misfreed(self.pool, address)

    def allocate_movable(self, size: int | str, *, spill: bool = True) -> Movable:
        """A block that may be moved or written to disk while nobody holds it (see `Movable`)."""
        return self._movables.make(_size(size), spill)

    # ---- plan mode

    @contextlib.contextmanager
    def step(self) -> Iterator[Planned]:
        """One of many like steps: the first is recorded and packed, the rest is served from that.

        Blocks that this thread allocates inside go by the plan; see `Planned`.
        """
        if self._planned is None:
            self._planned = Planned(self.pool)
        planned = self._planned
        with planned.step():
            try:
                self._step = _Step(planned)
                self._choose_route()
                yield planned
            finally:
                self._step = None
                self._choose_route()

    def make_block(self, owner: Any, address: int, size: int) -> Block:
        """A block at `address` that `owner.give(address)` takes back."""
        if _watch is not None and self.watcher is not None:
            return self.watcher.adopt(self, owner, address, size)
        module = compiled.module_of(self._core)
        return module.make_block(owner, address, size, bool(self._core.host), self.pool.pinned)

    # ---- ways to a block

    def _choose_route(self) -> None:
        """Have allocate() go the way that the state of the pool asks for."""
        with _lock:
            if self._closed:
                self._route = _refuse
            elif self._step is not None:
                self._route = self._step.allocate
            elif _watch is not None and self.watcher is not None:
                self._route = self.watcher.allocate
            else:
                self._route = None

    def _be_watched(self, watch: Callable[[MemoryPool], Watcher]) -> None:
        self.watcher = watch(self)
        self._choose_route()

    def _allocate_unplanned(self, size: int) -> Block:
        if _watch is not None and self.watcher is not None:
            return self.watcher.allocate(self, size)
        return self._core.allocate(size)

    # ---- figures

    @property
    def allocated_blocks(self) -> dict[int, BlockInfo]:
        """Every block in use, by its address."""
        names = tags.names()
        return {
            address: BlockInfo(
                wanted, size, names[tag] if tag < len(names) else "", self.pool.where(address)
            )
            for _, _, address, size, wanted, state, tag, _ in self._core.chunks()
            if state == USED
        }

    @property
    def free_blocks(self) -> dict[int, list[int]]:
        """The addresses of free pieces, by their size."""
        found: dict[int, list[int]] = {}
        for _, _, address, size, _, state, _, _ in self._core.chunks():
            if state in (FREE, QUICK):
                found.setdefault(size, []).append(address)
        return found

    @property
    def total_allocated(self) -> int:
        """Bytes handed out now."""
        return self._core.counters()["allocated"]

    @property
    def peak_allocated(self) -> int:
        """The most bytes handed out at once."""
        return self._core.counters()["peak_allocated"]

    def stats(self) -> MemoryStats:
        """All figures at one moment."""
        return self.pool.stats()

    def holders(self, count: int | None = None) -> list[LargeAllocation]:
        """The blocks in use, largest first."""
        return self.pool.holders(count)

    def reset_peaks(self) -> None:
        """Peaks begin again at what is there now."""
        self._core.reset_peaks()

    # ---- housekeeping

    def empty_cache(self, keep: int | str = 0) -> int:
        """Give free memory back until at most `keep` bytes of it are left.

        Returns how many bytes went back. A plan goes too, where no block of it is in use.
        """
        if self._planned is not None and self._step is None and not self._planned.live_blocks:
            self._planned.close()
            self._planned = None
        return self.pool.empty_cache(_size(keep))

    def collect_garbage(self) -> int:
        """Collect Python's garbage; returns how many bytes of this pool that freed."""
        before = self.total_allocated
        gc.collect()
        self._core.flush()
        return max(0, before - self.total_allocated)

    def compact(self) -> int:
        """Join free neighbours, move movable blocks down, give whole free pages back.

        Returns how many bytes went back. Blocks that are not movable stay where they are: somebody
        may know their address.
        """
        self._core.flush()
        self._movables.move_down()
        return self.pool.empty_cache()

    def set_limit(self, limit: int | str | None, *, hard: bool = False) -> None:
        """Reserve at most so many bytes; None takes the limit away. `hard`: see `Pool`."""
        self.pool.set_limit(limit, hard=hard)

    def set_cache_size(self, size: int | str | None) -> None:
        """Keep at most so many free bytes; None keeps all."""
        self.pool.set_cache_size(size)

    def close(self) -> None:
        """Give back all that is free. Blocks in use keep theirs until they are freed.

        Raises OutOfMemory from the next `allocate` on.
        """
        self.empty_cache()
        self._closed = True
        self._choose_route()


class CPUMemoryPool(MemoryPool):
    """Memory of the host; some of it pinned, for copies to a GPU at the speed of the link."""

    def __init__(self, *, use_pinned_memory: bool = False, **options: Any) -> None:
        super().__init__("cpu", **options)
        self.use_pinned_memory = use_pinned_memory
        self._pinned_pool: MemoryPool | None = None

    def allocate(self, size: int | str) -> Block:
        """A block of `size` bytes, pinned where `use_pinned_memory` is set."""
        if self.use_pinned_memory:
            return self.allocate_pinned(size)
        return super().allocate(size)

    def allocate_pinned(self, size: int | str) -> Block:
        """A block whose pages stay in memory. Raises OutOfMemory where they cannot be locked."""
        if self._pinned_pool is None:
            name = f"{self.name}, pinned"
            self._pinned_pool = MemoryPool("cpu", resource=Pinned(), name=name)
        return self._pinned_pool.allocate(size)

    def deallocate(self, block: Block | int) -> None:
        """Give a block back, pinned or not."""
        if self.is_pinned(block) and self._pinned_pool is not None:
            self._pinned_pool.deallocate(block)
        else:
            super().deallocate(block)

    def is_pinned(self, block: Block | int) -> bool:
        """Whether a block, or the one at an address, is pinned."""
        return self._pinned_pool is not None and self._pinned_pool.pool.owns(int(block))

    @property
    def pinned_blocks(self) -> set[int]:
        """The addresses of pinned blocks in use."""
        return set(self._pinned_pool.allocated_blocks) if self._pinned_pool else set()

    def stats(self) -> MemoryStats:
        """All figures at one moment, pinned memory included."""
        return super().stats() + (self._pinned_pool.stats() if self._pinned_pool else MemoryStats())

    def close(self) -> None:
        """Give back all that is free; no block can be had from then on, pinned or not."""
        super().close()
        self.use_pinned_memory = False
        if self._pinned_pool is None:
            self._pinned_pool = MemoryPool("cpu", resource=Pinned(), name=f"{self.name}, pinned")
        self._pinned_pool.close()

    def empty_cache(self, keep: int | str = 0) -> int:
        """Give free memory back, pinned memory included."""
        pinned = self._pinned_pool.empty_cache() if self._pinned_pool else 0
        return pinned + super().empty_cache(keep)


def memory_pools() -> list[MemoryPool]:
    """Every `MemoryPool` of this process that is still there, oldest first."""
    with _lock:
        found = list(_all)
    return sorted(found, key=lambda pool: pool.pool.number)


def watched() -> bool:
    """Whether a recording or the leak finder looks at every block of the pools just now."""
    return _watch is not None or recorded()


def debugged() -> bool:
    """Whether every block of the pools is made by a watcher just now."""
    return _watch is not None


def watch_all(watch: Callable[[MemoryPool], Watcher] | None) -> None:
    """Have the blocks of all pools, also of those to come, made by `watch(pool)`.

    None: as usual. Watchers that are there still hear of blocks that are given back.
    """
    global _watch
    _watch = watch
    for pool in memory_pools():
        if watch is not None:
            pool._be_watched(watch)
        else:
            pool._choose_route()
    tell_watch()


def _renew_lock() -> None:
    """In the child of a fork: another thread may have held the lock, and is not here."""
    global _lock
    _lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_lock)


def _default_resource(device_type: str) -> Resource:
    if device_type == "cpu":
        return Host()
    if re.fullmatch(r"cuda(:\d+)?", str(device_type)):
        from holdfast.memory.torch_cuda import Cuda

        return Cuda(int(device_type.partition(":")[2] or 0))
    if re.fullmatch(r"opencl(:\d+)?", str(device_type)):
        from holdfast.memory.opencl_resources import resource

        return resource(int(device_type.partition(":")[2] or 0))
    raise BadInput(
        f"there is no pool for the device {device_type!r}",
        expected="cpu, cuda, cuda:N, opencl or opencl:N",
    )


def _refuse(pool: MemoryPool, size: int) -> Block:
    raise OutOfMemory("this pool was closed", expected="a pool that is open")


def _looked_at(block: Block) -> InUse:
    return InUse(
        f"{block!r} cannot be given back: {block.exports} views look at it",
        expected="a block that no array, tensor or memoryview looks at",
        hint="delete them first, or delete the block and let the last of them free it",
    )


def _given_before(block: Block) -> DoubleFree:
    return DoubleFree(
        f"{block!r} was given back before",
        expected="a block that is in use",
        hint="give a block back once, or drop every reference to it instead",
    )


def _size(size: int | str) -> int:
    if isinstance(size, str):
        return parse_bytes(size)
    try:
        found = size.__index__()
    except AttributeError as exc:
        raise BadInput(
            f"cannot allocate {size!r}", expected="a number of bytes, or text such as '2GB'"
        ) from exc
    if not 0 <= found < 2**62:
        most = format_bytes(2**62)
        raise BadInput(f"cannot allocate {found} bytes", expected=f"a size from 0 to {most}")
    return found
