"""Memory of the device: Holdfast's pool of the CPU, under the names that torch has for figures.

Covers: figures, peaks, the cache, a limit.
Leaves to others: the pool (`holdfast.memory`), whose profiler, tags and leak finder see the
device's tensors as they see all blocks.
Promise: figures are bytes. Tensors of 16 KB or more lie in the pool; smaller ones come from malloc,
which is quicker for them, and are not counted, unless a recording or the leak finder looks on. What
the CPU computes for the device (a fallback) lies in torch's own memory. Everything else that takes
memory from the pool of the CPU in this process is counted too.
"""

from __future__ import annotations

import dataclasses
import os
from collections import OrderedDict
from typing import Any

import psutil

from holdfast.base.units import format_bytes
from holdfast.compute.torch_device.errors import Refused
from holdfast.compute.torch_device.places import place
from holdfast.memory.manager import memory_manager
from holdfast.memory.memory_pool import MemoryPool
from holdfast.topology import control_groups


def _pool(device: Any = None) -> MemoryPool:
    place(device)
    return memory_manager.pool("cpu")


def _counters(device: Any = None) -> dict[str, int]:
    return _pool(device).pool.core.counters()


def memory_allocated(device: Any = None) -> int:
    """Bytes of tensors that are there now."""
    return _counters(device)["allocated"]


def max_memory_allocated(device: Any = None) -> int:
    """The most bytes of tensors at once, since the peaks were last reset."""
    return _counters(device)["peak_allocated"]


def memory_reserved(device: Any = None) -> int:
    """Bytes got from the system: tensors, and room that is kept for the next ones."""
    return _counters(device)["reserved"]


def max_memory_reserved(device: Any = None) -> int:
    """The most bytes got from the system at once, since the peaks were last reset."""
    return _counters(device)["peak_reserved"]


def reset_peak_memory_stats(device: Any = None) -> None:
    """Peaks begin again at what is there now."""
    _pool(device).reset_peaks()


def empty_cache() -> None:
    """Give memory that no tensor uses back to the system."""
    _pool().empty_cache()


def memory_stats(device: Any = None) -> OrderedDict[str, int]:
    """All figures, under torch's names; those that the pool does not count are left out."""
    c = _counters(device)
    found = {
        "allocated_bytes.all.current": c["allocated"],
        "allocated_bytes.all.peak": c["peak_allocated"],
        "allocated_bytes.all.allocated": c["cumulative"],
        "allocated_bytes.all.freed": c["cumulative"] - c["allocated"],
        "allocation.all.current": c["live"],
        "allocation.all.peak": c["peak_live"],
        "allocation.all.allocated": c["allocs"],
        "allocation.all.freed": c["frees"],
        "active_bytes.all.current": c["active"],
        "active_bytes.all.peak": c["peak_active"],
        "reserved_bytes.all.current": c["reserved"],
        "reserved_bytes.all.peak": c["peak_reserved"],
        "inactive_split_bytes.all.current": c["reserved"] - c["active"],
    }
    return OrderedDict(sorted(found.items()))


def memory_stats_as_nested_dict(device: Any = None) -> dict[str, Any]:
    """`memory_stats`, with a dictionary for each part of a name."""
    nested: dict[str, Any] = {}
    for name, value in memory_stats(device).items():
        inner = nested
        *parts, last = name.split(".")
        for part in parts:
            inner = inner.setdefault(part, {})
        inner[last] = value
    return nested


def memory_summary(device: Any = None, abbreviated: bool = False) -> str:
    """The figures as text; without `abbreviated` also the largest tensors, and by whom."""
    pool = _pool(device)
    lines = ["memory of holdfast:0", *("  " + line for line in pool.stats().summary().splitlines())]
    limit = pool.pool.core.limit
    if limit:
        lines.append(f"  limit       {format_bytes(limit)}")
    if not abbreviated:
        lines += [f"  {block}" for block in pool.holders(10)]
    return "\n".join(lines)


# ---- the machine


def _total_bytes() -> int:
    total = psutil.virtual_memory().total
    limit = control_groups.memory_limit()
    return total if limit is None else min(total, limit)


def mem_get_info(device: Any = None) -> tuple[int, int]:
    """(bytes that can still be had, bytes in all), as far as this process and a limit may go."""
    c, limit = _counters(device), _pool(device).pool.core.limit
    left = control_groups.memory_left()
    free = psutil.virtual_memory().available
    free = free if left is None else min(free, left)
    free += c["reserved"] - c["active"]
    total = _total_bytes()
    if limit:
        return min(free, max(0, limit - c["active"])), min(total, limit)
    return min(free, total), total


_fraction = 1.0


def set_per_process_memory_fraction(fraction: float, device: Any = None) -> None:
    """Use at most this part of the memory of this machine; 1.0 takes the limit away.

    What does not fit raises `torch.OutOfMemoryError`. Raises Refused for what is no fraction.
    """
    global _fraction
    if isinstance(fraction, bool) or not isinstance(fraction, int | float) or not 0 < fraction <= 1:
        raise Refused(
            f"cannot use {fraction!r} of the memory", expected="a number above 0, up to 1"
        )
    limit = None if fraction == 1 else max(1, int(fraction * _total_bytes()))
    _pool(device).set_limit(limit, hard=True)
    _fraction = float(fraction)


def get_per_process_memory_fraction(device: Any = None) -> float:
    """The part of the memory that was set; 1.0 when there is no limit."""
    place(device)
    return _fraction


@dataclasses.dataclass(frozen=True)
class DeviceProperties:
    """What a device is."""

    name: str
    engine: str  # who computes
    total_memory: int  # bytes
    multi_processor_count: int  # CPUs this process may use


def get_device_properties(device: Any = None) -> DeviceProperties:
    """What the device is."""
    place(device)
    able = (
        os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    )
    return DeviceProperties(get_device_name(), "numpy", _total_bytes(), len(able))


def get_device_name(device: Any = None) -> str:
    """What the device is called."""
    place(device)
    return "Holdfast, NumPy engine"
