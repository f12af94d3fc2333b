"""Memory of OpenCL devices as resources: as buffers, or as shared virtual memory.

An address stands for one byte of one allocation; copies wait for work queued before them. An OpenCL
buffer has no address of its own, so each gets a range of address space without access. Pools can
cut that up like any memory, and a wrong access faults instead of reading other data.
"""

from __future__ import annotations

import bisect
import contextlib
import ctypes
import threading
from typing import Any

import numpy
import pyopencl as cl

from holdfast.base.config import Config
from holdfast.base.errors import BadInput, OutOfMemory, Unsupported
from holdfast.base.units import format_bytes
from holdfast.memory.core import system_pages
from holdfast.memory.resources.opencl_devices import OpenCLDevice, open_device, translate_errors
from holdfast.memory.resources.resource import TrackedResource, check_size

_ALIGNED = 128  # bytes; more fails on every runtime
Known = tuple[Any, int]  # the object that kernels get, and its length


class _Allocations(TrackedResource[Known]):
    """Allocations of one device, by address; the base of both kinds."""

    def __init__(self, place: OpenCLDevice) -> None:
        super().__init__()
        self.place = place
        self.device = place.name
        self._starts: list[int] = []  # their addresses, sorted
        self._lock = threading.RLock()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.device!r})"

    def allocate(self, size: int) -> int:
        """An address that stands for new memory. Raises OutOfMemory."""
        size = max(1, check_size(size))
        most = self.place.device.max_mem_alloc_size
        if size > most:
            raise OutOfMemory(
                f"{self.device} has no {format_bytes(size)} in one piece",
                expected=f"at most {format_bytes(most)}",
            )
        with translate_errors(f"get {format_bytes(size)} of {self.device}", size=size):
            address, made = self._get(size)
        with self._lock:
            self._blocks.add(address, (made, size))
            bisect.insort(self._starts, address)
        return address

    def free(self, address: int) -> None:
        """Free memory once all work queued before is done with it."""
        with self._lock:
            super().free(address)

    def _release(self, address: int, known: Known) -> None:
        self._starts.remove(address)
        with contextlib.suppress(cl.Error):  # on a lost device there is nothing to free
            self._put_back(address, *known)

    def locate(self, address: int) -> tuple[Any, int]:
        """The allocation that contains `address`, as kernels get it, and the offset in it."""
        with self._lock:
            start = self._starts[bisect.bisect_right(self._starts, address) - 1]
            return self._blocks.known(start)[0], address - start

    def _get(self, size: int) -> tuple[int, Any]:
        raise NotImplementedError

    def _put_back(self, address: int, made: Any, size: int) -> None:
        raise NotImplementedError


class Buffers(_Allocations):
    """Memory of one device as buffers."""

    def _get(self, size: int) -> tuple[int, Any]:
        buffer = cl.Buffer(self.place.context, cl.mem_flags.READ_WRITE, size)
        # Most drivers allocate at the first use; here a failure can still be reported.
        cl.enqueue_fill_buffer(self.place.queue, buffer, b"\0", 0, 1)
        return system_pages.reserve(size), buffer

    def _put_back(self, address: int, made: Any, size: int) -> None:
        system_pages.release(address, size)
        made.release()  # OpenCL keeps it until queued work is done with it

    def read(self, made: Any, start: int, into: Any) -> None:
        """Copy bytes from offset `start` to the host and wait."""
        cl.enqueue_copy(self.place.queue, into, made, src_offset=start, is_blocking=True)

    def write(self, made: Any, start: int, data: Any, wait: bool = True) -> Any:
        """Copy host bytes to offset `start`; keep `data` alive until the event is done."""
        return cl.enqueue_copy(self.place.queue, made, data, dst_offset=start, is_blocking=wait)


class SharedVirtualMemory(_Allocations):
    """Memory of one device as shared virtual memory, with real addresses. Raises Unsupported."""

    def __init__(self, place: OpenCLDevice) -> None:
        super().__init__(place)
        kinds = cl.device_svm_capabilities
        can = _capabilities(place.device)
        if not can & (kinds.COARSE_GRAIN_BUFFER | kinds.FINE_GRAIN_BUFFER):
            raise Unsupported(
                f"{place.name} ({place.device.name.strip()}) has no shared virtual memory",
                expected="a device with coarse-grained buffers of OpenCL 2.0",
                hint="HOLDFAST_OPENCL_MEMORY=buffers",
            )
        fine = cl.svm_mem_flags.SVM_FINE_GRAIN_BUFFER if can & kinds.FINE_GRAIN_BUFFER else 0
        self._flags = cl.svm_mem_flags.READ_WRITE | fine

    def _get(self, size: int) -> tuple[int, Any]:
        made = cl.SVMAllocation(self.place.context, size, _ALIGNED, self._flags)
        return made.svm_ptr, made

    def _put_back(self, address: int, made: Any, size: int) -> None:
        made.enqueue_release(self.place.queue)

    def read(self, made: Any, start: int, into: Any) -> None:
        """Copy bytes from offset `start` to the host and wait."""
        cl.enqueue_copy(self.place.queue, into, _bytes(made, start, into.nbytes))

    def write(self, made: Any, start: int, data: Any, wait: bool = True) -> Any:
        """Copy host bytes to offset `start`; keep `data` alive until the event is done."""
        target = _bytes(made, start, data.nbytes)
        return cl.enqueue_copy(self.place.queue, target, data, is_blocking=wait)


def _bytes(made: Any, start: int, count: int) -> Any:
    part = (ctypes.c_uint8 * count).from_address(made.svm_ptr + start)
    return cl.SVM(numpy.ctypeslib.as_array(part))


def _capabilities(device: Any) -> int:
    try:
        return device.svm_capabilities
    except cl.Error:  # an OpenCL 1.2 driver does not support the query
        return 0


KINDS = {"buffers": Buffers, "svm": SharedVirtualMemory}


def resource(index: int = 0) -> Buffers | SharedVirtualMemory:
    """Memory of `opencl:index`, of the kind set by HOLDFAST_OPENCL_MEMORY."""
    kind = Config.load().opencl_memory
    if kind not in KINDS:
        raise BadInput(f"HOLDFAST_OPENCL_MEMORY is {kind!r}", expected=f"one of {', '.join(KINDS)}")
    return KINDS[kind](open_device(index))
