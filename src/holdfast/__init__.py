"""Holdfast: run diffusion models on the hardware people actually have.

Sub-packages are imported on first use; `import holdfast` loads none of numpy, torch, jax and
pyopencl. Each layer imports only from the layers below it in this list:

    cli/            the `holdfast` command
    __main__        the entry point of the command
    dashboard/      watch processes: terminal, web page, benchmarks
    nodes/          nodes for ComfyUI
    pipeline/       draw pictures and videos from prompts
    xla/            models on XLA: ports, sharding, sampling
    residency/      models larger than the device: stream, plan, pack weights
    torch           registers `torch.device("holdfast")` (its code: compute/torch_device)
    compute/        tensors, autograd, ops and engines
    memory/         pools, profiles and their pages, leaks, shared virtual memory
    topology/       describe and measure the machine
    base/           errors, registries, units, settings
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
# Package-level functions, by the sub-package that defines them.
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
