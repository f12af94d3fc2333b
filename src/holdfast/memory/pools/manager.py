"""Memory of the whole process: default pools, statistics over all pools and torch, settings.

Without CUDA, settings for it are stored and a warning says so, once. torch is imported only for a
CUDA device.
"""

from __future__ import annotations

import gc
import sys
import threading
import warnings
from types import ModuleType

from holdfast.base.errors import BadInput, OutOfMemory
from holdfast.memory.core import tags
from holdfast.memory.core.stats import DetailedStats, MemoryStats
from holdfast.memory.pools.memory_pool import CPUMemoryPool, MemoryPool, memory_pools
from holdfast.memory.pools.pool import Pool, live_pools, parse_size


class FallbackWarning(UserWarning):
    """A device that was asked for is missing; the CPU is used instead."""


class MemoryManager:
    """The pools of this process."""

    def __init__(self) -> None:
        self._defaults: dict[str, MemoryPool] = {}
        self._lock = threading.RLock()
        self._warned: set[str] = set()

    def pool(self, device: str = "cpu") -> MemoryPool:
        """The default pool of "cpu", "cuda" or "cuda:1"; the CPU's if there is no such device."""
        place = self.place(device)
        with self._lock:
            if place not in self._defaults:
                self._defaults[place] = self._make(place)
            return self._defaults[place]

    def place(self, device: str) -> str:
        """The device that `device` means here: "cpu", "opencl:N", or "cuda:N" if there is one."""
        kind, _, number = device.partition(":")
        if kind == "cpu":
            return "cpu"
        if kind not in ("cuda", "opencl") or (number and not number.isdigit()):
            raise BadInput(
                f"there is no device {device!r}", expected="cpu, cuda, cuda:N, opencl or opencl:N"
            )
        if kind == "opencl":
            return f"opencl:{number or 0}"
        if not cuda.is_available():
            self.warn_once(
                f"there is no CUDA device that torch can use: {device!r} is the CPU in this process"
            )
            return "cpu"
        return f"cuda:{number or 0}"

    def _make(self, place: str) -> MemoryPool:
        if place == "cpu":
            return CPUMemoryPool(
                name="cpu", use_pinned_memory=cpu.pinned_memory, cache_size=cpu.cache_bytes
            )
        made = MemoryPool(place, name=place)
        made.set_cache_size(cuda.cache_bytes)
        return made

    def warn_once(self, text: str) -> None:
        if text not in self._warned:
            self._warned.add(text)
            warnings.warn(text, FallbackWarning, stacklevel=_callers_level())

    def empty_cache(self) -> int:
        """Release all free memory to the system; returns the bytes released."""
        return _trim_torch(0) + sum(pool.empty_cache() for pool in (*memory_pools(), *live_pools()))

    def collect_garbage(self) -> int:
        """Collect Python's garbage; returns how many bytes of our pools that freed.

        Free neighbours are merged, and torch's cache is trimmed to its limit.
        """
        before = sum(pool.total_allocated for pool in memory_pools())
        gc.collect()
        for pool in memory_pools():
            pool.collect_garbage()
        cuda.trim_torch_cache()
        return max(0, before - sum(pool.total_allocated for pool in memory_pools()))

    def compact(self) -> int:
        """Merge free neighbours, move movable blocks, release free pages; returns the bytes."""
        return sum(pool.compact() for pool in memory_pools()) + _trim_torch(0)

    def by_device(self) -> dict[str, MemoryStats]:
        """The statistics of each device: all pools on it and torch's allocator together."""
        pools: dict[str, list[Pool]] = {}
        for pool in live_pools():
            pools.setdefault(pool.device, []).append(pool)
        found = {
            device: sum((pool.stats() for pool in own), MemoryStats())
            for device, own in pools.items()
            if device != "nowhere"
        }
        torch_cuda = _torch_cuda()
        if torch_cuda is not None:
            for number in torch_cuda.initialized_devices():
                name = f"cuda:{number}"
                found[name] = torch_cuda.stats(number, found.get(name, MemoryStats()))
        return found

    def stats(self, device: str | None = None) -> MemoryStats:
        """The statistics of one device, or of all."""
        cuda.trim_torch_cache()
        found = self.by_device()
        if device is not None:
            return found.get(self.place(device), MemoryStats())
        return sum(found.values(), MemoryStats())

    def detailed(self) -> DetailedStats:
        """All statistics, with every block of our pools."""
        devices = self.by_device()
        total = sum(devices.values(), MemoryStats())
        blocks = [block for pool in live_pools() for block in pool.holders()]
        return DetailedStats(
            total_allocated=total.allocated_bytes,
            peak_allocated=total.peak_allocated,
            total_reserved=total.reserved_bytes,
            fragmentation_ratio=total.fragmentation_ratio(),
            cache_hit_rate=total.cache_hit_rate(),
            by_device=devices,
            by_tag=tags.counters(),
            allocations=tuple(sorted(blocks, key=lambda block: -block.size)),
        )


