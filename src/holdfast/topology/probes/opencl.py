"""Devices of every OpenCL runtime on the machine. Creates no context."""

from __future__ import annotations

from typing import Any

import pyopencl as cl

from holdfast.base.config import Config
from holdfast.base.errors import Absent
from holdfast.topology.model import OpenclDevice, OpenclKind, Topology

_KINDS: dict[OpenclKind, int] = {
    "cpu": cl.device_type.CPU,
    "gpu": cl.device_type.GPU,
    "accelerator": cl.device_type.ACCELERATOR,
    "custom": cl.device_type.CUSTOM,
}
_SVM = {
    "coarse_buffer": cl.device_svm_capabilities.COARSE_GRAIN_BUFFER,
    "fine_buffer": cl.device_svm_capabilities.FINE_GRAIN_BUFFER,
    "fine_system": cl.device_svm_capabilities.FINE_GRAIN_SYSTEM,
    "atomics": cl.device_svm_capabilities.ATOMICS,
}


def probe(config: Config) -> Topology:
    """Every device; raises Absent if no runtime is installed."""
    try:
        platforms = cl.get_platforms()
    except cl.Error as exc:
        raise Absent(
            f"no OpenCL runtime is installed: {exc}",
            expected="an OpenCL driver (ICD)",
            hint="install the GPU vendor's OpenCL driver, or PoCL: apt install pocl-opencl-icd",
        ) from exc
    devices = [
        _device(f"opencl:{p}:{d}", platform, device)
        for p, platform in enumerate(platforms)
        for d, device in enumerate(devices_of(platform))
    ]
    return Topology(opencl=tuple(devices))


def devices_of(platform: Any) -> list[Any]:
    """The devices of one runtime; some are installed without their hardware."""
    try:
        return platform.get_devices()
    except cl.Error:
        return []


def _ask(device: Any, name: str) -> Any:
    try:
        return getattr(device, name)
    except (cl.Error, AttributeError):
        return None


def _device(identity: str, platform: Any, device: Any) -> OpenclDevice:
    kind = _ask(device, "type") or 0
    svm = _ask(device, "svm_capabilities") or 0
    return OpenclDevice(
        id=identity,
        platform=platform.name.strip(),
        name=device.name.strip(),
        kind=next((name for name, bit in _KINDS.items() if kind & bit), None),
        version=_ask(device, "version"),
        compute_units=_ask(device, "max_compute_units"),
        memory_bytes=_ask(device, "global_mem_size"),
        max_allocation_bytes=_ask(device, "max_mem_alloc_size"),
        svm=tuple(name for name, bit in _SVM.items() if svm & bit),
        pci_address=_nvidia_address(device) or _amd_address(device),
    )


def _nvidia_address(device: Any) -> str | None:
    bus, slot = _ask(device, "pci_bus_id_nv"), _ask(device, "pci_slot_id_nv")
    if bus is None or slot is None:
        return None
    domain = _ask(device, "pci_domain_id_nv") or 0
    return f"{domain:04x}:{bus:02x}:{slot:02x}.0"  # the slot is the device number alone


def _amd_address(device: Any) -> str | None:
    topology = _ask(device, "topology_amd")
    if topology is None:
        return None
    return f"0000:{topology.bus & 0xFF:02x}:{topology.device:02x}.{topology.function}"
