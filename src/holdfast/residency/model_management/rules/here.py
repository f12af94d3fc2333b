"""The device that computes, its kind and its memory, as torch objects.

Importing it does not touch the machine.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from holdfast.residency.model_management.rules import placing, queries
from holdfast.residency.model_management.rules.detect import this_system
from holdfast.residency.model_management.rules.machine import (
    Machine,
    device_type,
    in_use,
)
from holdfast.residency.model_management.rules.process import (
    given_machine,
    machine,
    options,
)


def get_torch_device() -> torch.device:
    """The device that computes."""
    return torch.device(placing.torch_device(machine(), options()))


def get_torch_device_name(device: Any) -> str:
    """The device as text: "cuda:0 NVIDIA H200", or its kind if it has no name."""
    name = machine_of(device).name
    kind = getattr(device, "type", None)
    if kind in ("cpu", "mps", "privateuseone") or name is None:
        return str(kind or device)
    return f"{device} {name}"


def is_device_type(device: Any, type: str) -> bool:
    """Whether `device` is a torch device of that kind."""
    return getattr(device, "type", None) == type


def is_device_cpu(device: Any) -> bool:
    """Whether `device` is the CPU."""
    return is_device_type(device, "cpu")


def is_device_mps(device: Any) -> bool:
    """Whether `device` is Apple's GPU."""
    return is_device_type(device, "mps")


def is_device_xpu(device: Any) -> bool:
    """Whether `device` is an Intel GPU."""
    return is_device_type(device, "xpu")


def is_device_cuda(device: Any) -> bool:
    """Whether `device` is an NVIDIA or AMD GPU."""
    return is_device_type(device, "cuda")


def _kind() -> str:
    return in_use(machine(), options()).kind


def is_nvidia() -> bool:
    """Whether an NVIDIA GPU computes."""
    return _kind() == "cuda"


def is_amd() -> bool:
    """Whether an AMD GPU computes."""
    return _kind() == "rocm"


def is_intel_xpu() -> bool:
    """Whether an Intel GPU computes."""
    return _kind() == "xpu"


def is_ascend_npu() -> bool:
    """Whether a Huawei Ascend NPU computes."""
    return _kind() == "npu"


def is_mlu() -> bool:
    """Whether a Cambricon MLU computes."""
    return _kind() == "mlu"


def is_directml_enabled() -> bool:
    """Whether DirectML computes."""
    return _kind() == "directml"


def cpu_mode() -> bool:
    """Whether the CPU computes."""
    return _kind() == "cpu"


def mps_mode() -> bool:
    """Whether an Apple GPU computes."""
    return _kind() == "mps"


def get_total_memory(dev: Any = None, torch_total_too: bool = False) -> Any:
    """Total bytes of a device (None: the default); with `torch_total_too`, torch's too."""
    device = get_torch_device() if dev is None else torch.device(dev)
    given = given_machine()
    if given is None:
        found = queries.total(torch, device)
    else:
        amount = given.ram_total_bytes if _on_host(device) else given.total_bytes
        found = queries.Bytes(amount, amount if _on_host(device) else 0)
    return (found.device, found.torch) if torch_total_too else found.device


def get_free_memory(dev: Any = None, torch_free_too: bool = False) -> Any:
    """Free bytes of a device with torch's unused cache; with `torch_free_too`, that cache too."""
    device = get_torch_device() if dev is None else torch.device(dev)
    given = given_machine()
    if given is None:
        found = queries.free(torch, device)
    else:
        amount = (given.ram_free_bytes if _on_host(device) else given.free_bytes) or 0
        found = queries.Bytes(amount, amount if _on_host(device) else 0)
    return (found.device, found.torch) if torch_free_too else found.device


def _on_host(device: torch.device) -> bool:
    return device.type in ("cpu", "mps")


def machine_now(device: Any = None) -> Machine:
    """The machine with the memory that is free now."""
    found = machine_of(device)
    if given_machine() is not None:
        return found
    return dataclasses.replace(
        found,
        free_bytes=get_free_memory(torch.device(found.device)),
        ram_free_bytes=this_system().ram_free_bytes,
    )


def machine_of(device: Any) -> Machine:
    """The machine with `device` as its device, if that is of the same kind."""
    found = machine()
    if device is None or str(device) == found.device:
        return found
    same = device_type(str(device)) == device_type(found.device)
    return machine(str(device)) if same and ":" in str(device) else found
