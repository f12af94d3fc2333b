"""Memory of this process: pools that allocate it, and tools that plan, profile and debug its use.

    pool = memory.MemoryPool("cpu")
    with memory.tag("weights"):
        block = pool.allocate("64MB")
    print(memory.memory_stats().summary())

    core/           blocks, free lists, counters and tags; the C core and its Python twin
    resources/      where memory comes from: host, CUDA, OpenCL; adaptors (limit, statistics)
    pools/          pools that reuse freed memory, movable blocks, process-wide settings
    plan/           fixed layouts for steps that repeat; replays of recordings
    profile/        the recorder, recordings, and reports, pages and exports made from them
    debug/          guards, quarantine, leaks and who refers to them
    hooks/          pools under NumPy and torch; hooks on imports and thread starts
    svm/            shared virtual memory

Names load on first use; importing this package needs neither NumPy, torch nor a compiler.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.memory import svm
    from holdfast.memory.core.stats import DetailedStats, MemoryStats
    from holdfast.memory.core.tags import tag
    from holdfast.memory.debug.debugging import check_memory, enable_memory_debugging
    from holdfast.memory.debug.leaks import Leak, check_memory_leaks, mark, no_leaks
    from holdfast.memory.hooks.numpy_handler import numpy_pool
    from holdfast.memory.hooks.torch_cpu import install_torch_pool, uninstall_torch_pool
    from holdfast.memory.plan.planned_allocator import Planned
    from holdfast.memory.pools.cuda_pool import CUDAMemoryPool
    from holdfast.memory.pools.manager import (
        cpu,
        cuda,
        detailed_memory_stats,
        empty_cache,
        memory_manager,
        memory_stats,
    )
    from holdfast.memory.pools.memory_pool import Block, CPUMemoryPool, MemoryPool
    from holdfast.memory.pools.movable import Movable
    from holdfast.memory.pools.pool import Pool, on_pressure
    from holdfast.memory.profile.diff import diff
    from holdfast.memory.profile.profiler import enable_memory_profiling, memory_profiler
    from holdfast.memory.profile.recording import Recording
    from holdfast.memory.resources.adaptors import Limit, Statistics, Tracking
    from holdfast.memory.resources.resource import Host, Numa, Pinned, Resource, Virtual
    from holdfast.memory.resources.torch_cuda import Cuda
    from holdfast.memory.svm.balance import autobalance

_HOME = {
    "resources.adaptors": ("Limit", "Statistics", "Tracking"),
    "debug.debugging": ("check_memory", "enable_memory_debugging"),
    "profile.diff": ("diff",),
    "debug.leaks": ("Leak", "check_memory_leaks", "mark", "no_leaks"),
    "pools.manager": (
        *("cpu", "cuda", "detailed_memory_stats", "empty_cache", "memory_manager"),
        "memory_stats",
    ),
    "pools.memory_pool": ("Block", "CPUMemoryPool", "MemoryPool"),
    "pools.movable": ("Movable",),
    "hooks.numpy_handler": ("numpy_pool",),
    "plan.planned_allocator": ("Planned",),
    "pools.pool": ("Pool", "on_pressure"),
    "profile.profiler": ("enable_memory_profiling", "memory_profiler"),
    "profile.recording": ("Recording",),
    "resources.resource": ("Host", "Numa", "Pinned", "Resource", "Virtual"),
    "core.stats": ("DetailedStats", "MemoryStats"),
    "svm.balance": ("autobalance",),
    "core.tags": ("tag",),
    "hooks.torch_cpu": ("install_torch_pool", "uninstall_torch_pool"),
    "pools.cuda_pool": ("CUDAMemoryPool",),
    "resources.torch_cuda": ("Cuda",),
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
