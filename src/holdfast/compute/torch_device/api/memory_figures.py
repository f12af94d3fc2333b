"""Memory of the device: Holdfast's pool for it, under torch's names. All figures are bytes.

With NumPy it is the CPU's pool, which everything in this process shares. Tensors of 16 KB or more
are in it; smaller ones come from malloc, which is faster for them, and are counted only while a
recording or the leak finder runs. What the CPU computes for the device (a fallback) is in torch's
own memory. Other engines have one pool per device.
"""

from __future__ import annotations

import dataclasses
import os
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import psutil

from holdfast.base.units import format_bytes
from holdfast.compute.torch_device.api import engine_choice
from holdfast.compute.torch_device.api.current_device import device_index
from holdfast.compute.torch_device.errors import Refused
from holdfast.compute.torch_device.storage.dlpack import DEVICE
from holdfast.memory.pools.manager import memory_manager
from holdfast.memory.pools.memory_pool import MemoryPool
from holdfast.topology import control_groups


def pool(device: Any = None) -> MemoryPool:
    """Holdfast's pool for a device."""
    return memory_manager.pool(_pool_name(device_index(device)))


def _pool_name(index: int) -> str:
    engine = engine_choice.engine()
    return "cpu" if engine == engine_choice.HOST else f"{engine}:{index}"


def _counters(device: Any = None) -> dict[str, int]:
    return pool(device).pool.core.counters()


def _figure(counter: str, meaning: str) -> Callable[..., int]:
    def figure(device: Any = None) -> int:
        return _counters(device)[counter]

    figure.__doc__ = meaning
    return figure


memory_allocated = _figure("allocated", "Bytes of live tensors.")
max_memory_allocated = _figure("peak_allocated", "Peak bytes of live tensors since the last reset.")
memory_reserved = _figure("reserved", "Bytes taken from the system: live tensors, cached blocks.")
max_memory_reserved = _figure("peak_reserved", "Peak bytes from the system since the last reset.")


def reset_peak_memory_stats(device: Any = None) -> None:
    """Reset peaks to the current figures."""
    pool(device).reset_peaks()


def empty_cache() -> None:
    """Return cached memory to the system."""
    pool().empty_cache()


def memory_stats(device: Any = None) -> OrderedDict[str, int]:
    """All figures by torch's names, without those that the pool does not count."""
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
    """The figures as text; without `abbreviated` also the largest tensors and their origin."""
    held = pool(device)
    title = f"memory of {DEVICE}:{device_index(device)}"
    lines = [title, *("  " + line for line in held.stats().summary().splitlines())]
    limit = held.pool.core.limit
    if limit:
        lines.append(f"  limit       {format_bytes(limit)}")
    if not abbreviated:
        lines += [f"  {block}" for block in held.holders(10)]
    return "\n".join(lines)


# ---- the machine, or a device in it


def _remote_device(device: Any) -> Any:
    """The engine's description of a device with its own memory; None with NumPy."""
    index = device_index(device)
    if engine_choice.engine() == engine_choice.HOST:
        return None
    return engine_choice.engine_on(index).place


def _total_bytes(device: Any = None) -> int:
    remote = _remote_device(device)
    if remote is not None and remote.kind != "cpu":
        return remote.total_bytes
    total, limit = psutil.virtual_memory().total, control_groups.memory_limit()
    return total if limit is None else min(total, limit)


def _free_bytes(device: Any, active: int) -> int:
    """Bytes that the system can still provide for a device."""
    remote = _remote_device(device)
    if remote is not None and remote.kind != "cpu":
        return max(0, remote.total_bytes - active)
    free, left = psutil.virtual_memory().available, control_groups.memory_left()
    free = free if left is None else min(free, left)
    return free + _counters(device)["reserved"] - active


def mem_get_info(device: Any = None) -> tuple[int, int]:
    """(free bytes, total bytes), within the limits of this process."""
    active, limit = _counters(device)["active"], pool(device).pool.core.limit
    free, total = _free_bytes(device, active), _total_bytes(device)
    if limit:
        return min(free, max(0, limit - active)), min(total, limit)
    return min(free, total), total


_fractions: dict[str, float] = {}  # by pool; of those that have a limit


def set_per_process_memory_fraction(fraction: float, device: Any = None) -> None:
    """Limit this process to a fraction of a device's memory; 1.0 removes the limit.

    Beyond it allocations raise `torch.OutOfMemoryError`. Raises Refused for an invalid fraction.
    """
    if isinstance(fraction, bool) or not isinstance(fraction, int | float) or not 0 < fraction <= 1:
        raise Refused(
            f"cannot use {fraction!r} of the memory", expected="a number above 0, up to 1"
        )
    limit = None if fraction == 1 else max(1, int(fraction * _total_bytes(device)))
    pool(device).set_limit(limit, hard=True)
    _fractions[_pool_name(device_index(device))] = float(fraction)


def get_per_process_memory_fraction(device: Any = None) -> float:
    """The fraction that was set; 1.0 when there is no limit."""
    return _fractions.get(_pool_name(device_index(device)), 1.0)


@dataclasses.dataclass(frozen=True)
class DeviceProperties:
    """Name, engine and size of a device."""

    name: str
    engine: str
    total_memory: int  # bytes
    multi_processor_count: int  # CPUs this process may use, or compute units


def get_device_properties(device: Any = None) -> DeviceProperties:
    name, total = get_device_name(device), _total_bytes(device)
    remote = _remote_device(device)
    if remote is not None:
        units = remote.device.max_compute_units
    elif hasattr(os, "sched_getaffinity"):
        units = len(os.sched_getaffinity(0))
    else:
        units = os.cpu_count() or 1
    return DeviceProperties(name, engine_choice.engine(), total, units)


def get_device_name(device: Any = None) -> str:
    remote = _remote_device(device)
    if remote is None:
        return "Holdfast, NumPy engine"
    return f"Holdfast, OpenCL engine: {remote.device.name.strip()}"
