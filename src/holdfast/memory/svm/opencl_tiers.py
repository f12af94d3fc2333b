"""The ways an OpenCL device shares memory with the host, best first, one class each.

Covers: getting, mapping, sending and giving back memory of each kind.
Leaves to others: which device and which kind (opencl), who looks at it (ledger).
Promise: an address begins a page; every call is over when it returns, so whichever queue comes next
finds the data; memory that could not be given back is still held, and can be given back again.

OpenCL does not tell where pages are. They count as where they were last sent: to the host by a
mapping, to the device by a kernel (but for fine-grained memory, which both use where it is), to
either by a migration. Pages of the kind `copy` are exactly there.
"""

from __future__ import annotations

import abc
import contextlib
import ctypes
from collections.abc import Iterator
from typing import Any, ClassVar

import pyopencl as cl

from holdfast.base.errors import Unsupported
from holdfast.base.units import format_bytes
from holdfast.memory.svm.model import PAGE_BYTES, Chunk, Where
from holdfast.memory.svm.opencl_runtime import Runtime, said, status
from holdfast.memory.svm.pages import Pages
from holdfast.topology import OpenclDevice

HOST, DEVICE = 0, 1  # the domains
METHOD = "as the runtime was told"
NO_MIGRATION = "OpenCL before 2.1 has no call that migrates shared virtual memory"

_BOTH: Any = cl.map_flags.READ | cl.map_flags.WRITE
_TO: dict[int, Any] = {HOST: cl.mem_migration_flags.HOST, DEVICE: 0}


def bytes_at(address: int, length: int) -> Any:
    """That memory for pyopencl, which takes whatever offers its bytes."""
    return (ctypes.c_ubyte * length).from_address(address)


