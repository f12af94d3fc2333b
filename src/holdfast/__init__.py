"""Holdfast: run diffusion models on the hardware people actually have.

Importing this package is cheap: sub-packages load on first use, and none of
numpy, torch, jax or pyopencl is imported until something needs it.
"""

from __future__ import annotations

import importlib

__version__ = "0.1.0"

_SUBPACKAGES = (
    "base",
    "topology",
    "memory",
    "compute",
    "torch",
    "residency",
    "xla",
    "pipeline",
    "nodes",
)
# The package-level functions of memory management, and where each comes from.
_HOME = {
    "memory": (
        *("cuda", "cpu", "memory_stats", "detailed_memory_stats", "empty_cache", "memory_manager"),
        *("memory_profiler", "enable_memory_profiling", "enable_memory_debugging"),
        "check_memory_leaks",
    ),
    "compute": ("tensor", "empty", "matmul"),
}
_LAYER_OF = {name: layer for layer, names in _HOME.items() for name in names}


def __getattr__(name: str) -> object:
    if name in _SUBPACKAGES:
        return importlib.import_module(f"{__name__}.{name}")
    if name in _LAYER_OF:
        return getattr(importlib.import_module(f"{__name__}.{_LAYER_OF[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_SUBPACKAGES, *_LAYER_OF])
