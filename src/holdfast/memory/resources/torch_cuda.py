"""`Cuda`, memory of a CUDA device from torch's allocator; torch's statistics and limits.

Memory that torch and our pools use on a device is counted once. A freed block may be reused at
once, as in torch on one stream: work on another stream must have ended before its block is freed.
"""

from __future__ import annotations

from typing import Any

import torch

from holdfast.base.errors import BadInput, OutOfMemory, Unsupported
from holdfast.base.units import format_bytes
from holdfast.memory.core.stats import MemoryStats
from holdfast.memory.resources.resource import TrackedResource, check_size


def available() -> bool:
    return torch.cuda.is_available()


def require(device_id: int) -> int:
    """Return `device_id` if there is such a device. Raises Unsupported or BadInput."""
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if not count:
        raise Unsupported(
            "there is no CUDA device that torch can use",
            expected="an NVIDIA GPU, its driver and a CUDA build of torch",
            hint="holdfast doctor, or device='cpu'",
        )
    if not 0 <= device_id < count:
        raise BadInput(
            f"there is no device cuda:{device_id}", expected=f"cuda:0 to cuda:{count - 1}"
        )
    return device_id


class Cuda(TrackedResource[int]):
    """Memory of one CUDA device, from torch's caching allocator."""

    def __init__(self, device_id: int = 0) -> None:
        super().__init__()
        self.device_id = require(device_id)
        self.device = f"cuda:{device_id}"

    def __repr__(self) -> str:
        return f"Cuda({self.device_id})"

    def allocate(self, size: int) -> int:
        try:
            address = torch.cuda.caching_allocator_alloc(max(1, check_size(size)), self.device_id)
        except torch.OutOfMemoryError as exc:
            free, total = torch.cuda.mem_get_info(self.device_id)
            raise OutOfMemory(
                f"{self.device} has no {format_bytes(size)}: {format_bytes(free)} of "
                f"{format_bytes(total)} are free on the device, torch has reserved "
                f"{format_bytes(torch.cuda.memory_reserved(self.device_id))} of them",
                expected=f"{format_bytes(size)} below the memory fraction",
                hint="cuda.set_memory_fraction, empty_cache, or less at once",
            ) from exc
        self._blocks.add(address, size)
        return address

    def _release(self, address: int, known: int) -> None:
        torch.cuda.caching_allocator_delete(address)


def stats(device_id: int, ours: MemoryStats) -> MemoryStats:
    """Torch's statistics of a device, combined with `ours`.

    `ours` are the statistics of our pools on it, whose reserved memory torch counts as in use.
    """
    t = torch.cuda.memory_stats(device_id)

    requested = t.get("requested_bytes.all.current", t.get("allocated_bytes.all.current", 0))
    reserved = t.get("reserved_bytes.all.current", 0)
    active = t.get("active_bytes.all.current", 0) - ours.reserved_bytes + ours.active_bytes
    allocs = t.get("allocation.all.allocated", 0)
    return MemoryStats(
        allocated_bytes=requested - ours.reserved_bytes + ours.allocated_bytes,
        reserved_bytes=reserved,
        active_bytes=active,
        inactive_bytes=reserved - active,
        cached_bytes=reserved - active,
        peak_allocated=t.get("requested_bytes.all.peak", 0),
        peak_reserved=t.get("reserved_bytes.all.peak", 0),
        num_allocs=allocs + ours.num_allocs,
        num_frees=t.get("allocation.all.freed", 0) + ours.num_frees,
        cache_hits=max(0, allocs - t.get("num_device_alloc", 0)) + ours.cache_hits,
    )


class OwnSegments:
    """Puts torch's tensors into segments of their own, so that others cannot fragment them.

        with OwnSegments() as vae:
            decoder.to("cuda")
        print(vae.reserved_bytes)

    The tensors may outlive the block; the segments are freed when they and this object are gone.
    """

    def __init__(self, device_id: int = 0) -> None:
        self.device_id = require(device_id)
        self._pool = torch.cuda.MemPool()
        self._using: Any = None

    def __enter__(self) -> OwnSegments:
        self._using = torch.cuda.use_mem_pool(self._pool, self.device_id)
        self._using.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._using.__exit__(*error)

    @property
    def reserved_bytes(self) -> int:
        """Bytes of the segments."""
        return sum(segment["total_size"] for segment in self._pool.snapshot())

    @property
    def allocated_bytes(self) -> int:
        """Bytes of the tensors in them."""
        return sum(segment["allocated_size"] for segment in self._pool.snapshot())


def initialized_devices() -> list[int]:
    """The devices that torch has used in this process."""
    if not torch.cuda.is_available() or not torch.cuda.is_initialized():
        return []
    return [n for n in range(torch.cuda.device_count()) if torch.cuda.memory_reserved(n)]


def set_fraction(fraction: float) -> None:
    """Let torch use at most this fraction of each device."""
    for device in range(torch.cuda.device_count()):
        torch.cuda.set_per_process_memory_fraction(fraction, device)


def trim(keep: int) -> int:
    """Empty torch's cache if it exceeds `keep` bytes; returns the bytes released."""
    freed = 0
    for device in initialized_devices():
        before = torch.cuda.memory_reserved(device)
        if before - torch.cuda.memory_allocated(device) > keep:
            torch.cuda.empty_cache()
            freed += before - torch.cuda.memory_reserved(device)
    return freed
