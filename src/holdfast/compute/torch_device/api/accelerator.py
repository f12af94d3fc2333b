"""`torch.accelerator` on the device, and when torch names the device as its accelerator.

Only a program that asked for Holdfast (imported `holdfast.torch`, or made a tensor on the device)
gets it as "the accelerator". Without `install` these calls fail an assertion inside torch, and one
of them ends the process.
"""

from __future__ import annotations

from typing import Any

import torch

_C: Any = torch._C
_NAMING = ("_accelerator_getAccelerator", "_get_accelerator")
_names: dict[str, Any] = {}  # torch's own functions, while ours are in their place


def install() -> None:
    """Route `torch.accelerator` to the device's module."""
    from holdfast.compute.torch_device.api import module
    from holdfast.compute.torch_device.storage.dlpack import TO_NUMPY

    ours = {
        "_accelerator_setDeviceIndex": module.set_device,
        "_accelerator_getDeviceIndex": module.current_device,
        "_accelerator_exchangeDevice": module._exchange_device,
        "_accelerator_maybeExchangeDevice": module._maybe_exchange_device,
        "_accelerator_synchronizeDevice": module.synchronize,
        "_accelerator_isAllocatorInitialized": module.is_initialized,
        "_accelerator_emptyCache": lambda: module.empty_cache(),
        "_accelerator_emptyHostCache": lambda: module.empty_cache(),
        "_accelerator_getDeviceStats": lambda device: module.memory_stats(device),
        "_accelerator_resetPeakStats": lambda device: module.reset_peak_memory_stats(device),
        "_accelerator_resetAccumulatedStats": lambda device: None,
        "_accelerator_getMemoryInfo": lambda device: module.mem_get_info(device),
        "_accelerator_getDeviceCapability": lambda device: {"supported_dtypes": set(TO_NUMPY)},
    }
    for name, function in ours.items():
        setattr(_C, name, function)


def hide() -> None:
    """Have torch name no accelerator until `show`."""
    _names.update({name: getattr(_C, name) for name in _NAMING})
    _C._accelerator_getAccelerator = lambda: None
    _C._get_accelerator = lambda check=None: torch.device("cpu")


def show() -> None:
    """Have torch name the device as its accelerator."""
    while _names:
        setattr(_C, *_names.popitem())
        torch.get_device_module.cache_clear()  # it caches the answer
