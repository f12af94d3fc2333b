"""Devices PyTorch can use: cuda, rocm, xpu, mps, npu, mlu, directml, and always cpu.

A backend that is broken does not hide the others; the probe's report names it.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch

from holdfast.base.config import Config
from holdfast.topology.model import ProbeReport, Topology, TorchDevice


def probe(config: Config) -> Topology:
    """Every torch device; the report has the errors of backends."""
    devices: list[TorchDevice] = []
    broken: list[str] = []
    for name, backend in _BACKENDS.items():
        try:
            devices.extend(backend())
        except Exception as exc:  # noqa: BLE001  a vendor's plug-in can raise anything
            broken.append(f"{name}: {type(exc).__name__}: {exc}")
    report = ProbeReport(name="torch", status="ok", reason="; ".join(broken) or None)
    return Topology(torch=tuple(devices), probes=(report,))


def _cuda() -> Iterable[TorchDevice]:
    """CUDA and ROCm: the same torch module."""
    if not torch.cuda.is_available():
        return
    rocm = getattr(torch.version, "hip", None) is not None
    for i in range(torch.cuda.device_count()):
        facts = torch.cuda.get_device_properties(i)
        yield TorchDevice(
            id=f"cuda:{i}",
            backend="rocm" if rocm else "cuda",
            name=facts.name,
            memory_bytes=facts.total_memory,
            capability=getattr(facts, "gcnArchName", None)
            if rocm
            else f"{facts.major}.{facts.minor}",
            pci_address=_pci_address(facts),
        )


def _pci_address(facts: Any) -> str | None:
    bus = getattr(facts, "pci_bus_id", None)
    if bus is None:
        return None
    domain, device = getattr(facts, "pci_domain_id", 0), getattr(facts, "pci_device_id", 0)
    return f"{domain:04x}:{bus:02x}:{device:02x}.0"


def _cuda_like(name: str, package: str | None = None) -> Iterable[TorchDevice]:
    """Backends whose module has the same functions as torch.cuda, some by a package."""
    if package is not None:
        if importlib.util.find_spec(package) is None:
            return
        importlib.import_module(package)
    module: Any = getattr(torch, name, None)
    if module is None or not module.is_available():
        return
    for i in range(module.device_count()):
        facts = module.get_device_properties(i)
        yield TorchDevice(
            id=f"{name}:{i}",
            backend=name,
            name=getattr(facts, "name", None) or module.get_device_name(i),
            memory_bytes=getattr(facts, "total_memory", None),
            pci_address=_pci_address(facts),
        )


def _mps() -> Iterable[TorchDevice]:
    backend = getattr(torch.backends, "mps", None)
    if backend is not None and backend.is_available():
        limit = getattr(torch.mps, "recommended_max_memory", None)
        yield TorchDevice(
            id="mps", backend="mps", name="Apple GPU", memory_bytes=limit() if limit else None
        )


def _directml() -> Iterable[TorchDevice]:
    """Any Windows GPU."""
    if importlib.util.find_spec("torch_directml") is None:
        return
    directml = importlib.import_module("torch_directml")
    for i in range(directml.device_count()):
        yield TorchDevice(id=f"privateuseone:{i}", backend="directml", name=directml.device_name(i))


def _cpu() -> Iterable[TorchDevice]:
    yield TorchDevice(
        id="cpu", backend="cpu", capability=torch.backends.cpu.get_cpu_capability().lower()
    )


_BACKENDS: dict[str, Callable[[], Iterable[TorchDevice]]] = {
    "cuda": _cuda,
    "xpu": partial(_cuda_like, "xpu"),  # Intel
    "npu": partial(_cuda_like, "npu", "torch_npu"),  # Huawei Ascend
    "mlu": partial(_cuda_like, "mlu", "torch_mlu"),  # Cambricon
    "mps": _mps,
    "directml": _directml,
    "cpu": _cpu,
}
