"""`torch.holdfast`: what torch and its users ask of a device's module.

Covers: the names. Leaves to others: what they do (`places`, `seeds`, `streams`, `memory_figures`,
loaded when first asked for).
Promise: importing this imports nothing that computes.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from holdfast.compute.torch_device.memory_figures import (
        DeviceProperties,
        empty_cache,
        get_device_name,
        get_device_properties,
        get_per_process_memory_fraction,
        max_memory_allocated,
        max_memory_reserved,
        mem_get_info,
        memory_allocated,
        memory_reserved,
        memory_stats,
        memory_stats_as_nested_dict,
        memory_summary,
        reset_peak_memory_stats,
        set_per_process_memory_fraction,
    )
    from holdfast.compute.torch_device.places import (
        _exchange_device,
        _maybe_exchange_device,
        current_device,
        device,
        device_count,
        device_of,
        set_device,
    )
    from holdfast.compute.torch_device.seeds import (
        get_rng_state,
        get_rng_state_all,
        initial_seed,
        manual_seed,
        manual_seed_all,
        seed,
        seed_all,
        set_rng_state,
        set_rng_state_all,
    )
    from holdfast.compute.torch_device.streams import (
        Event,
        Stream,
        current_stream,
        default_stream,
        set_stream,
        stream,
        synchronize,
    )

_HOMES = {
    "memory_figures": (
        "DeviceProperties",
        "empty_cache",
        "get_device_name",
        "get_device_properties",
        "get_per_process_memory_fraction",
        "max_memory_allocated",
        "max_memory_reserved",
        "mem_get_info",
        "memory_allocated",
        "memory_reserved",
        "memory_stats",
        "memory_stats_as_nested_dict",
        "memory_summary",
        "reset_peak_memory_stats",
        "set_per_process_memory_fraction",
    ),
    "places": (
        "_exchange_device",
        "_maybe_exchange_device",
        "current_device",
        "device",
        "device_count",
        "device_of",
        "set_device",
    ),
    "seeds": (
        "get_rng_state",
        "get_rng_state_all",
        "initial_seed",
        "manual_seed",
        "manual_seed_all",
        "seed",
        "seed_all",
        "set_rng_state",
        "set_rng_state_all",
    ),
    "streams": (
        "Event",
        "Stream",
        "current_stream",
        "default_stream",
        "set_stream",
        "stream",
        "synchronize",
    ),
}
_HOME = {name: home for home, names in _HOMES.items() for name in names}
# What torch's Inductor asks a device for.
_HOME |= dict.fromkeys(
    ("CppWrapperCodegen", "PythonWrapperCodegen", "Scheduling", "WrapperFxCodegen"),
    "compiling.inductor",
)

__all__ = [
    "DeviceProperties",
    "Event",
    "Stream",
    "_exchange_device",
    "_maybe_exchange_device",
    "current_device",
    "current_stream",
    "default_stream",
    "device",
    "device_count",
    "device_of",
    "empty_cache",
    "get_amp_supported_dtype",
    "get_device_name",
    "get_device_properties",
    "get_per_process_memory_fraction",
    "get_rng_state",
    "get_rng_state_all",
    "init",
    "initial_seed",
    "is_available",
    "is_bf16_supported",
    "is_initialized",
    "manual_seed",
    "manual_seed_all",
    "max_memory_allocated",
    "max_memory_reserved",
    "mem_get_info",
    "memory_allocated",
    "memory_reserved",
    "memory_stats",
    "memory_stats_as_nested_dict",
    "memory_summary",
    "reset_peak_memory_stats",
    "seed",
    "seed_all",
    "set_device",
    "set_per_process_memory_fraction",
    "set_rng_state",
    "set_rng_state_all",
    "set_stream",
    "stream",
    "synchronize",
]

_initialized = True  # torch.utils.checkpoint keeps the random state of devices that say so


def __getattr__(name: str) -> Any:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(importlib.import_module(f"holdfast.compute.torch_device.{home}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})


def is_available() -> bool:
    """Whether there is a device: always."""
    return True


def is_initialized() -> bool:
    """Whether the device is ready: always."""
    return True


def init() -> None:
    """Make the device ready: it is."""


def _lazy_init() -> None:
    return None


def _is_in_bad_fork() -> bool:
    """Whether a fork has left the device unusable: the child of a fork computes as its parent."""
    return False


def is_bf16_supported(including_emulation: bool = True) -> bool:
    """Whether bfloat16 can be computed: in float32, rounded; so not without emulation."""
    return including_emulation


def get_amp_supported_dtype() -> list[torch.dtype]:
    """The formats that `torch.autocast` may compute in."""
    return [torch.bfloat16, torch.float16]
