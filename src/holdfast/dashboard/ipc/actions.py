"""Requests to this process: find holders and leaks, free memory, change a budget, stop a run.

Values are checked before anything changes. A running pass is not disturbed: it finishes within the
larger of two budgets, with the same results bit for bit.
"""

from __future__ import annotations

import gc
import os
import sys
import time
from collections.abc import Iterator
from typing import Any

from holdfast.base.errors import BadInput, Misuse, NotFound, Unsupported
from holdfast.base.units import format_bytes
from holdfast.dashboard.snapshot import models, process
from holdfast.dashboard.snapshot.min_budget import min_budget_bytes
from holdfast.dashboard.snapshot.snapshot import (
    Freed,
    Holder,
    LeakFound,
    LeakState,
    ModelUse,
)
from holdfast.dashboard.snapshot.sources import call, get, try_call
from holdfast.memory.profile.samples import rss_bytes

MOST_HOLDERS = 1000


# ---- slow queries


def holders(most: int = 50) -> tuple[Holder, ...]:
    """The largest blocks of all pools, and torch's tensors grouped by holder."""
    most = _check_integer("most", most, 1, MOST_HOLDERS)
    found = [
        Holder(os.getpid(), one.size, one.device, one.tag, one.location)
        for pool in call("holdfast.memory.pools.pool", "live_pools")
        for one in pool.holders(most)
    ]
    found += _tensors() if "torch" in sys.modules else ()
    found.sort(key=lambda one: -one.nbytes)
    return tuple(found[:most])


def _tensors() -> Iterator[Holder]:
    """Tensors outside of our pools, summed by holder."""
    from holdfast.nodes.memory.holding import holdings

    # then they are in our pools
    pooled = call("holdfast.memory.hooks.torch_cpu", "is_installed", False)
    for row in holdings().rows:
        if row.device.startswith("holdfast") or (pooled and row.device == "cpu"):
            continue
        count = f"{row.tensors} tensors" if row.tensors > 1 else "a tensor"
        yield Holder(os.getpid(), row.nbytes, row.device, "", f"{count}: {'; '.join(row.holders)}")


def leaks() -> tuple[LeakFound, ...]:
    """Search for leaked blocks. Raises Misuse if memory debugging is off."""
    if not process.leak_state().debugging:
        raise Misuse(
            f"cannot find leaks: memory debugging is off in process {os.getpid()}",
            expected="memory debugging that was on while the blocks were made",
            hint="switch it on, let the process work on, and look again",
        )
    from holdfast.memory.debug.leaks import check_memory_leaks

    found = check_memory_leaks()
    process.checked.at_s = time.time()
    process.checked.count = len(found)
    process.checked.total_bytes = sum(leak.size for leak in found)
    pid = os.getpid()
    return tuple(
        LeakFound(pid, one.size, one.device, one.tag, one.location, one.age_s, tuple(one.referrers))
        for one in found
    )


def set_debugging(on: bool) -> LeakState:
    """Switch memory debugging on or off: recording where blocks are allocated."""
    _check_flag("on", on)
    if on != process.leak_state().debugging:
        from holdfast.memory.debug.debugging import enable_memory_debugging

        enable_memory_debugging(on)
    return process.leak_state()


# ---- freeing memory


def free(caches: bool = True, models: bool = False, garbage: bool = True) -> Freed:
    """Free memory. Models are unloaded from their devices and come back with their next run.

    A running model stays; so do the manager's models of the last load.
    """
    for name, value in (("caches", caches), ("models", models), ("garbage", garbage)):
        _check_flag(name, value)
    before, ram_bytes = _on_devices(), rss_bytes()
    gone = _unload() if models else 0
    if garbage:
        gc.collect()
    if caches or models:
        _empty_caches()
    ram_bytes -= rss_bytes()
    device_bytes = before - _on_devices()
    parts = [f"{format_bytes(max(ram_bytes, 0))} of RAM"]
    if device_bytes:
        parts.append(f"{format_bytes(max(device_bytes, 0))} on devices")
    if gone:
        parts.append(f"{gone} model{'s' if gone > 1 else ''} unloaded")
    return Freed(os.getpid(), ram_bytes, device_bytes, gone, ", ".join(parts))