class OpenclBacking(abc.ABC):
    """Memory behind one allocation; each tier fills in the lower half."""

    tier: ClassVar[str]
    moves_under_views = False
    moves_whole = False
    on_host_pages: ClassVar[bool] = False  # whether it takes memory of the host in any case
    address: int
    argument: Any  # what a kernel takes

    def __init__(self, runtime: Runtime, size: int) -> None:
        self.runtime = runtime
        self.length = -(-size // PAGE_BYTES) * PAGE_BYTES
        self._busy_queues: list[Any] = []
        with said(f"allocate {format_bytes(size)} on {runtime.device.id}", size=size):
            self._obtain(size)
        self._places = bytearray(self.length // PAGE_BYTES)  # a domain for each page: the host
        runtime.hold(self)

    # ---- what the ledger asks

    def map(self) -> None:
        """Let the host look; what devices still do to it is waited for."""
        if self.moves_under_views:
            return  # it always may
        with said("give the memory to the host"):
            self._wait()
            self._map()
        self._sent(0, len(self._places), HOST)

    def unmap(self) -> None:
        """The host looks no more. Nothing is sent by this alone."""
        if self.moves_under_views:
            return
        with said("take the memory from the host"):
            self._unmap()

    def where(self) -> Where:
        """Where the pages were last sent."""
        counts = {domain: self._places.count(domain) for domain in (HOST, DEVICE)}
        return Where(pages={d: n for d, n in counts.items() if n}, method=METHOD)

    def move(self, offset: int, length: int, source: int, target: int) -> Chunk:
        """Have the runtime send those pages of a part that are in `source`."""
        first, last = offset // PAGE_BYTES, -(-(offset + length) // PAGE_BYTES)
        wanted, reason = self._places.count(source, first, last), ""
        try:
            for start, end in list(self._runs(first, last, source)):
                self._send(start * PAGE_BYTES, (end - start) * PAGE_BYTES, target)
                self._sent(start, end, target)
        except cl.Error as exc:
            reason = status(exc)
        except Unsupported as exc:
            reason = exc.what
        left = self._places.count(source, first, last)
        return Chunk(
            moved=wanted - left,
            elsewhere=last - first - wanted,
            not_moved={reason: left} if left else {},
        )

    def moved(self, target: int) -> None:  # noqa: B027  most tiers need none
        """Nothing to do: no page is still to come."""

    def close(self) -> None:
        """Give the memory back, once nothing works on it any more. A second time does nothing."""
        with said("give the memory back"):
            self._wait()
            self.runtime.queue.finish()
            self._release()
        self.runtime.release(self)

    # ---- what the provider asks

    @contextlib.contextmanager
    def used_by(self, queue: Any) -> Iterator[Any]:
        """Within the block kernels on `queue` may use it; all of them are over after it."""
        with said("give the memory to the device"):
            self._wait()
            self._lend()
        self._busy_queues.append(queue)
        try:
            yield self.argument
        finally:
            with said("wait for the device"):
                self._wait()

    # ---- what the tiers share

    def _wait(self) -> None:
        while self._busy_queues:
            self._busy_queues[-1].finish()
            self._busy_queues.pop()

    def _sent(self, first: int, last: int, target: int) -> None:
        self._places[first:last] = bytes([target]) * (last - first)

    def _runs(self, first: int, last: int, source: int) -> Iterator[tuple[int, int]]:
        """Pages in `source` that lie together, as (first, last + 1)."""
        while (start := self._places.find(source, first, last)) >= 0:
            end = self._places.find(DEVICE if source == HOST else HOST, start, last)
            first = last if end < 0 else end
            yield start, first

    # ---- what a tier does its own way

    @abc.abstractmethod
    def _obtain(self, size: int) -> None:
        """Get the memory; set `address` and `argument`."""

    def _map(self) -> None:  # noqa: B027  most tiers need none
        """Let the host look."""

    def _unmap(self) -> None:  # noqa: B027  most tiers need none
        """Take that back. Comes again where it was broken off."""

    def _lend(self) -> None:
        """Kernels come next. Fine-grained memory they use where it is."""
        if not self.moves_under_views:
            self._sent(0, len(self._places), DEVICE)

    def _send(self, offset: int, length: int, target: int) -> None:
        """Send a part; it is there on return."""
        if not self.runtime.migrates_svm:
            raise Unsupported(NO_MIGRATION)
        part: Any = cl.SVM(bytes_at(self.address + offset, length))
        cl.enqueue_svm_migrate_mem(self.runtime.queue, [part], _TO[target]).wait()

    @abc.abstractmethod
    def _release(self) -> None:
        """Give it back. Comes again where it was broken off."""


class CoarseBacking(OpenclBacking):
    """Coarse-grained SVM: the same addresses for both, who take turns by mapping."""

    tier = "coarse"
    flags: int = cl.svm_mem_flags.READ_WRITE

    def _obtain(self, size: int) -> None:
        # No runtime aligns SVM to more than 128 bytes: a page more has one that begins inside.
        self._memory: Any = cl.SVMAllocation(
            self.runtime.context, self.length + PAGE_BYTES, 0, self.flags
        )
        self._mapping: Any = None
        self.address = -(-self._memory.svm_ptr // PAGE_BYTES) * PAGE_BYTES
        self.argument = cl.SVM(bytes_at(self.address, size))

    def _map(self) -> None:
        # All of it from its first byte, which is the pointer that every runtime knows.
        self._mapping = self._memory.map_rw(self.runtime.queue)

    def _unmap(self) -> None:
        mapping, self._mapping = self._mapping, None
        if mapping is not None:
            mapping.release()  # where Ctrl-C comes before, it goes and does this itself
        self.runtime.queue.finish()

    def _release(self) -> None:
        memory, self._memory = self._memory, None
        try:
            if memory is not None:
                memory.release()  # where Ctrl-C comes before, it goes and does this itself
        except cl.Error:
            self._memory = memory
            raise


class FineBacking(CoarseBacking):
    """Fine-grained SVM: both may use it at once, with atomics where the device has them."""

    tier = "fine_buffer"
    moves_under_views = True

    def __init__(self, runtime: Runtime, size: int) -> None:
        self.flags = self.flags | cl.svm_mem_flags.SVM_FINE_GRAIN_BUFFER
        if "atomics" in runtime.device.svm:
            self.flags |= cl.svm_mem_flags.SVM_ATOMICS
        super().__init__(runtime, size)


class _OnPages(OpenclBacking):
    """Memory that is plain pages of the host first of all."""

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
        """Make the pages known to the device; returns what a kernel takes."""

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
    """Fine-grained system SVM: the device uses any memory of the process."""

    tier = "fine_system"
    moves_under_views = True

    def _introduce(self, size: int) -> Any:
        return cl.SVM(bytes_at(self.address, size))


class HostPointerBacking(_OnPages):
    """A buffer over pages of the host: its addresses on the device are others."""

    tier = "host_pointer"
    moves_whole = True  # a buffer is sent as a whole

    def _introduce(self, size: int) -> Any:
        self._mapping: Any = None
        flags = cl.mem_flags.READ_WRITE | cl.mem_flags.USE_HOST_PTR
        pages = bytes_at(self.address, self.length)
        return cl.Buffer(self.runtime.context, flags, hostbuf=pages)

    def _map(self) -> None:
        kind: Any = "uint8"
        array, _ = cl.enqueue_map_buffer(
            self.runtime.queue, self.argument, _BOTH, 0, (self.length,), kind
        )
        mapping: Any = array.base
        if array.ctypes.data != self.address:  # OpenCL says it never is
            mapping.release(self.runtime.queue)
            raise Unsupported(
                f"{self.runtime.device.id} maps pages of the host to another address",
                expected="a runtime that keeps to CL_MEM_USE_HOST_PTR",
                hint="the tier 'copy'",
            )
        self._mapping = mapping

    def _unmap(self) -> None:
        mapping, self._mapping = self._mapping, None
        if mapping is not None:
            mapping.release(self.runtime.queue)
        self.runtime.queue.finish()

    def _send(self, offset: int, length: int, target: int) -> None:
        cl.enqueue_migrate_mem_objects(self.runtime.queue, [self.argument], _TO[target]).wait()


class CopyBacking(_OnPages):
    """A buffer of the device and pages of the host: what one needs is copied from the other."""

    tier = "copy"

    def _introduce(self, size: int) -> Any:
        return cl.Buffer(self.runtime.context, cl.mem_flags.READ_WRITE, self.length)

    def _map(self) -> None:
        self._send_all(HOST)

    def _lend(self) -> None:
        self._send_all(DEVICE)

    def _send_all(self, target: int) -> None:
        source = DEVICE if target == HOST else HOST
        for start, end in list(self._runs(0, len(self._places), source)):
            self._send(start * PAGE_BYTES, (end - start) * PAGE_BYTES, target)
            self._sent(start, end, target)

    def _send(self, offset: int, length: int, target: int) -> None:
        here: Any = bytes_at(self.address + offset, length)
        queue, there = self.runtime.queue, self.argument
        if target == HOST:
            cl.enqueue_copy(queue, here, there, src_offset=offset)
        else:
            cl.enqueue_copy(queue, there, here, dst_offset=offset)


# Best first, each with what the device has to offer for it.
_NEEDS: dict[type[OpenclBacking], str | None] = {
    SystemBacking: "fine_system",
    FineBacking: "fine_buffer",
    CoarseBacking: "coarse_buffer",
    HostPointerBacking: None,
    CopyBacking: None,
}
TIERS: dict[str, type[OpenclBacking]] = {made.tier: made for made in _NEEDS}


def tiers_of(device: OpenclDevice) -> tuple[str, ...]:
    """What a device offers by its own account, best first. Attempts would prove nothing."""
    return tuple(made.tier for made, bit in _NEEDS.items() if bit is None or bit in device.svm)
