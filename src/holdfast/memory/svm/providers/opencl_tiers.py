"""The kinds of memory that an OpenCL device shares with the host, best first, one class each.

Addresses are page-aligned. Every call is synchronous, so any queue may use the data next. Memory
that could not be freed is still held, and can be freed again.

OpenCL cannot be asked where pages are. They count as where they were last sent: to the host by a
mapping, to the device by a kernel (except fine-grained memory, which both use in place), to either
by a migration. For the tier `copy` that is exact.
"""

from __future__ import annotations

import abc
import contextlib
import ctypes
import re
from collections.abc import Iterator
from typing import Any, ClassVar

import pyopencl as cl

from holdfast.base.errors import Unsupported
from holdfast.base.units import format_bytes
from holdfast.memory.resources.opencl_devices import OpenCLDevice, status, translate_errors
from holdfast.memory.svm.ledger import Backing
from holdfast.memory.svm.model import PAGE_BYTES, Chunk, Where
from holdfast.memory.svm.providers.host_pages import Pages
from holdfast.topology import OpenclDevice

HOST, DEVICE = 0, 1  # the domains
METHOD = "where they were last sent"
NO_MIGRATION = "OpenCL before 2.1 has no call that migrates shared virtual memory"

_BOTH: Any = cl.map_flags.READ | cl.map_flags.WRITE
_TO: dict[int, Any] = {HOST: cl.mem_migration_flags.HOST, DEVICE: 0}


def bytes_at(address: int, length: int) -> Any:
    """Memory at an address as a buffer, for pyopencl."""
    return (ctypes.c_ubyte * length).from_address(address)


