"""What a way to get shared virtual memory has to offer, and what all of them share.

Covers: the interface, checks of sizes, domains and handles, migration in parts, metrics.
Leaves to others: getting and moving memory (`numa`, `opencl`, `retryix`, `simulated`), where it
belongs (placement), who holds what (ledger).
Promise: an operation that fails leaves every allocation whole and counted; nothing is half done.
"""

from __future__ import annotations

import abc
import contextlib
import os
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from holdfast.base.config import Config
from holdfast.base.errors import BadInput, OutOfMemory, Unsupported
from holdfast.base.units import format_bytes, parse_bytes
from holdfast.memory.svm import affinity, locality
from holdfast.memory.svm.allocation import Allocation
from holdfast.memory.svm.ledger import Ledger
from holdfast.memory.svm.model import (
    PAGE_BYTES,
    Chunk,
    Layout,
    Metrics,
    Migration,
    Placement,
    Statistics,
    Where,
)
from holdfast.memory.svm.placement import check_room, domain_of, fits, place
from holdfast.memory.svm.record import Backing, Record

# (bytes done, bytes in all)
Progress = Callable[[int, int], object]
# Asked between parts of a migration: whether to leave it at that
Stop = Callable[[], bool]

CHUNK_BYTES = 16 << 20


class Provider(abc.ABC):
    """A way to get shared virtual memory. Its methods may be called from several threads."""

    name: ClassVar[str]
    simulated: ClassVar[bool] = False
    balances: ClassVar[bool] = True  # whether autobalance has a say in where its memory is

    def __init__(self, config: Config | None = None) -> None:
        """Raises Unsupported, Absent or MissingDependency with the reason where it cannot work."""
        self.config = config or Config.load()
        self.ledger = Ledger(self.name)
        self._taken: weakref.WeakSet[_Taken] = weakref.WeakSet()

    def __repr__(self) -> str:
        return f"<{self.name} provider>"

    # ---- what each does its own way

    @abc.abstractmethod
    def discover(self, refresh: bool = False) -> Layout:
        """The domains and what is free in them now; `refresh` also looks for new ones."""

    @abc.abstractmethod
    def _obtain(self, size: int, placement: Placement) -> Backing:
        """Memory for `size` bytes where `placement` says. Raises OutOfMemory."""

    def on_device(
        self, handle: Allocation, queue: Any = None
    ) -> contextlib.AbstractContextManager[Any]:
        """Within the block, what to pass to a kernel. The host does not look at it meanwhile."""
        raise Unsupported(
            f"memory of {self.name!r} belongs to no device with kernels",
            expected="memory of the provider 'opencl'",
            hint="svm.provider('opencl').alloc(...), or the array() of this one",
        )

    def running_on(self) -> tuple[int, ...]:
        """The CPUs that the work runs on, as far as that is known."""
        return tuple(sorted(os.sched_getaffinity(0))) if hasattr(os, "sched_getaffinity") else ()

    # ---- allocations

    def alloc(
        self,
        size: int | str,
        *,
        domain: int | Sequence[int] | None = None,
        near: str | None = None,
        mode: str | None = None,
        set_affinity: bool = False,
    ) -> Allocation:
        """Memory for `size` bytes ("256MB" is fine), placed by the topology.

        See `placement.place` for `domain`, `near` and `mode`; the reason is in the handle's
        `placement`. With `set_affinity` the threads of this process run beside it until it is
        freed. Raises BadInput or OutOfMemory, and nothing has changed.
        """
        self.ledger.sweep()
        try:
            handle = self._alloc(_size(size), domain, near, mode)
        except OutOfMemory:
            self.ledger.count_refusal()
            raise
        if set_affinity:
            self._bind(handle)
        return handle

    def _alloc(
        self, size: int, domain: int | Sequence[int] | None, near: str | None, mode: str | None
    ) -> Allocation:
        with self.ledger.placing:  # what is free is looked up and taken in one go
            placement = self._place(self._layout(), size, domain, near, mode)
            taken = self._take(_shares(placement, size))
        backing = self._obtain(size, placement)
        try:
            handle = self.ledger.add(backing, size, placement, self._handle)
        except BaseException:
            backing.close()
            raise
        del taken  # it is there, and counted
        return handle

    def _place(
        self,
        layout: Layout,
        size: int,
        domain: int | Sequence[int] | None,
        near: str | None,
        mode: str | None,
    ) -> Placement:
        """Where the memory goes."""
        cpus = self.running_on()
        return place(layout, size, domain=domain, near=near, mode=mode, running_on=cpus)

    def _layout(self) -> Layout:
        """The domains, less what others are about to take."""
        layout, taken = self.discover(), [t.shares for t in self._taken]
        if not taken:
            return layout
        domains = (
            replace(d, free_bytes=max(0, d.free_bytes - sum(t.get(d.id, 0) for t in taken)))
            if d.free_bytes is not None
            else d
            for d in layout.domains
        )
        return replace(layout, domains=tuple(domains))

    def _take(self, shares: dict[int, int]) -> _Taken:
        """So many bytes of each domain are as good as taken, as long as the result lives."""
        taken = _Taken(shares)
        self._taken.add(taken)
        return taken

    def _handle(self, record: Record) -> Allocation:
        return Allocation(self, record)

    def _bind(self, handle: Allocation) -> None:
        try:
            self.set_affinity(handle)
        except BaseException:
            self.free(handle)
            raise

    def set_affinity(self, handle: Allocation) -> affinity.Grant | None:
        """Have the threads of this process run beside the memory until it is freed.

        None where the provider knows no CPUs beside it, or they are made up: then nothing was
        bound.
        """
        record = self.ledger.record(handle)
        with record.lock:
            self.ledger.record(handle)  # another thread may have given it back
            cpus = () if self.simulated else record.placement.cpus
            if record.grant is None and cpus and affinity.supported():
                grant = affinity.Grant(cpus)
                record.grant = grant  # first: what Ctrl-C leaves in the middle goes with it
                try:
                    grant.bind()
                except Unsupported:
                    record.grant = None
                    raise
            return record.grant

    def free(self, handle: Allocation) -> None:
        """Give memory back, and threads that were bound for it.

        Raises DoubleFree, ForeignPointer, or InUse where somebody looks at it or moves it.
        """
        self.ledger.free(self.ledger.record(handle, freeing=True))

    def where(self, handle: Allocation) -> Where:
        """In which domain each page is."""
        record = self.ledger.record(handle)
        with record.lock:
            self.ledger.record(handle)
            return record.backing.where()

    # ---- moving

    def migrate(
        self,
        handle: Allocation,
        from_domain: int,
        to_domain: int,
        *,
        progress: Progress | None = None,
        stop: Stop | None = None,
    ) -> Migration:
        """Move the pages in one domain to another, in parts.

        Between the parts `progress(done, total)` is told in bytes and `stop()` is asked; Ctrl-C
        gets through there too. Whatever happens each page is whole, in the one place or the other,
        and the result says how many moved, and how many could not and why. Raises BadInput for a
        domain that is not there, OutOfMemory where it does not fit, InUse.
        """
        record = self.ledger.record(handle)
        layout = self.discover()
        source, target = domain_of(layout, from_domain), domain_of(layout, to_domain)
        alone = not record.backing.moves_under_views
        with self.ledger.doing(record, "migrated", alone=alone):
            if source.id == target.id:
                return self._migrate(record, source.id, target.id, progress, stop)
            with self.ledger.placing:
                needed = self._room_for(record, source.id, target.id)
                taken = self._take({target.id: needed})
            done = self._migrate(record, source.id, target.id, progress, stop)
            del taken
            return done

    def _room_for(self, record: Record, source: int, target: int) -> int:
        """Bytes that a migration needs at its target. Raises OutOfMemory where it has less."""
        layout = self._layout()
        place = domain_of(layout, target)
        needed = self._room_needed(-(-record.size // PAGE_BYTES))
        if not fits(place, needed):
            # Not all of it may be in the source; to look at every page takes its time.
            needed = self._room_needed(record.backing.where().pages.get(source, 0))
            check_room(layout, needed, place, "migrate")
        return needed

    def _migrate(
        self,
        record: Record,
        source: int,
        target: int,
        progress: Progress | None,
        stop: Stop | None,
    ) -> Migration:
        total = record.size if source != target else 0
        at_once = total if record.backing.moves_whole else CHUNK_BYTES
        done, interrupted, chunk = 0, False, Chunk()
        began = time.perf_counter()
        try:
            for offset in range(0, total, at_once or 1):
                if stop is not None and stop():
                    interrupted = True
                    break
                length = min(at_once, total - offset)
                chunk += record.backing.move(offset, length, source, target)
                done += length
                if progress is not None:
                    progress(done, total)
            if total and not (interrupted or chunk.not_moved or chunk.elsewhere):
                record.backing.moved(target)
        finally:
            seconds = time.perf_counter() - began
            self.ledger.count_migration(chunk.moved * PAGE_BYTES)
        after = record.backing.where()
        return Migration(
            provider=self.name,
            from_domain=source,
            to_domain=target,
            pages_moved=chunk.moved,
            pages_elsewhere=chunk.elsewhere,
            not_moved=chunk.not_moved,
            seconds=seconds,
            after=after,
            interrupted=interrupted,
            same_memory=self._same_memory(source, target),
            simulated=self.simulated,
        )

    def _same_memory(self, source: int, target: int) -> bool:
        """Whether two domains are the same memory, so that nothing is copied between them."""
        return source == target

    def _room_needed(self, pages: int) -> int:
        """Bytes that the target has to have free before so many pages move there."""
        return pages * PAGE_BYTES

    # ---- figures

    def statistics(self) -> Statistics:
        """What was handed out, taken back and moved."""
        return Statistics.of(
            self.ledger.counter(),
            provider=self.name,
            refused_count=self.ledger.refused,
            migrations=self.ledger.migrations,
            migrated_bytes=self.ledger.migrated_bytes,
            simulated=self.simulated,
        )

    def metrics(self, handle: Allocation | None = None) -> Metrics:
        """How the memory lies: of one allocation, or of all."""
        return locality.metrics(self, handle)


@dataclass(frozen=True, eq=False)
class _Taken:
    """Room for pages that are to come: bytes by domain. Gone with the call that is to bring them,
    however that ends.
    """

    shares: dict[int, int]


def _size(size: int | str) -> int:
    if isinstance(size, float) and size.is_integer():
        size = int(size)
    count = parse_bytes(size)
    if count == 0:
        raise BadInput("cannot allocate 0 bytes", expected="at least 1 byte")
    if count >= 1 << 62:
        raise OutOfMemory(
            f"cannot allocate {format_bytes(count)}", expected="a size that fits an address space"
        )
    return count


def _shares(placement: Placement, size: int) -> dict[int, int]:
    """What an allocation may take of each domain."""
    among = len(placement.domains) if placement.mode == "interleave" else 1
    return dict.fromkeys(placement.domains, -(-size // among))