def _on_devices() -> int:
    return sum(one.reserved_bytes for one in process.devices())


def _unload() -> int:
    groups = {id(one.group): one.group for one in models.everyone()}
    gone = sum(group.rest("somebody asked for memory") for group in groups.values())
    gone += _unload_listed()
    if "comfy.model_management" in sys.modules:
        gone += _unload_comfyui()
    return gone


def _unload_listed() -> int:
    """The manager's models, except those of the last load, which may be running."""
    listed = list(
        get("holdfast.residency.model_management.models.loaded", "current_loaded_models") or ()
    )
    in_use = [one for one in listed if one.currently_used]
    if len(in_use) == len(listed):
        return 0
    from holdfast.residency.model_management.models.loaded import free_memory

    return sum(len(free_memory(1e30, device, in_use)) for device in {one.device for one in listed})


def _unload_comfyui() -> int:
    """ComfyUI unloads by itself, between two prompts."""
    from holdfast.nodes.host import following
    from holdfast.nodes.host import models as comfyui

    before = len(comfyui.patchers())
    comfyui.unload_between_prompts(0.0 if following.running_prompt() else 3.0)
    return max(0, before - len(comfyui.patchers()))


def _empty_caches() -> None:
    empty = get("holdfast.memory.pools.manager", "empty_cache")
    if empty is None and "holdfast.memory.pools.pool" in sys.modules:
        from holdfast.memory.pools.manager import empty_cache as empty
    if empty is not None:
        try_call(empty, 0)
    cuda: Any = getattr(sys.modules.get("torch"), "cuda", None)
    if cuda is not None and cuda.is_initialized():
        cuda.empty_cache()
    call("holdfast.residency.files.freeing", "trim")


# ---- budgets


def set_budget(model_id: str, budget_bytes: int | None) -> ModelUse:
    """Change the budget of a model's group; None is no limit.

    Raises NotFound, Unsupported for a model that has no budget, BadInput for one that is too small.
    """
    managed = models.find(str(model_id))
    if managed is None:
        raise _no_budget(str(model_id))
    group = managed.group
    if budget_bytes is not None:
        budget_bytes = _check_integer("budget_bytes", budget_bytes, 0, 1 << 62)
        least = min_budget_bytes(group)
        if budget_bytes < (least or 1):
            raise BadInput(
                f"{managed.name} cannot run inside of {format_bytes(budget_bytes)}",
                expected=f"a budget of at least {least or 1} bytes"
                + (f" ({format_bytes(least)})" if least else ""),
            )
    group.set_budget(budget_bytes)
    return models.managed_use(managed, models.owners_of_managed().get(managed))


def _no_budget(model_id: str) -> NotFound | Unsupported:
    known = next((one for one in models.models() if one.id == model_id), None)
    if known is not None:
        return Unsupported(
            f"the budget of {known.name} cannot be changed",
            expected="a model that was loaded with a budget",
            hint="residency.manage(module, budget=…), or holdfast run --budget",
        )
    adjustable = [one.id for one in models.models() if one.adjustable]
    return NotFound(
        f"process {os.getpid()} has no model {model_id!r}",
        expected=f"one of {', '.join(adjustable)}" if adjustable else "a model that is loaded",
    )


def interrupt() -> bool:
    """Stop the current run, as Ctrl-C would; False if there is none."""
    if call("holdfast.pipeline.run.live_runs", "stop_current", False):
        return True
    if get("holdfast.nodes.host.following", "running_prompt") is None:
        return False
    from holdfast.nodes.host import running

    return running.stop()


# ---- checking values


def _check_flag(name: str, value: object) -> None:
    if not isinstance(value, bool):
        raise BadInput(f"cannot use {name}={value!r}", expected="true or false")


def _check_integer(name: str, value: object, least: int, most: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise BadInput(
            f"cannot use {name}={value!r}", expected=f"an integer from {least} to {most}"
        )
    return value
