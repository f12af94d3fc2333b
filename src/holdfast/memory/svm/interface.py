"""`Provider`, the base class of the ways to get shared virtual memory; `Allocation`, its handle.

A provider checks sizes, domains and handles, and migrates in chunks. An operation that fails leaves
every allocation intact and counted. Freed memory cannot be reached through an old handle.
"""

from __future__ import annotations

import abc
import contextlib
import functools
import os
import time
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from holdfast.base.config import Config
from holdfast.base.errors import BadInput, InUse, OutOfMemory, Unsupported, UseAfterFree
from holdfast.base.units import format_bytes, parse_bytes
from holdfast.memory.core import views
from holdfast.memory.svm import affinity, locality
from holdfast.memory.svm.ledger import Backing, Handle, Ledger, Record
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
        """Get `size` bytes for the domains of `placement`. Raises OutOfMemory."""

    def _prepare(self, backing: Any, size: int, placement: Placement) -> None:  # noqa: B027
        """Make it ready to be used; if this fails, the backing is closed."""

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
            handle = self._alloc(_size(size), domain=domain, near=near, mode=mode)
        except OutOfMemory:
            self.ledger.count_refusal()
            raise
        if set_affinity:
            try:
                self.set_affinity(handle)
            except BaseException:
                self.free(handle)
                raise
        return handle

    def _alloc(self, size: int, **wanted: Any) -> Allocation:
        with self.ledger.placing:  # look up free memory and reserve it in one step
            placement = self._place(self._layout(), size, **wanted)
            reservation = self._reserve(_bytes_by_domain(placement, size))
        backing = self._obtain(size, placement)
        try:
            self._prepare(backing, size, placement)
            make = functools.partial(Allocation, self)
            handle = self.ledger.add(backing, size, placement, make)
        except BaseException:
            backing.close()
            raise
        del reservation  # the memory is allocated and counted now
        return handle

    def _place(self, layout: Layout, size: int, **wanted: Any) -> Placement:
        return place(layout, size, running_on=self.running_on(), **wanted)

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

    def set_affinity(self, handle: Allocation) -> affinity.Grant | None:
        """Bind the threads of this process to the CPUs next to the memory until it is freed.

        Returns None if nothing was bound: the domain has no CPUs, or they are simulated.
        """
        record = self.ledger.record(handle)
        with record.lock:
            self.ledger.record(handle)  # another thread may have freed it
            grant = self._grant(record) if record.grant is None else None
            if grant is not None:
                record.grant = grant  # first, so that free() undoes what Ctrl-C left half bound
                try:
                    grant.bind()
                except Unsupported:
                    record.grant = None
                    raise
            return record.grant

    def _grant(self, record: Record) -> affinity.Grant | None:
        cpus = () if self.simulated else record.placement.cpus
        return affinity.Grant(cpus) if cpus and affinity.supported() else None

    def free(self, handle: Allocation) -> None:
        """Free memory and unbind its threads. Raises DoubleFree, ForeignPointer, or InUse."""
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
        layout, found = self.discover(), []
        for one in self.ledger.handles() if handle is None else [handle]:
            try:
                found.append(self.where(one))
            except UseAfterFree:  # another thread freed it just now
                if handle is not None:
                    raise
        cpus = self.running_on()
        if self.simulated:  # no work runs on its CPUs: those of the placement
            placed = [handle.placement] if handle is not None else layout.domains
            cpus = next((one.cpus for one in placed if one.cpus), ())
        history = tuple(self.ledger.history)
        return locality.metrics(layout, found, cpus, self.statistics(), history)


class Allocation(views.Viewable, Handle, contextlib.AbstractContextManager["Allocation"]):
    """Memory of a provider, freed by `free()`, at the end of a `with` block, or with the last
    reference to it and to its views.

        with svm.alloc("256MB", domain=1) as memory:
            array = memory.array("float32", (8192, 8192))      # no copy
            print(memory.where().pages)
            del array                                           # a view would keep the memory
    """

    public_name = "holdfast.memory.svm.Allocation"
    host = True
    pinned = False

    def __init__(self, provider: Provider, record: Record) -> None:
        self.provider = provider
        self.address = record.backing.address
        self.size = record.size
        self.generation = record.generation
        self.placement = record.placement

    @property
    def freed(self) -> bool:
        return not self.provider.ledger.holds(self)

    @property
    def exports(self) -> int:
        """How many arrays, tensors and memoryviews of it are alive."""
        record = self.provider.ledger.record(self)
        with record.lock:
            return record.views

    @property
    def domains(self) -> dict[int, int]:
        """Pages by domain now."""
        return self.where().pages

    def view(self) -> memoryview:
        """The bytes. Raises UseAfterFree, or InUse while a device uses them."""
        record = self.provider.ledger.record(self)
        with record.lock:
            self.provider.ledger.record(self)  # another thread may have freed it
            if record.busy and not record.backing.moves_under_views:
                raise InUse(
                    f"the host cannot access {self!r}: it is being {record.busy}",
                    expected="memory that the device does not use",
                )
            if not record.mapped:
                record.backing.map()
                record.mapped = True
            window = views.window(self, record.backing.address, record.size)
            record.add_view(window)
        return memoryview(window).cast("B")

    def where(self) -> Where:
        """Pages by domain, and how that is known."""
        return self.provider.where(self)

    def migrate(self, from_domain: int, to_domain: int, **options: Any) -> Migration:
        """Move its pages from one domain to another; see `Provider.migrate` for the options."""
        return self.provider.migrate(self, from_domain, to_domain, **options)

    def free(self) -> None:
        """Free it. Raises InUse while it has views, DoubleFree."""
        self.provider.free(self)

    def on_device(self, queue: Any = None) -> contextlib.AbstractContextManager[Any]:
        """Yields what to pass to a kernel. Raises Unsupported if the provider has no device."""
        return self.provider.on_device(self, queue)

    def __exit__(self, exc_type: object, *_: object) -> None:
        if self.freed:
            return
        try:
            self.free()
        except InUse:
            if exc_type is None:  # else the frames of that error may hold the views
                raise

    def __repr__(self) -> str:
        state = ", simulated" * self.provider.simulated + ", freed" * self.freed
        return (
            f"<Allocation {self.generation} of {format_bytes(self.size)} by {self.provider.name} "
            f"at {self.address:#x}{state}>"
        )


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
    among = len(placement.domains) if placement.mode == "interleave" else 1
    return dict.fromkeys(placement.domains, -(-size // among))
