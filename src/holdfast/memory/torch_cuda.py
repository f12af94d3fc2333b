"""Memory of a CUDA device, through torch's own allocator.

Covers: the resource `Cuda`, `CUDAMemoryPool`, torch's figures in our words, its limits.
Leaves to others: recording (torch_cuda_trace), memory of the host.
Promise: what torch and our pools use on a device is counted once; torch's out-of-memory error
becomes ours.

A block that is freed is handed out again at once, as in torch on one stream. Work on another
stream must have ended before its block is freed.
"""

from __future__ import annotations

from typing import Any

import torch

from holdfast.base.errors import BadInput, OutOfMemory, Unsupported
from holdfast.base.units import format_bytes
from holdfast.memory.arenas import FIXED
from holdfast.memory.memory_pool import MemoryPool
from holdfast.memory.pool import Pool
from holdfast.memory.resource import Blocks, checked
from holdfast.memory.stats import MemoryStats

SMALL_BYTES = 64 << 20  # of a preallocation, for blocks up to 1 MB
SPARED_BYTES = 256 << 20  # left to CUDA itself: contexts and kernels


def available() -> bool:
    """Whether torch can use a CUDA device here."""
    return torch.cuda.is_available()


def require(device_id: int) -> int:
    """`device_id`, where there is such a device."""
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


class Cuda:
    """Memory of one CUDA device, from torch's caching allocator."""

    pinned = False

    def __init__(self, device_id: int = 0) -> None:
        self.device_id = require(device_id)
        self.device = f"cuda:{device_id}"
        self._blocks: Blocks[int] = Blocks(self)  # their sizes

    def __repr__(self) -> str:
        return f"Cuda({self.device_id})"

    def allocate(self, size: int) -> int:
        """The address of `size` bytes on the device."""
        try:
            address = torch.cuda.caching_allocator_alloc(max(1, checked(size)), self.device_id)
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

    def free(self, address: int) -> None:
        """Give a block back to torch."""
        self._blocks.remove(
            address, lambda address, _: torch.cuda.caching_allocator_delete(address)
        )

    def owns(self, address: int) -> bool:
        """Whether a block in use begins there."""
        return address in self._blocks


class CUDAMemoryPool(MemoryPool):
    """Blocks on a CUDA device; `memory_fraction` of the device is taken when the pool is made.

    With `preallocate=False` the fraction is only a limit, and memory is taken as it is needed.
    """

    def __init__(
        self,
        device_id: int = 0,
        memory_fraction: float = 0.8,
        *,
        preallocate: bool = True,
        **options: Any,
    ) -> None:
        _check_fraction(memory_fraction)
        super().__init__(f"cuda:{device_id}", resource=Cuda(device_id), **options)
        self.device_id = device_id
        self.memory_fraction = memory_fraction
        free, total = torch.cuda.mem_get_info(device_id)
        self.limit_bytes = int(total * memory_fraction)
        self.pool.set_limit(self.limit_bytes)
        if preallocate:
            self._preallocate(min(self.limit_bytes, free - SPARED_BYTES))

    def _preallocate(self, length: int) -> None:
        small = min(SMALL_BYTES, length // 8)
        for arena, size in ((0, small), (1, length - small)):
            whole = size // (2 << 20) * (2 << 20)
            if whole > 0:
                address = self.pool.upstream.allocate(whole)
                self.pool._fixed[address] = whole
                self.pool.core.add_segment(arena, FIXED, address, whole, whole)


def stats(device_id: int, pools: list[Pool]) -> MemoryStats:
    """What torch counts on a device; `pools` are ours on it, whose memory torch sees as in use."""
    t = torch.cuda.memory_stats(device_id)
    ours = MemoryStats()
    for pool in pools:
        ours += pool.stats()
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
    """torch's tensors in segments of their own, so that others cannot break them up.

        with OwnSegments() as vae:
            decoder.to("cuda")
        print(vae.reserved_bytes)

    The tensors may live on; their segments go back when they, and this, are gone.
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
        """What its segments take."""
        return sum(segment["total_size"] for segment in self._pool.snapshot())

    @property
    def allocated_bytes(self) -> int:
        """What tensors in them take."""
        return sum(segment["allocated_size"] for segment in self._pool.snapshot())


def initialized_devices() -> list[int]:
    """The devices that torch has used in this process."""
    if not torch.cuda.is_available() or not torch.cuda.is_initialized():
        return []
    return [n for n in range(torch.cuda.device_count()) if torch.cuda.memory_reserved(n)]


def set_fraction(fraction: float) -> None:
    """Let torch use at most this part of each device."""
    for device in range(torch.cuda.device_count()):
        torch.cuda.set_per_process_memory_fraction(fraction, device)


def trim(keep: int) -> int:
    """Give torch's cache back where it is larger than `keep` bytes; returns how much went."""
    freed = 0
    for device in initialized_devices():
        before = torch.cuda.memory_reserved(device)
        if before - torch.cuda.memory_allocated(device) > keep:
            torch.cuda.empty_cache()
            freed += before - torch.cuda.memory_reserved(device)
    return freed


def _check_fraction(fraction: float) -> None:
    if not 0 < fraction <= 1:
        raise BadInput(f"cannot use {fraction} of the memory", expected="a number above 0, up to 1")
