"""Memory of the device: Holdfast's pool for it, under the names that torch has for figures.

Covers: figures, peaks, the cache, a limit.
Leaves to others: the pool (`holdfast.memory`), whose profiler, tags and leak finder see the
device's tensors as they see all blocks.
Promise: figures are bytes. With NumPy it is the CPU's pool: tensors of 16 KB or more lie in it;
smaller ones come from malloc, which is quicker for them, and are not counted, unless a recording or
the leak finder looks on. What the CPU computes for the device (a fallback) lies in torch's own
memory. Everything else that takes memory from the pool in this process is counted too. Another
engine has a pool for each of its devices.
"""

from __future__ import annotations

import dataclasses
import os
from collections import OrderedDict
from typing import Any

import psutil

from holdfast.base.units import format_bytes
from holdfast.compute.torch_device import selecting
from holdfast.compute.torch_device.capsules import DEVICE
from holdfast.compute.torch_device.errors import Refused
from holdfast.compute.torch_device.places import place
from holdfast.memory.manager import memory_manager
from holdfast.memory.memory_pool import MemoryPool
from holdfast.topology import control_groups


def pool(device: Any = None) -> MemoryPool:
    """Holdfast's pool for a device."""
    return memory_manager.pool(_pool_name(place(device)))


def _pool_name(index: int) -> str:
    engine = selecting.engine()
    return "cpu" if engine == selecting.HOST else f"{engine}:{index}"


def _counters(device: Any = None) -> dict[str, int]:
    return pool(device).pool.core.counters()


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
    pool(device).reset_peaks()


def empty_cache() -> None:
    """Give memory that no tensor uses back to the system."""
    pool().empty_cache()


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
    held = pool(device)
    title = f"memory of {DEVICE}:{place(device)}"
    lines = [title, *("  " + line for line in held.stats().summary().splitlines())]
    limit = held.pool.core.limit
    if limit:
        lines.append(f"  limit       {format_bytes(limit)}")
    if not abbreviated:
        lines += [f"  {block}" for block in held.holders(10)]
    return "\n".join(lines)


# ---- the machine, or a device in it


def _far(device: Any) -> Any:
    """A device with memory of its own, as the engine describes it: None with NumPy."""
    index = place(device)
    if selecting.engine() == selecting.HOST:
        return None
    return selecting.chosen(index).place


def _total_bytes(device: Any = None) -> int:
    far = _far(device)
    if far is not None and far.kind != "cpu":
        return far.total_bytes
    total = psutil.virtual_memory().total
    limit = control_groups.memory_limit()
    return total if limit is None else min(total, limit)


def _free_bytes(device: Any, active: int) -> int:
    """Bytes that the system still has for a device."""
    far = _far(device)
    if far is not None and far.kind != "cpu":
        return max(0, far.total_bytes - active)
    left = control_groups.memory_left()
    free = psutil.virtual_memory().available
    free = free if left is None else min(free, left)
    return free + _counters(device)["reserved"] - active


def mem_get_info(device: Any = None) -> tuple[int, int]:
    """(bytes that can still be had, bytes in all), as far as this process and a limit may go."""
    active, limit = _counters(device)["active"], pool(device).pool.core.limit
    free, total = _free_bytes(device, active), _total_bytes(device)
    if limit:
        return min(free, max(0, limit - active)), min(total, limit)
    return min(free, total), total


_fractions: dict[str, float] = {}  # by pool; of those that have a limit


def set_per_process_memory_fraction(fraction: float, device: Any = None) -> None:
    """Use at most this part of the memory of a device; 1.0 takes the limit away.

    What does not fit raises `torch.OutOfMemoryError`. Raises Refused for what is no fraction.
    """
    if isinstance(fraction, bool) or not isinstance(fraction, int | float) or not 0 < fraction <= 1:
        raise Refused(
            f"cannot use {fraction!r} of the memory", expected="a number above 0, up to 1"
        )
    limit = None if fraction == 1 else max(1, int(fraction * _total_bytes(device)))
    pool(device).set_limit(limit, hard=True)
    _fractions[_pool_name(place(device))] = float(fraction)


def get_per_process_memory_fraction(device: Any = None) -> float:
    """The part of the memory that was set; 1.0 when there is no limit."""
    return _fractions.get(_pool_name(place(device)), 1.0)


@dataclasses.dataclass(frozen=True)
class DeviceProperties:
    """What a device is."""

    name: str
    engine: str  # who computes
    total_memory: int  # bytes
    multi_processor_count: int  # CPUs this process may use, or compute units


def get_device_properties(device: Any = None) -> DeviceProperties:
    """What a device is."""
    name, total = get_device_name(device), _total_bytes(device)
    far = _far(device)
    if far is not None:
        return DeviceProperties(name, selecting.engine(), total, far.device.max_compute_units)
    able = (
        os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    )
    return DeviceProperties(name, selecting.HOST, total, len(able))


def get_device_name(device: Any = None) -> str:
    """What a device is called."""
    far = _far(device)
    if far is None:
        return "Holdfast, NumPy engine"
    return f"Holdfast, OpenCL engine: {far.device.name.strip()}"
