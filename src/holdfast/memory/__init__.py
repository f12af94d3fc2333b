"""Bytes: get, count, move, watch.

    pool = memory.MemoryPool("cpu")
    with memory.tag("weights"):
        block = pool.allocate("64MB")
    print(memory.memory_stats().summary())

Names load on first use: none of NumPy, torch and a compiler is needed before something uses it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.memory import svm
    from holdfast.memory.adaptors import Limit, Statistics, Tracking
    from holdfast.memory.debug import check_memory, enable_memory_debugging
    from holdfast.memory.diff import diff
    from holdfast.memory.leaks import Leak, check_memory_leaks, mark, no_leaks
    from holdfast.memory.manager import (
        cpu,
        cuda,
        detailed_memory_stats,
        empty_cache,
        memory_manager,
        memory_stats,
    )
    from holdfast.memory.memory_pool import Block, CPUMemoryPool, MemoryPool
    from holdfast.memory.movable import Movable
    from holdfast.memory.numpy_handler import numpy_pool
    from holdfast.memory.planned import Planned
    from holdfast.memory.pool import Pool, on_pressure
    from holdfast.memory.profiler import enable_memory_profiling, memory_profiler
    from holdfast.memory.recording import Recording
    from holdfast.memory.resource import Host, Numa, Pinned, Resource, Virtual
    from holdfast.memory.stats import DetailedStats, MemoryStats
    from holdfast.memory.svm.balance import autobalance
    from holdfast.memory.tags import tag
    from holdfast.memory.torch_cpu import install_torch_pool, uninstall_torch_pool
    from holdfast.memory.torch_cuda import Cuda, CUDAMemoryPool

_HOME = {
    "adaptors": ("Limit", "Statistics", "Tracking"),
    "debug": ("check_memory", "enable_memory_debugging"),
    "diff": ("diff",),
    "leaks": ("Leak", "check_memory_leaks", "mark", "no_leaks"),
    "manager": (
        *("cpu", "cuda", "detailed_memory_stats", "empty_cache", "memory_manager"),
        "memory_stats",
    ),
    "memory_pool": ("Block", "CPUMemoryPool", "MemoryPool"),
    "movable": ("Movable",),
    "numpy_handler": ("numpy_pool",),
    "planned": ("Planned",),
    "pool": ("Pool", "on_pressure"),
    "profiler": ("enable_memory_profiling", "memory_profiler"),
    "recording": ("Recording",),
    "resource": ("Host", "Numa", "Pinned", "Resource", "Virtual"),
    "stats": ("DetailedStats", "MemoryStats"),
    "svm.balance": ("autobalance",),
    "tags": ("tag",),
    "torch_cpu": ("install_torch_pool", "uninstall_torch_pool"),
    "torch_cuda": ("CUDAMemoryPool", "Cuda"),
}
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}

__all__ = [
    "Block",
    "CPUMemoryPool",
    "CUDAMemoryPool",
    "Cuda",
    "DetailedStats",
    "Host",
    "Leak",
    "Limit",
    "MemoryPool",
    "MemoryStats",
    "Movable",
    "Numa",
    "Pinned",
    "Planned",
    "Pool",
    "Recording",
    "Resource",
    "Statistics",
    "Tracking",
    "Virtual",
    "autobalance",
    "check_memory",
    "check_memory_leaks",
    "cpu",
    "cuda",
    "detailed_memory_stats",
    "diff",
    "empty_cache",
    "enable_memory_debugging",
    "enable_memory_profiling",
    "install_torch_pool",
    "mark",
    "memory_manager",
    "memory_profiler",
    "memory_stats",
    "no_leaks",
    "numpy_pool",
    "on_pressure",
    "svm",
    "tag",
    "uninstall_torch_pool",
]


def __getattr__(name: str) -> object:
    if name == "svm":
        return importlib.import_module(f"{__name__}.svm")
    module = _MODULE_OF.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(importlib.import_module(f"{__name__}.{module}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