class _Cuda:
    """Settings of CUDA devices; `holdfast.cuda`."""

    def __init__(self) -> None:
        self.memory_fraction: float | None = None
        self.cache_bytes: int | None = None

    def is_available(self) -> bool:
        """Whether torch is installed and can use a CUDA device."""
        try:
            import torch
        except ImportError:
            return False
        return torch.cuda.is_available()

    def set_memory_fraction(self, fraction: float) -> None:
        """Use at most this fraction of each device, in torch too."""
        check_fraction(fraction)
        self.memory_fraction = fraction
        if self._warn_unless_available("the memory fraction") and (torch_cuda := _torch_cuda()):
            torch_cuda.set_fraction(fraction)

    def set_cache_size(self, size: int | str) -> None:
        """Keep at most `size` free bytes on each device.

        Our pools keep to it at every free; torch's cache is trimmed when statistics are read,
        garbage is collected or a profile is taken.
        """
        self.cache_bytes = parse_size(size)
        for pool in memory_pools():
            if pool.device_type.startswith("cuda"):
                pool.set_cache_size(self.cache_bytes)
        if self._warn_unless_available("the cache size"):
            self.trim_torch_cache()

    def trim_torch_cache(self) -> int:
        """Empty torch's cache if it exceeds the cache size; returns the bytes released."""
        return 0 if self.cache_bytes is None else _trim_torch(self.cache_bytes)

    def _warn_unless_available(self, what: str) -> bool:
        available = self.is_available()
        if not available:
            memory_manager.warn_once(
                f"there is no CUDA device that torch can use: {what} is kept and changes nothing"
            )
        return available


def check_fraction(fraction: float) -> None:
    """Raise BadInput unless it is a fraction of a memory."""
    if not 0 < fraction <= 1:
        raise BadInput(f"cannot use {fraction} of the memory", expected="a number above 0, up to 1")


class _Cpu:
    """Settings of the host's memory; `holdfast.cpu`."""

    def __init__(self) -> None:
        self.pinned_memory = False
        self.cache_bytes: int | None = None

    def enable_pinned_memory(self, enabled: bool = True) -> None:
        """Make the default pool allocate pinned blocks, if this process may lock memory."""
        if enabled:
            try:
                _pool().allocate_pinned(1)
            except OutOfMemory as exc:
                memory_manager.warn_once(f"memory is not pinned: {exc.what}")
                return
        self.pinned_memory = enabled
        _pool().use_pinned_memory = enabled

    def set_cache_size(self, size: int | str) -> None:
        """Keep at most `size` free bytes in each pool of the host."""
        self.cache_bytes = parse_size(size)
        for pool in memory_pools():
            if pool.device_type == "cpu":
                pool.set_cache_size(self.cache_bytes)


cuda = _Cuda()
cpu = _Cpu()
memory_manager = MemoryManager()
memory_stats = memory_manager.stats
detailed_memory_stats = memory_manager.detailed
empty_cache = memory_manager.empty_cache


def _pool() -> CPUMemoryPool:
    pool = memory_manager.pool("cpu")
    assert isinstance(pool, CPUMemoryPool)
    return pool


def _trim_torch(keep: int) -> int:
    torch_cuda = _torch_cuda()
    return torch_cuda.trim(keep) if torch_cuda else 0


def _callers_level() -> int:
    """The stacklevel of the first frame outside this package, seen from `warn_once`."""
    frame, level = sys._getframe(2), 2
    while frame.f_back and frame.f_globals.get("__name__", "").startswith("holdfast."):
        frame, level = frame.f_back, level + 1
    return level


def _torch_cuda() -> ModuleType | None:
    """The `torch_cuda` module, if this process uses torch with a CUDA device."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available():
        return None
    from holdfast.memory.resources import torch_cuda

    return torch_cuda
