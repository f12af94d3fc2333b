"""`Provider`: the base class of the ways to get shared virtual memory.

It checks sizes, domains and handles, and migrates in chunks. An operation that fails leaves every
allocation intact and counted.
"""

from __future__ import annotations

import abc
import contextlib
import os
import time
import weakref
from collections.abc import Sequence
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
    Progress,
    Statistics,
    Stop,
    Where,
)
from holdfast.memory.svm.placement import check_room, domain_of, fits, place
from holdfast.memory.svm.record import Backing, Record

CHUNK_BYTES = 16 << 20  # moved between two calls of `progress` and `stop`


class Provider(abc.ABC):
    """A way to get shared virtual memory. Its methods may be called from several threads."""

    name: ClassVar[str]
    simulated: ClassVar[bool] = False
    balances: ClassVar[bool] = True  # whether autobalance may move its memory

    def __init__(self, config: Config | None = None) -> None:
        """Raises Unsupported, Absent or MissingDependency if it cannot work here."""
        self.config = config or Config.load()
        self.ledger: Ledger[Allocation] = Ledger(self.name)
        self._reserved: weakref.WeakSet[_Reservation] = weakref.WeakSet()

    def __repr__(self) -> str:
        return f"<{self.name} provider>"

    # ---- implemented by each provider

    @abc.abstractmethod
    def discover(self, refresh: bool = False) -> Layout:
        """The domains and their free memory now; `refresh` also looks for new domains."""

    @abc.abstractmethod
    def _obtain(self, size: int, placement: Placement) -> Backing:
        """Get `size` bytes in the domains of `placement`. Raises OutOfMemory."""

    def on_device(
        self, handle: Allocation, queue: Any = None
    ) -> contextlib.AbstractContextManager[Any]:
        """Yields what to pass to a kernel. The host must not access the memory in the block."""
        raise Unsupported(
            f"memory of {self.name!r} belongs to no device that runs kernels",
            expected="memory of the provider 'opencl'",
            hint="svm.provider('opencl').alloc(...), or the array() of this one",
        )

    def running_on(self) -> tuple[int, ...]:
        """The CPUs that this thread may run on, if known."""
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
        """Allocate `size` bytes (an int, or a text like "256MB"), placed by the topology.

        See `placement.place` for `domain`, `near` and `mode`; the handle's `placement` has the
        reason. With `set_affinity` the threads of this process are bound to the CPUs next to the
        memory until it is freed. Raises BadInput or OutOfMemory, and nothing has changed then.
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
        with self.ledger.placing:  # look up free memory and reserve it in one step
            placement = self._place(self._layout(), size, domain, near, mode)
            reservation = self._reserve(_bytes_by_domain(placement, size))
        backing = self._obtain(size, placement)
        try:
            handle = self.ledger.add(backing, size, placement, self._handle)
        except BaseException:
            backing.close()
            raise
        del reservation  # the memory is allocated and counted now
        return handle

    def _place(
        self,
        layout: Layout,
        size: int,
        domain: int | Sequence[int] | None,
        near: str | None,
        mode: str | None,
    ) -> Placement:
        """Decide where an allocation goes."""
        cpus = self.running_on()
        return place(layout, size, domain=domain, near=near, mode=mode, running_on=cpus)

    def _layout(self) -> Layout:
        """The domains, with the free memory less what other threads have reserved."""
        layout, reserved = self.discover(), [r.bytes_by_domain for r in self._reserved]
        if not reserved:
            return layout
        domains = (
            replace(d, free_bytes=max(0, d.free_bytes - sum(r.get(d.id, 0) for r in reserved)))
            if d.free_bytes is not None
            else d
            for d in layout.domains
        )
        return replace(layout, domains=tuple(domains))

    def _reserve(self, bytes_by_domain: dict[int, int]) -> _Reservation:
        """Count bytes of the domains as taken as long as the result lives."""
        reservation = _Reservation(bytes_by_domain)
        self._reserved.add(reservation)
        return reservation

    def _handle(self, record: Record) -> Allocation:
        return Allocation(self, record)

    def _bind(self, handle: Allocation) -> None:
        try:
            self.set_affinity(handle)
        except BaseException:
            self.free(handle)
            raise

    def set_affinity(self, handle: Allocation) -> affinity.Grant | None:
        """Bind the threads of this process to the CPUs next to the memory until it is freed.

        Returns None if nothing was bound: the domain has no CPUs, or they are simulated.
        """
        record = self.ledger.record(handle)
        with record.lock:
            self.ledger.record(handle)  # another thread may have freed it
            cpus = () if self.simulated else record.placement.cpus
            if record.grant is None and cpus and affinity.supported():
                grant = affinity.Grant(cpus)
                record.grant = grant  # first, so that free() undoes what Ctrl-C left half bound
                try:
                    grant.bind()
                except Unsupported:
                    record.grant = None
                    raise
            return record.grant

    def free(self, handle: Allocation) -> None:
        """Free memory, and unbind threads that were bound for it.

        Raises DoubleFree, ForeignPointer, or InUse while it has views or is migrated.
        """
        self.ledger.free(self.ledger.record(handle, freeing=True))

    def where(self, handle: Allocation) -> Where:
        """Pages by domain, and how that is known."""
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
        """Move the pages in one domain to another, in chunks of 16 MiB.

        After each chunk `progress(done, total)` is called with bytes, before each one `stop()`;
        Ctrl-C is handled there too. Whatever happens, each page is intact in one domain or the
        other. The result has the pages moved, and those not moved by reason. Raises BadInput for
        an unknown domain, OutOfMemory if it does not fit, InUse.
        """
        record = self.ledger.record(handle)
        layout = self.discover()
        source, target = domain_of(layout, from_domain), domain_of(layout, to_domain)
        alone = not record.backing.moves_under_views
        with self.ledger.operation(record, "migrated", alone=alone):
            if source.id == target.id:
                return self._migrate(record, source.id, target.id, progress, stop)
            with self.ledger.placing:
                needed = self._room_for(record, source.id, target.id)
                reservation = self._reserve({target.id: needed})
            done = self._migrate(record, source.id, target.id, progress, stop)
            del reservation
            return done

    def _room_for(self, record: Record, source: int, target: int) -> int:
        """Bytes that a migration needs in its target. Raises OutOfMemory if less is free."""
        layout = self._layout()
        domain = domain_of(layout, target)
        needed = self._room_needed(-(-record.size // PAGE_BYTES))
        if not fits(domain, needed):
            # Part of it may not be in the source. Only now, since it looks up every page.
            needed = self._room_needed(record.backing.where().pages.get(source, 0))
            check_room(layout, needed, domain, "migrate")
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
                record.backing.finish_move(target)
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
        """Whether two domains are the same memory, so that a migration copies nothing."""
        return source == target

    def _room_needed(self, pages: int) -> int:
        """Bytes that must be free in the target to move this many pages there."""
        return pages * PAGE_BYTES

    # ---- figures

    def statistics(self) -> Statistics:
        """What was allocated, freed and migrated."""
        return Statistics.of(
            self.ledger.counter(),
            provider=self.name,
            refused_count=self.ledger.refused,
            migrations=self.ledger.migrations,
            migrated_bytes=self.ledger.migrated_bytes,
            simulated=self.simulated,
        )

    def metrics(self, handle: Allocation | None = None) -> Metrics:
        """Local and remote pages of one allocation, or of all."""
        return locality.metrics(self, handle)


@dataclass(frozen=True, eq=False)
class _Reservation:
    """Memory about to be allocated. Held only by the caller's frame, so it ends with that."""

    bytes_by_domain: dict[int, int]


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


def _bytes_by_domain(placement: Placement, size: int) -> dict[int, int]:
    """The most that an allocation may take of each domain."""
    among = len(placement.domains) if placement.mode == "interleave" else 1
    return dict.fromkeys(placement.domains, -(-size // among))
