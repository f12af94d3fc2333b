"""`MemoryPool` and `CPUMemoryPool`: blocks that free themselves.

A block lives as long as anything refers to it, including arrays and tensors over it. Freeing a
block by hand while it has open views raises InUse and changes nothing.
"""

from __future__ import annotations

import contextlib
import gc
import re
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from holdfast.base.errors import BadInput, DoubleFree, ForeignPointer, InUse, OutOfMemory
from holdfast.base.threads import renew_in_child
from holdfast.base.units import format_bytes, parse_bytes
from holdfast.memory.core import native_build, tags
from holdfast.memory.core.pool_core import FREE, QUICK, USED
from holdfast.memory.core.protocols import Block, BlockInfo, Watcher
from holdfast.memory.core.stats import LargeAllocation, MemoryStats
from holdfast.memory.hooks.import_hooks import notify_watch
from holdfast.memory.plan.planned_allocator import Planned
from holdfast.memory.pools.movable import Movable, Movables
from holdfast.memory.pools.pool import Pool, counter, double_free_error, free_error, is_recorded
from holdfast.memory.resources.resource import Host, Pinned, Resource


class _Step:
    """While a step runs: allocates blocks of its thread at their planned offsets."""

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
_watch: Callable[[MemoryPool], Watcher] | None = None  # also for future pools
# For the set of pools and their routes; no callbacks run under it.
_lock = renew_in_child(threading.RLock())