class OpenclBacking(Backing):
    """Memory behind one allocation; each tier implements the methods at the end."""

    tier: ClassVar[str]
    moves_under_views = False
    on_host_pages: ClassVar[bool] = False  # takes host memory on any device
    argument: Any  # for a kernel
    _mapping: Any = None  # while it is mapped for the host

    def __init__(self, place: OpenCLDevice, about: OpenclDevice, size: int) -> None:
        self.place, self.about = place, about
        self.length = -(-size // PAGE_BYTES) * PAGE_BYTES
        self._busy_queues: list[Any] = []
        with translate_errors(f"allocate {format_bytes(size)} on {about.id}", size=size):
            self._obtain(size)
        self._page_domains = bytearray(self.length // PAGE_BYTES)  # by page; HOST is 0
        place.held.add(self)

    # ---- Backing, for the ledger

    def map(self) -> None:
        """Map it for the host, after waiting for the device."""
        if self.moves_under_views:
            return  # always mapped
        with translate_errors("give the memory to the host"):
            self._wait()
            self._map()
        self._mark(0, len(self._page_domains), HOST)

    def unmap(self) -> None:
        if self.moves_under_views:
            return
        with translate_errors("take the memory from the host"):
            self._unmap()

    def where(self) -> Where:
        counts = {domain: self._page_domains.count(domain) for domain in (HOST, DEVICE)}
        return Where(pages={d: n for d, n in counts.items() if n}, method=METHOD)

    def move(self, offset: int, length: int, source: int, target: int) -> Chunk:
        """Have the runtime send the pages of a range that are in `source`."""
        first, last = offset // PAGE_BYTES, -(-(offset + length) // PAGE_BYTES)
        wanted, reason = self._page_domains.count(source, first, last), ""
        try:
            for start, end in list(self._runs(first, last, source)):
                self._send(start * PAGE_BYTES, (end - start) * PAGE_BYTES, target)
                self._mark(start, end, target)
        except cl.Error as exc:
            reason = status(exc)
        except Unsupported as exc:
            reason = exc.what
        left = self._page_domains.count(source, first, last)
        return Chunk(
            moved=wanted - left,
            elsewhere=last - first - wanted,
            not_moved={reason: left} if left else {},
        )

    def close(self) -> None:
        """Wait for the device, then free the memory. A second call does nothing."""
        with translate_errors("free the memory"):
            self._wait()
            self.place.queue.finish()
            self._release()
        self.place.held.discard(self)

    # ---- for the provider

    @contextlib.contextmanager
    def used_by(self, queue: Any) -> Iterator[Any]:
        """Let kernels on `queue` use it in the block; waits for them at the end."""
        with translate_errors("give the memory to the device"):
            self._wait()
            self._lend()
        self._busy_queues.append(queue)
        try:
            yield self.argument
        finally:
            with translate_errors("wait for the device"):
                self._wait()

    # ---- shared by the tiers

    def _wait(self) -> None:
        while self._busy_queues:
            self._busy_queues[-1].finish()
            self._busy_queues.pop()

    def _mark(self, first: int, last: int, target: int) -> None:
        self._page_domains[first:last] = bytes([target]) * (last - first)

    def _runs(self, first: int, last: int, source: int) -> Iterator[tuple[int, int]]:
        """Runs of consecutive pages in `source`, as (first, last + 1)."""
        while (start := self._page_domains.find(source, first, last)) >= 0:
            end = self._page_domains.find(DEVICE if source == HOST else HOST, start, last)
            first = last if end < 0 else end
            yield start, first

    # ---- implemented by a tier

    @abc.abstractmethod
    def _obtain(self, size: int) -> None:
        """Get the memory; set `address` and `argument`."""

    def _map(self) -> None:
        """Map it for the host."""

    def _unmap(self) -> None:
        """Undo `_map`. Called again if it was interrupted."""
        mapping, self._mapping = self._mapping, None
        if mapping is not None:
            mapping.release(self.place.queue)  # after Ctrl-C its destructor does this
        self.place.queue.finish()

    def _lend(self) -> None:
        """Prepare for kernels, which use fine-grained memory in place."""
        if not self.moves_under_views:
            self._mark(0, len(self._page_domains), DEVICE)

    def _send(self, offset: int, length: int, target: int) -> None:
        """Send a range to a domain, synchronously."""
        if _version_of(self.about) < (2, 1):
            raise Unsupported(NO_MIGRATION)
        part: Any = cl.SVM(bytes_at(self.address + offset, length))
        cl.enqueue_svm_migrate_mem(self.place.queue, [part], _TO[target]).wait()

    @abc.abstractmethod
    def _release(self) -> None:
        """Free it. Called again if it was interrupted."""


def _version_of(device: OpenclDevice) -> tuple[int, int]:
    """The OpenCL version of a device ("OpenCL 3.0 vendor's text"), (0, 0) if unknown."""
    found = re.match(r"\S+\s+(\d+)\.(\d+)(?!\S)", device.version or "")
    return (int(found[1]), int(found[2])) if found else (0, 0)


class CoarseBacking(OpenclBacking):
    """Coarse-grained SVM: same addresses on both sides, which take turns by mapping."""

    tier = "coarse"
    flags: int = cl.svm_mem_flags.READ_WRITE

    def _obtain(self, size: int) -> None:
        # Runtimes align SVM to 128 bytes at most: one page more, to start at a page inside.
        self._memory: Any = cl.SVMAllocation(
            self.place.context, self.length + PAGE_BYTES, 0, self.flags
        )
        self.address = -(-self._memory.svm_ptr // PAGE_BYTES) * PAGE_BYTES
        self.argument = cl.SVM(bytes_at(self.address, size))

    def _map(self) -> None:
        # All of it, from the pointer that the runtime returned: some know no other.
        self._mapping = self._memory.map_rw(self.place.queue)

    def _release(self) -> None:
        memory, self._memory = self._memory, None
        try:
            if memory is not None:
                memory.release()  # after Ctrl-C its destructor does this
        except cl.Error:
            self._memory = memory
            raise


class FineBacking(CoarseBacking):
    """Fine-grained SVM: both sides may use it at once, with atomics if the device has them."""

    tier = "fine_buffer"
    moves_under_views = True

    def __init__(self, place: OpenCLDevice, about: OpenclDevice, size: int) -> None:
        self.flags = self.flags | cl.svm_mem_flags.SVM_FINE_GRAIN_BUFFER
        if "atomics" in about.svm:
            self.flags |= cl.svm_mem_flags.SVM_ATOMICS
        super().__init__(place, about, size)


class _OnPages(OpenclBacking):
    on_host_pages = True

    def _obtain(self, size: int) -> None:
        self._pages = Pages(self.length)
        self.address = self._pages.address
        try:
            self.argument = self._introduce(size)
        except BaseException:
            self._pages.close()
            raise

    @abc.abstractmethod
    def _introduce(self, size: int) -> Any:
        """Make the pages known to the device; returns the kernel argument."""

    def _release(self) -> None:
        argument, self.argument = self.argument, None
        try:
            if isinstance(argument, cl.Buffer):
                argument.release()
        except cl.Error:
            self.argument = argument
            raise
        self._pages.close()


class SystemBacking(_OnPages):
    """Fine-grained system SVM: the device can use any memory of the process."""

    tier = "fine_system"
    moves_under_views = True

    def _introduce(self, size: int) -> Any:
        return cl.SVM(bytes_at(self.address, size))


class HostPointerBacking(_OnPages):
    """A buffer over host pages (USE_HOST_PTR), with other addresses on the device."""

    tier = "host_pointer"
    moves_whole = True  # a buffer is sent as a whole

    def _introduce(self, size: int) -> Any:
        flags = cl.mem_flags.READ_WRITE | cl.mem_flags.USE_HOST_PTR
        pages = bytes_at(self.address, self.length)
        return cl.Buffer(self.place.context, flags, hostbuf=pages)

    def _map(self) -> None:
        kind: Any = "uint8"
        array, _ = cl.enqueue_map_buffer(
            self.place.queue, self.argument, _BOTH, 0, (self.length,), kind
        )
        mapping: Any = array.base
        if array.ctypes.data != self.address:  # the OpenCL standard forbids it
            mapping.release(self.place.queue)
            raise Unsupported(
                f"{self.about.id} maps pages of the host to another address",
                expected="a runtime that keeps to CL_MEM_USE_HOST_PTR",
                hint="the tier 'copy'",
            )
        self._mapping = mapping

    def _send(self, offset: int, length: int, target: int) -> None:
        cl.enqueue_migrate_mem_objects(self.place.queue, [self.argument], _TO[target]).wait()


class CopyBacking(_OnPages):
    """A device buffer and host pages; data is copied between them on demand."""

    tier = "copy"

    def _introduce(self, size: int) -> Any:
        return cl.Buffer(self.place.context, cl.mem_flags.READ_WRITE, self.length)

    def _map(self) -> None:
        self._send_all(HOST)

    def _lend(self) -> None:
        self._send_all(DEVICE)

    def _send_all(self, target: int) -> None:
        source = DEVICE if target == HOST else HOST
        for start, end in list(self._runs(0, len(self._page_domains), source)):
            self._send(start * PAGE_BYTES, (end - start) * PAGE_BYTES, target)
            self._mark(start, end, target)

    def _send(self, offset: int, length: int, target: int) -> None:
        here: Any = bytes_at(self.address + offset, length)
        queue, there = self.place.queue, self.argument
        if target == HOST:
            cl.enqueue_copy(queue, here, there, src_offset=offset)
        else:
            cl.enqueue_copy(queue, there, here, dst_offset=offset)


# Best first, each with the SVM capability it needs.
_NEEDS: dict[type[OpenclBacking], str | None] = {
    SystemBacking: "fine_system",
    FineBacking: "fine_buffer",
    CoarseBacking: "coarse_buffer",
    HostPointerBacking: None,
    CopyBacking: None,
}
TIERS: dict[str, type[OpenclBacking]] = {made.tier: made for made in _NEEDS}


def tiers_of(device: OpenclDevice) -> tuple[str, ...]:
    """The tiers a device supports, best first, by its capability bits."""
    return tuple(made.tier for made, bit in _NEEDS.items() if bit is None or bit in device.svm)
