"""Machines that are not at hand, and a torch that answers as it would on each of them."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch

from holdfast.residency.model_management.rules.detect import System
from holdfast.residency.model_management.rules.machine import Machine
from holdfast.residency.model_management.rules.options import Options

MIB, GIB = 2**20, 2**30
_CACHED_BYTES, _USED_BYTES = 96 * MIB, 32 * MIB
_BF16_WORKS = {"bf16": True}


def only(field: str) -> Options:
    """Options with one flag given."""
    given: dict[str, Any] = {field: True}
    return Options(**given)


def nvidia(name: str, gib: float, capability: tuple[int, int], **more: Any) -> Machine:
    """A PC with one NVIDIA card and 32 GiB of RAM, unless `more` says otherwise."""
    return _card("cuda", name, gib, capability=capability, bf16=True, **more)


def _card(kind: Any, name: str, gib: float, **more: Any) -> Machine:
    device = f"{'cuda' if kind == 'rocm' else kind}:0"
    fields: dict[str, Any] = {"ram_total_bytes": 32 * GIB, "ram_free_bytes": 24 * GIB}
    fields |= {"total_bytes": int(gib * GIB), "free_bytes": int(gib * GIB) - 256 * MIB}
    fields |= {"torch_version": (2, 9), "name": name} | more
    return Machine(kind=kind, device=device, **fields)


def _host(kind: Any, device: str, gib: int, **more: Any) -> Machine:
    total, free = gib * GIB, (gib - 4) * GIB
    fields: dict[str, Any] = {"total_bytes": total, "free_bytes": free}
    fields |= {"ram_total_bytes": total, "ram_free_bytes": free, "torch_version": (2, 9)}
    return Machine(kind=kind, device=device, **(fields | more))


_TRITON = frozenset({"triton"})
_XFORMERS = frozenset({"triton", "xformers"})

MACHINES: dict[str, Machine] = {
    "gtx1050-2g": nvidia("NVIDIA GeForce GTX 1050", 2, (6, 1)),
    "gtx970-4g": nvidia("NVIDIA GeForce GTX 970", 4, (5, 2)),
    "gtx1660-6g": nvidia("NVIDIA GeForce GTX 1660", 6, (7, 5)),
    "rtx2070-8g": nvidia("NVIDIA GeForce RTX 2070", 8, (7, 5)),
    "rtx3060-12g": nvidia(
        *("NVIDIA GeForce RTX 3060", 12, (8, 6)), packages=_XFORMERS, xformers_version="0.0.33"
    ),
    "v100-16g": nvidia("Tesla V100-SXM2-16GB", 16, (7, 0)),
    "rtx4090-24g": nvidia("NVIDIA GeForce RTX 4090", 24, (8, 9), packages=_TRITON),
    "rtx5090-32g": nvidia("NVIDIA GeForce RTX 5090", 32, (12, 0), packages=_TRITON),
    "h200": nvidia(
        *("NVIDIA H200", 139.8, (9, 0)), ram_total_bytes=128 * GIB, ram_free_bytes=120 * GIB
    ),
    "rx7900xtx": _card(
        *("rocm", "AMD Radeon RX 7900 XTX", 24),
        capability=(11, 0),
        arch="gfx1100",
        rocm_version=(6, 4),
        bf16=True,
        packages=_TRITON,
    ),
    "rx6800": _card(
        *("rocm", "AMD Radeon RX 6800", 16),
        capability=(10, 3),
        arch="gfx1030",
        rocm_version=(6, 4),
        bf16=True,
        packages=_TRITON,
    ),
    "rx9070xt": _card(
        *("rocm", "AMD Radeon RX 9070 XT", 16),
        capability=(12, 0),
        arch="gfx1201",
        rocm_version=(7, 0),
        bf16=True,
        packages=_TRITON,
    ),
    "mi210": _card(
        *("rocm", "AMD Instinct MI210", 64),
        capability=(9, 0),
        arch="gfx90a:sramecc+:xnack-",
        rocm_version=(6, 2),
        **_BF16_WORKS,
    ),
    "arc-a770": _card("xpu", "Intel Arc A770 Graphics", 16, fp16=True, bf16=True),
    "old-xpu": _card("xpu", "Intel Iris Xe", 8, fp16=True, bf16=False),
    "ascend": _card("npu", "Ascend910B", 64),
    "mlu370": _card("mlu", "MLU370-X8", 24, capability=(3, 0), bf16=True),
    "mlu590": _card("mlu", "MLU590", 80, capability=(5, 0), bf16=True),
    "mac": _host("mps", "mps", 64, macos=(15, 1)),
    "old-mac": _host("mps", "mps", 16, macos=(13, 6)),
    "directml": Machine(
        kind="directml",
        device="privateuseone:0",
        total_bytes=GIB,
        free_bytes=GIB,
        torch_version=(2, 4),
        ram_total_bytes=32 * GIB,
        ram_free_bytes=24 * GIB,
        windows=True,
    ),
    "cpu-only": _host("cpu", "cpu", 32),
    "windows-rtx4080-16g": nvidia("NVIDIA GeForce RTX 4080", 16, (8, 9), windows=True),
    "windows-gtx1080-8g": nvidia("NVIDIA GeForce GTX 1080", 8, (6, 1), windows=True),
    "wsl-rtx3080-10g": nvidia("NVIDIA GeForce RTX 3080", 10, (8, 6), wsl=True),
}


@dataclass(frozen=True)
class Device:
    """What `torch.device` makes, for kinds of device that a real torch may not know."""

    type: str
    index: int | None

    def __str__(self) -> str:
        return self.type if self.index is None else f"{self.type}:{self.index}"


def make_device(device: Any, index: int | None = None) -> Any:
    """`torch.device("cuda", 1)`, `torch.device("cuda:1")`, `torch.device(1)`."""
    if isinstance(device, int):
        return Device(type="cuda", index=device)
    kind, _, number = str(device).partition(":")
    return Device(type=kind, index=int(number) if number else index)


def torch_for(machine: Machine) -> Any:
    """A torch that sees `machine` and no other device."""
    rocm = machine.kind == "rocm"
    fake = SimpleNamespace(
        __version__=".".join(map(str, (*machine.torch_version, 0))) + "+made-up",
        device=make_device,
        version=SimpleNamespace(
            cuda="12.8" if machine.kind == "cuda" else None,
            hip=".".join(map(str, machine.rocm_version or ())) + ".4341" if rocm else None,
        ),
        backends=SimpleNamespace(
            mps=SimpleNamespace(is_available=lambda: machine.kind == "mps"),
            cuda=SimpleNamespace(is_built=lambda: False),
        ),
        cuda=SimpleNamespace(is_available=lambda: False),
    )
    fake.version.__version__ = fake.__version__
    for name in dir(torch):
        if isinstance(getattr(torch, name), torch.dtype):
            setattr(fake, name, getattr(torch, name))
    if machine.kind in ("cuda", "rocm", "xpu", "npu", "mlu"):
        setattr(fake, "cuda" if rocm else machine.kind, _api(machine))
    return fake


def _api(machine: Machine) -> Any:
    """`torch.cuda` or its like. A part of what is free is held by torch's cache."""
    cached = _CACHED_BYTES - _USED_BYTES
    free, total = (machine.free_bytes or 0) - cached, machine.total_bytes
    major, minor = machine.capability or (0, 0)
    properties = SimpleNamespace(name=machine.name, total_memory=total, major=major, minor=minor)
    if machine.arch is not None:
        properties.gcnArchName = machine.arch
    if machine.kind == "xpu":
        properties.has_fp16 = machine.fp16
    statistics = {
        "active_bytes.all.current": _USED_BYTES,
        "reserved_bytes.all.current": _CACHED_BYTES,
    }
    return SimpleNamespace(
        is_available=lambda: True,
        device_count=lambda: 1,
        current_device=lambda: 0,
        get_device_properties=lambda device: properties,
        get_device_name=lambda device: machine.name,
        mem_get_info=lambda device: (free, total),
        memory_stats=lambda device: statistics,
        is_bf16_supported=lambda: bool(machine.bf16),
    )


def system_of(machine: Machine) -> System:
    """The host of a machine."""
    return System(
        ram_total_bytes=machine.ram_total_bytes,
        ram_free_bytes=machine.ram_free_bytes or 0,
        windows=machine.windows,
        wsl=machine.wsl,
        macos=machine.macos,
    )


def loader_for(machine: Machine) -> Any:
    """Imports the packages that the machine has, and no others."""
    directml = SimpleNamespace(
        device=lambda number=0: Device(type="privateuseone", index=number),
        device_name=lambda number: "made-up adapter",
    )
    packages: dict[str, Any] = {"torch_npu": object(), "torch_mlu": object()}
    packages |= {"torch_directml": directml} if machine.kind == "directml" else {}
    if "xformers" in machine.packages:
        packages["xformers"] = SimpleNamespace(
            __version__=machine.xformers_version, _has_cpp_library=True
        )
    return packages.get