class MemoryPool:
    """A pool of one device that reuses freed blocks.

        pool = MemoryPool("cpu")
        block = pool.allocate("64MB")
        array = block.array("float32", (4096, 4096))     # no copy; keeps the block alive

    `resource` provides the memory (`Limit(Host(), "2GB")`, `Numa(1)`), by default host pages.
    `limit` is the most bytes it may reserve, `cache_size` the most it keeps when free.
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
        self._route: Callable[[MemoryPool, int], Block] | None = None  # None: ask the core
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
            self._attach_watcher(watch)

    def __repr__(self) -> str:
        c = self._core.counters()
        return (
            f"<{type(self).__name__} {self.name!r} on {self.pool.device}: "
            f"{format_bytes(c['allocated'])} in {c['live']} blocks, "
            f"{format_bytes(c['reserved'])} reserved>"
        )

    @property
    def name(self) -> str:
        """The name of the pool in reports."""
        return self.pool.name

    # ---- blocks

    def allocate(self, size: int | str) -> Block:
        """A block of `size` bytes (or "2GB"). Raises OutOfMemory, naming the largest holders."""
        route = self._route
        if route is None:
            try:
                return self._core.allocate(size)
            except (TypeError, OverflowError):
                return self._core.allocate(_size(size))
        return route(self, _size(size))

    def deallocate(self, block: Block | int) -> None:
        """Free a block now. Raises InUse if it has open views, DoubleFree, or ForeignPointer."""
        try:
            if isinstance(block, int):
                self._give(block)
                return
            if block.exports and not block.freed:
                raise _in_use_error(block)
            if self._core.give_block(block) < 0:  # not a live block of the core itself
                if block.freed:
                    raise double_free_error(repr(block))
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
            raise free_error(self.pool, address)

    def allocate_movable(self, size: int | str, *, spill: bool = True) -> Movable:
        """A block that may move or be spilled to disk while nobody holds it (see `Movable`)."""
        return self._movables.make(_size(size), spill)

    # ---- plan mode

    @contextlib.contextmanager
    def step(self) -> Iterator[Planned]:
        """One of many equal steps: the first is recorded and packed, the others use that layout.

        Applies to blocks that this thread allocates inside; see `Planned`.
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
        """A block at `address` that `owner.give(address)` frees."""
        if _watch is not None and self.watcher is not None:
            return self.watcher.adopt(self, owner, address, size)
        module = native_build.module_of(self._core)
        return module.make_block(owner, address, size, bool(self._core.host), self.pool.pinned)

    # ---- who allocates

    def _choose_route(self) -> None:
        """Choose what allocate() calls: nothing (closed), the step, the watcher or the core."""
        with _lock:
            if self._closed:
                self._route = _refuse
            elif self._step is not None:
                self._route = self._step.allocate
            elif _watch is not None and self.watcher is not None:
                self._route = self.watcher.allocate
            else:
                self._route = None

    def _attach_watcher(self, watch: Callable[[MemoryPool], Watcher]) -> None:
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
        """The addresses of free chunks, by size."""
        found: dict[int, list[int]] = {}
        for _, _, address, size, _, state, _, _ in self._core.chunks():
            if state in (FREE, QUICK):
                found.setdefault(size, []).append(address)
        return found

    total_allocated = counter("allocated", "Requested bytes of the blocks in use.")
    peak_allocated = counter("peak_allocated", "The peak of `total_allocated`.")

    def stats(self) -> MemoryStats:
        """All statistics at one moment."""
        return self.pool.stats()

    def holders(self, count: int | None = None) -> list[LargeAllocation]:
        """The blocks in use, largest first."""
        return self.pool.holders(count)

    def reset_peaks(self) -> None:
        self._core.reset_peaks()

    # ---- housekeeping

    def empty_cache(self, keep: int | str = 0) -> int:
        """Release free memory until at most `keep` bytes of it are left.

        Returns the bytes released. A plan is dropped too, if none of its blocks is in use.
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
        """Merge free neighbours, move movable blocks down, release whole free pages.

        Returns the bytes released. Other blocks stay where they are: their address may be known.
        """
        self._core.flush()
        self._movables.move_down()
        return self.pool.empty_cache()

    def set_limit(self, limit: int | str | None, *, hard: bool = False) -> None:
        """Reserve at most `limit` bytes; None removes the limit. `hard`: see `Pool.set_limit`."""
        self.pool.set_limit(limit, hard=hard)

    def set_cache_size(self, size: int | str | None) -> None:
        """Keep at most `size` free bytes; None keeps all."""
        self.pool.set_cache_size(size)

    def close(self) -> None:
        """Release all free memory; blocks in use stay valid, and `allocate` raises OutOfMemory."""
        self.empty_cache()
        self._closed = True
        self._choose_route()


class CPUMemoryPool(MemoryPool):
    """Host memory; some of it pinned, for faster copies to a GPU."""

    def __init__(self, *, use_pinned_memory: bool = False, **options: Any) -> None:
        super().__init__("cpu", **options)
        self.use_pinned_memory = use_pinned_memory
        self._pinned_pool: MemoryPool | None = None

    def allocate(self, size: int | str) -> Block:
        """A block of `size` bytes, pinned if `use_pinned_memory` is set."""
        if self.use_pinned_memory:
            return self.allocate_pinned(size)
        return super().allocate(size)

    def allocate_pinned(self, size: int | str) -> Block:
        """A block with locked pages. Raises OutOfMemory if they cannot be locked."""
        return self._pinned().allocate(size)

    def _pinned(self) -> MemoryPool:
        if self._pinned_pool is None:
            self._pinned_pool = MemoryPool("cpu", resource=Pinned(), name=f"{self.name}, pinned")
        return self._pinned_pool

    def deallocate(self, block: Block | int) -> None:
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
        return super().stats() + (self._pinned_pool.stats() if self._pinned_pool else MemoryStats())

    def close(self) -> None:
        """Release all free memory; from then on no block can be allocated, pinned or not."""
        super().close()
        self.use_pinned_memory = False
        self._pinned().close()

    def empty_cache(self, keep: int | str = 0) -> int:
        """Release free memory, pinned memory included."""
        pinned = self._pinned_pool.empty_cache() if self._pinned_pool else 0
        return pinned + super().empty_cache(keep)


def memory_pools() -> list[MemoryPool]:
    """Every live `MemoryPool` of this process, oldest first."""
    with _lock:
        found = list(_all)
    return sorted(found, key=lambda pool: pool.pool.number)


def is_watched() -> bool:
    """Whether a recording or memory debugging observes every block of the pools."""
    return _watch is not None or is_recorded()


def is_debugged() -> bool:
    """Whether memory debugging makes the blocks of the pools."""
    return _watch is not None


def watch_all(watch: Callable[[MemoryPool], Watcher] | None) -> None:
    """Have `watch(pool)` make the blocks of all pools, present and future; None stops it."""
    global _watch
    _watch = watch
    for pool in memory_pools():
        if watch is not None:
            pool._attach_watcher(watch)
        else:
            pool._choose_route()
    notify_watch()


def _default_resource(device_type: str) -> Resource:
    if device_type == "cpu":
        return Host()
    found = re.fullmatch(r"(cuda|opencl)(?::(\d+))?", str(device_type))
    if found and found[1] == "cuda":
        from holdfast.memory.resources.torch_cuda import Cuda

        return Cuda(int(found[2] or 0))
    if found:
        from holdfast.memory.resources.opencl import resource

        return resource(int(found[2] or 0))
    raise BadInput(
        f"there is no pool for the device {device_type!r}",
        expected="cpu, cuda, cuda:N, opencl or opencl:N",
    )


def _refuse(pool: MemoryPool, size: int) -> Block:
    raise OutOfMemory("this pool is closed", expected="a pool that is open")


def _in_use_error(block: Block) -> InUse:
    views = "1 view" if block.exports == 1 else f"{block.exports} views"
    return InUse(
        f"cannot free {block!r}: it has {views}",
        expected="a block without an array, tensor or memoryview over it",
        hint="delete the views first, or drop the block and let the last view free it",
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
