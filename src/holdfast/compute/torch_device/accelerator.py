"""`torch.accelerator` on the device: what torch asks an accelerator written in C++ for.

Covers: waiting, memory figures, number formats.
Promise: installed with the device, which torch takes for its accelerator from then on; without this
the same calls fail an assertion inside torch, and one of them ends the process.
"""

from __future__ import annotations

from typing import Any

import torch

_C: Any = torch._C


def install() -> None:
    """Have `torch.accelerator` ask the device's module."""
    from holdfast.compute.torch_device import module

    ours = {
        "_accelerator_synchronizeDevice": module.synchronize,
        "_accelerator_isAllocatorInitialized": module.is_initialized,
        "_accelerator_emptyCache": lambda: module.empty_cache(),
        "_accelerator_emptyHostCache": lambda: module.empty_cache(),
        "_accelerator_getDeviceStats": lambda device: module.memory_stats(device),
        "_accelerator_resetPeakStats": lambda device: module.reset_peak_memory_stats(device),
        "_accelerator_resetAccumulatedStats": lambda device: None,
        "_accelerator_getMemoryInfo": lambda device: module.mem_get_info(device),
        "_accelerator_getDeviceCapability": lambda device: _capability(),
    }
    for name, function in ours.items():
        setattr(_C, name, function)


def _capability() -> dict[str, Any]:
    from holdfast.compute.torch_device.storage import TO_NUMPY

    return {"supported_dtypes": set(TO_NUMPY)}
