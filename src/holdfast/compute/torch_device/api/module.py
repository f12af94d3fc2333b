"""`torch.holdfast`: the names; the modules behind them are loaded on first use."""

from __future__ import annotations

import importlib
from typing import Any

import torch

_HOMES = {
    "api.memory_figures": (
        *("DeviceProperties", "empty_cache", "get_device_name", "get_device_properties"),
        *("get_per_process_memory_fraction", "max_memory_allocated", "max_memory_reserved"),
        *("mem_get_info", "memory_allocated", "memory_reserved", "memory_stats"),
        *("memory_stats_as_nested_dict", "memory_summary", "reset_peak_memory_stats"),
        "set_per_process_memory_fraction",
    ),
    "api.current_device": (
        *("_exchange_device", "_maybe_exchange_device", "current_device", "device"),
        *("device_count", "device_of", "set_device"),
    ),
    "api.seeds": (
        *("get_rng_state", "get_rng_state_all", "initial_seed", "manual_seed", "manual_seed_all"),
        *("seed", "seed_all", "set_rng_state", "set_rng_state_all"),
    ),
    "api.streams": (
        *("Event", "Stream", "current_stream", "default_stream", "set_stream", "stream"),
        "synchronize",
    ),
    "compile.inductor": (  # used by torch's Inductor
        *("CppWrapperCodegen", "PythonWrapperCodegen", "Scheduling", "WrapperFxCodegen"),
    ),
}
_HOME = {name: home for home, names in _HOMES.items() for name in names}
_HERE = {"get_amp_supported_dtype", "init", "is_available", "is_bf16_supported", "is_initialized"}
_NAMES = _HERE.union(*(names for home, names in _HOMES.items() if home != "compile.inductor"))
__all__ = sorted(_NAMES)  # pyright: ignore[reportUnsupportedDunderAll]

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
    """True: there is always a device."""
    return True


def is_initialized() -> bool:
    """True: the device needs no initialization."""
    return True


def init() -> None:
    """Do nothing: the device needs no initialization."""


_lazy_init = init


def _is_in_bad_fork() -> bool:
    """False: the child of a fork can use the device."""
    return False


def is_bf16_supported(including_emulation: bool = True) -> bool:
    """bfloat16 is emulated: computed in float32, then rounded."""
    return including_emulation


def get_amp_supported_dtype() -> list[torch.dtype]:
    """The dtypes that `torch.autocast` may compute in."""
    return [torch.bfloat16, torch.float16]
