"""Host memory that the device can read by itself: page-locked in place, within a budget.

Covers: locking and unlocking the memory of a tensor, the budget of the process, its counters.
Leaves to others: how large the budget is (reserve), memory that is locked from the start.
Promise: memory is unlocked before it is given back, whoever drops the tensor and in whichever
thread; the sum of what is locked never exceeds the budget; a driver that refuses costs nothing but
the speed. The exception: `resize_` of a storage gives memory back and tells nobody, so do not
resize what was pinned.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from holdfast.residency.rules import current, reserve


class Driver(Protocol):
    """What locks memory. Both answer whether it was done, and leave no error behind if not."""

    def register(self, address: int, nbytes: int) -> bool:
        """Lock `nbytes` from `address` on."""
        ...

    def unregister(self, address: int) -> bool:
        """Unlock the range that was registered at `address`."""
        ...


class CudaDriver:
    """CUDA's and ROCm's way: cudaHostRegister on memory that exists already."""

    _PORTABLE = 1  # locked for all contexts of the process

    def register(self, address: int, nbytes: int) -> bool:
        if not torch.cuda.is_available():
            return False
        return self._done(self._runtime().cudaHostRegister(address, nbytes, self._PORTABLE))

    def unregister(self, address: int) -> bool:
        return self._done(self._runtime().cudaHostUnregister(address))

    def _runtime(self) -> Any:
        return torch.cuda.cudart()

    def _done(self, status: Any) -> bool:
        if int(status) == 0:
            return True
        # The runtime keeps the error for whoever asks next: that would be an innocent kernel.
        with contextlib.suppress(RuntimeError):
            torch.zeros(1, device="cuda").add_(1)
        return False


@dataclass(frozen=True, slots=True)
class _Range:
    nbytes: int
    storage: int  # address of the storage it lies in
    finalizer: Any

    def overlaps(self, own_start: int, start: int, nbytes: int) -> bool:
        return own_start < start + nbytes and start < own_start + self.nbytes


class PinnedBudget:
    """Locked ranges of host memory, at most `limit_bytes` together. Safe for threads."""

    def __init__(self, driver: Driver, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.total_pinned_bytes = 0
        self._driver = driver
        self._ranges: dict[int, _Range] = {}  # by address
        self._storages: dict[int, set[int]] = {}  # address of a storage -> addresses of ranges
        self._lock = threading.RLock()  # a collection may end a storage while its thread is here

    def pin(self, tensor: torch.Tensor) -> bool:
        """Lock the memory of `tensor`; whether this call did it.

        False, and nothing is changed, where it is on a device, is not one dense piece, overlaps
        with what is locked already, would exceed the budget, or the driver refuses.
        """
        found = _place(tensor)
        if found is None:
            return False
        start, nbytes, storage = found
        with self._lock:
            if self.total_pinned_bytes + nbytes > self.limit_bytes:
                return False
            if self._is_taken(storage, start, nbytes) or tensor.is_pinned():
                return False
            if not self._driver.register(start, nbytes):
                return False
            self._note(tensor, storage, start, nbytes)
            return True

    def unpin(self, tensor: torch.Tensor) -> bool:
        """Unlock what `pin` locked for this memory; whether this call did it.

        False, and nothing is changed, for memory that was not locked here as the same range, or
        where the driver refuses.
        """
        found = _place(tensor)
        if found is None:
            return False
        start, nbytes, _ = found
        with self._lock:
            known = self._ranges.get(start)
            if known is None or known.nbytes != nbytes or not self._driver.unregister(start):
                return False
            known.finalizer.detach()
            self._forget(start)
            return True

    def _is_taken(self, storage: int, start: int, nbytes: int) -> bool:
        # Memory in use overlaps with no other storage; one over foreign memory the driver refuses.
        for own in tuple(self._storages.get(storage, ())):
            known = self._ranges.get(own)
            if known is not None and known.overlaps(own, start, nbytes):
                return True
        return False

    def _note(self, tensor: torch.Tensor, storage: int, start: int, nbytes: int) -> None:
        finalizer = weakref.finalize(tensor.untyped_storage(), self._end, start)
        finalizer.atexit = False  # the driver may be gone by then, and the system unlocks anyway
        self._ranges[start] = _Range(nbytes, storage, finalizer)
        self._storages.setdefault(storage, set()).add(start)
        self.total_pinned_bytes += nbytes

    def _end(self, start: int) -> None:
        """The storage dies: its memory goes back as soon as this returns."""
        with self._lock:
            self._driver.unregister(start)
            self._forget(start)

    def _forget(self, start: int) -> None:
        known = self._ranges.pop(start)
        self.total_pinned_bytes -= known.nbytes
        self._storages[known.storage].discard(start)
        if not self._storages[known.storage]:
            del self._storages[known.storage]


def _place(tensor: torch.Tensor) -> tuple[int, int, int] | None:
    """Address, bytes and address of the storage, of memory that can be locked as one range."""
    if tensor.device.type != "cpu" or tensor.layout != torch.strided or not tensor.is_contiguous():
        return None
    nbytes = tensor.numel() * tensor.element_size()
    start = tensor.data_ptr() if nbytes else 0
    return (start, nbytes, tensor.untyped_storage().data_ptr()) if start else None


_process = PinnedBudget(CudaDriver(), 0)


def process_budget() -> PinnedBudget:
    """The budget of this process, as large as its machine and options allow now."""
    _process.limit_bytes = reserve.maximum_pinned_memory(current.machine(), current.options())
    return _process


def pin_memory(tensor: torch.Tensor) -> bool:
    """Lock the memory of `tensor` in place within the process's budget; whether this did it.

    Copies to a device from locked memory run at the speed of the link and beside computation.
    """
    return process_budget().pin(tensor)


def unpin_memory(tensor: torch.Tensor) -> bool:
    """Unlock what `pin_memory` locked; whether this did it. A tensor that dies needs no call."""
    return _process.unpin(tensor)


def total_pinned_bytes() -> int:
    """Bytes that are locked now through `pin_memory`."""
    return _process.total_pinned_bytes
