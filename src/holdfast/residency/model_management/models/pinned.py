"""Page-locks existing host memory, within a budget for the process.

Memory is unlocked before it is freed, in whichever thread that happens. The exception: `resize_` of
a storage frees memory unnoticed, so do not resize what was pinned.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from holdfast.residency.model_management.rules import current, reserve


class Driver(Protocol):
    """Page-locks memory. Both methods return success, and leave no pending error on failure."""

    def register(self, address: int, nbytes: int) -> bool: ...
    def unregister(self, address: int) -> bool: ...


class CudaDriver:
    """CUDA and ROCm: cudaHostRegister on existing memory."""

    _PORTABLE = 1  # locked for all contexts of the process

    def register(self, address: int, nbytes: int) -> bool:
        if not torch.cuda.is_available():
            return False
        runtime: Any = torch.cuda.cudart()
        return self._done(runtime.cudaHostRegister(address, nbytes, self._PORTABLE))

    def unregister(self, address: int) -> bool:
        runtime: Any = torch.cuda.cudart()
        return self._done(runtime.cudaHostUnregister(address))

    def _done(self, status: Any) -> bool:
        if int(status) == 0:
            return True
        # Clear the runtime's last error: the next kernel launch would report it.
        with contextlib.suppress(RuntimeError):
            torch.zeros(1, device="cuda").add_(1)
        return False


@dataclass(frozen=True, slots=True)
class _Range:
    nbytes: int
    storage: int  # address of its storage
    finalizer: Any


class PinnedBudget:
    """Pinned ranges of host memory, at most `limit_bytes` in all. Thread-safe."""

    def __init__(self, driver: Driver, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.total_pinned_bytes = 0
        self._driver = driver
        self._ranges: dict[int, _Range] = {}  # by address
        self._storages: dict[int, set[int]] = {}  # address of a storage -> addresses of ranges
        self._lock = threading.RLock()  # a garbage collection in here may free a pinned storage

    def pin(self, tensor: torch.Tensor) -> bool:
        """Pin the memory of `tensor`, if it is one piece and within budget; returns success."""
        found = _range_of(tensor)
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
        """Unpin what `pin` pinned for this memory; returns success, else nothing is changed."""
        found = _range_of(tensor)
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
        # Live storages do not overlap; the driver refuses one over foreign memory.
        for own in tuple(self._storages.get(storage, ())):
            known = self._ranges.get(own)
            if known is not None and own < start + nbytes and start < own + known.nbytes:
                return True
        return False

    def _note(self, tensor: torch.Tensor, storage: int, start: int, nbytes: int) -> None:
        finalizer = weakref.finalize(tensor.untyped_storage(), self._end, start)
        finalizer.atexit = False  # the driver may be gone then, and the system unlocks anyway
        self._ranges[start] = _Range(nbytes, storage, finalizer)
        self._storages.setdefault(storage, set()).add(start)
        self.total_pinned_bytes += nbytes

    def _end(self, start: int) -> None:
        """Called when the storage dies; its memory is freed as soon as this returns."""
        with self._lock:
            self._driver.unregister(start)
            self._forget(start)

    def _forget(self, start: int) -> None:
        known = self._ranges.pop(start)
        self.total_pinned_bytes -= known.nbytes
        self._storages[known.storage].discard(start)
        if not self._storages[known.storage]:
            del self._storages[known.storage]


def _range_of(tensor: torch.Tensor) -> tuple[int, int, int] | None:
    """(address, bytes, address of the storage) if the memory can be pinned as one range."""
    if tensor.device.type != "cpu" or tensor.layout != torch.strided or not tensor.is_contiguous():
        return None
    nbytes = tensor.numel() * tensor.element_size()
    start = tensor.data_ptr() if nbytes else 0
    return (start, nbytes, tensor.untyped_storage().data_ptr()) if start else None


_process = PinnedBudget(CudaDriver(), 0)


def process_budget() -> PinnedBudget:
    """The budget of this process, by its current machine and options."""
    _process.limit_bytes = reserve.maximum_pinned_memory(current.machine(), current.options())
    return _process


def pin_memory(tensor: torch.Tensor) -> bool:
    """Pin the memory of `tensor` in place, within the process's budget; returns success."""
    return process_budget().pin(tensor)


def unpin_memory(tensor: torch.Tensor) -> bool:
    """Unpin what `pin_memory` pinned; returns success. Not needed for a tensor that is freed."""
    return _process.unpin(tensor)


def total_pinned_bytes() -> int:
    """Bytes pinned now by `pin_memory`."""
    return _process.total_pinned_bytes
