"""This process as a snapshot: memory, devices, pools, tags, models, the run, leaks.

A look takes less than a millisecond and changes nothing: it imports nothing, makes no context on a
device and waits for no computation. Parts that fail while they change are empty once.
"""

from __future__ import annotations

import functools
import os
import sys
import time
from dataclasses import fields, replace
from typing import Any

import holdfast
from holdfast.dashboard.snapshot import models, process_names, prompts
from holdfast.dashboard.snapshot.snapshot import (
    DeviceUse,
    LeakState,
    PoolUse,
    Process,
    RunNow,
    TagUse,
)
from holdfast.dashboard.snapshot.sources import call, get, try_call
from holdfast.memory.profile.samples import rss_bytes

MOST_TAGS = 100


class _Checked:
    """When leaks were last searched, and the result."""

    at_s: float | None = None
    count: int | None = None
    total_bytes: int | None = None


checked = _Checked()


def take(*, rss: bool = True) -> Process:
    """Take a snapshot of this process.

    Without `rss`, `rss_bytes` is 0: reading it waits for the system, and the reader of the
    snapshot can do that itself.
    """
    started = time.perf_counter()
    pid = os.getpid()
    pools = try_call(_live_pools, [])
    found = Process(
        pid=pid,
        name=_name(pid),
        holdfast=holdfast.__version__,
        began_s=_began_s(pid),
        rss_bytes=try_call(rss_bytes, 0) if rss else 0,
        pinned_bytes=try_call(lambda: _pinned_bytes(pools), 0),
        devices=try_call(lambda: _devices(pools), ()),
        pools=try_call(lambda: tuple(map(_pool, pools)), ()),
        tags=try_call(_tags, ()),
        models=try_call(models.models, ()),
        links=try_call(models.links, ()),
        run=try_call(_run, None),
        leaks=try_call(leak_state, LeakState(False, None, None, None)),
        look_us=0.0,
    )
    return replace(found, look_us=round((time.perf_counter() - started) * 1e6, 1))


@functools.cache
def _name(pid: int) -> str:
    return process_names.own_name()


@functools.cache
def _began_s(pid: int) -> float:
    return process_names.began_s(pid) or time.time()


# ---- pools and tags


def _live_pools() -> list[Any]:
    return call("holdfast.memory.pools.pool", "live_pools", [])


def _pool(pool: Any) -> PoolUse:
    counted, device = pool.core.counters(), pool.device  # as `Pool.stats` reads them
    return PoolUse(
        name=pool.name or device,
        device=device,
        allocated_bytes=counted["allocated"],
        reserved_bytes=counted["reserved"],
        cached_bytes=counted["reserved"] - counted["active"],
        peak_bytes=counted["peak_allocated"],
        blocks=counted["live"],
        requests=counted["allocs"],
        hits=counted["hits"],
    )


def _tags() -> tuple[TagUse, ...]:
    counted = call("holdfast.memory.core.tags", "counters", {})
    found = [TagUse(tag, one.current_bytes, one.peak_bytes) for tag, one in counted.items()]
    found.sort(key=lambda one: (-one.current_bytes, one.tag))
    return tuple(found[:MOST_TAGS])


def _pinned_bytes(pools: list[Any]) -> int:
    manager = "holdfast.residency.model_management.models.pinned"
    comfyui = get("comfy.model_management", "TOTAL_PINNED_MEMORY")
    ours = sum(pool.reserved_bytes for pool in pools if pool.pinned)
    return ours + call(manager, "total_pinned_bytes", 0) + int(comfyui or 0)


# ---- devices


def devices() -> tuple[DeviceUse, ...]:
    """The devices that this process uses."""
    return _devices(try_call(_live_pools, []))


def _devices(pools: list[Any]) -> tuple[DeviceUse, ...]:
    """CUDA devices as torch counts; others as our pools count."""
    found = {one.name: one for one in try_call(_cuda, [])}
    found |= {one.name: one for one in try_call(_list_simulated, []) if one.name not in found}
    for pool in pools:
        device = pool.device
        if device not in ("cpu", "nowhere") and not device.startswith("cuda"):
            found[device] = _with_pool(found.get(device), pool)
    return tuple(found[name] for name in sorted(found))


def _cuda() -> list[DeviceUse]:
    """Devices that torch has used; querying another would create a context on it."""
    torch: Any = sys.modules.get("torch")
    cuda = getattr(torch, "cuda", None)
    if cuda is None or not cuda.is_initialized():
        return []
    found: list[DeviceUse] = []
    for number in range(cuda.device_count()):
        counted = cuda.memory_stats_as_nested_dict(number)
        reserved = counted["reserved_bytes"]["all"] if counted else {}
        # cudaMallocAsync does not count total allocations.
        if not any(reserved.get(figure) for figure in ("current", "peak", "allocated")):
            continue
        free, total = cuda.mem_get_info(number)
        allocated = counted["allocated_bytes"]["all"]["current"]
        name = f"cuda:{number}"
        found.append(DeviceUse(name, total, total - free, allocated, reserved["current"]))
    return found


def _list_simulated() -> list[DeviceUse]:
    """Simulated devices of modules under a budget."""
    made = get("holdfast.residency.carriers.simulated", "Simulated")
    carriers = {id(one.carrier): one.carrier for one in (models.everyone() if made else ())}
    found: dict[str, DeviceUse] = {}
    for carrier in carriers.values():
        if isinstance(carrier, made):
            held, before = carrier.others_bytes(), found.get(carrier.name)
            held += 0 if before is None else before.allocated_bytes
            total = carrier.capacity_bytes if carrier.capacity_bytes < 1 << 60 else None
            found[carrier.name] = DeviceUse(carrier.name, total, held, held, held)
    return list(found.values())


def _with_pool(before: DeviceUse | None, pool: Any) -> DeviceUse:
    stats = pool.stats()
    before = before or DeviceUse(pool.device, _total_bytes(pool.device), None, 0, 0)
    return replace(
        before,
        allocated_bytes=before.allocated_bytes + stats.allocated_bytes,
        reserved_bytes=before.reserved_bytes + stats.reserved_bytes,
    )


def _total_bytes(device: str) -> int | None:
    """Total memory of an OpenCL device that this process has opened."""
    kind, _, number = device.partition(":")
    ask = get("holdfast.memory.resources.opencl_devices", "open_device")
    if kind != "opencl" or ask is None or not number.isdigit():
        return None
    return try_call(lambda: int(ask(int(number)).total_bytes), None)


# ---- the run, leaks


def _run() -> RunNow | None:
    now = call("holdfast.pipeline.run.live_runs", "current", None)
    if now is None:
        return prompts.current()
    return RunNow(**{one.name: getattr(now, one.name) for one in fields(RunNow)})


def leak_state() -> LeakState:
    """The result of the last leak search; does not search."""
    on = bool(call("holdfast.memory.debug.debugging", "is_enabled", False))
    return LeakState(on, checked.at_s, checked.count, checked.total_bytes)
