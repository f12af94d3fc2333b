"""`Machine`: a frozen description of one device and its host. Unknown is None; needs no torch."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Literal

from holdfast.residency.model_management.rules.options import Options

Kind = Literal["cuda", "rocm", "xpu", "npu", "mlu", "mps", "directml", "cpu"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """One device, its host, and the software that was found."""

    kind: Kind
    device: str
    """torch's name for it: "cuda:0" (ROCm too), "xpu:0", "mps", "privateuseone:0", "cpu"."""
    total_bytes: int
    """Memory of the device; host RAM where both share it."""
    free_bytes: int | None = None
    """Free device memory at the time of detection."""
    ram_total_bytes: int
    ram_free_bytes: int | None = None
    name: str | None = None
    """The card's name from its driver."""
    capability: tuple[int, int] | None = None
    """CUDA's compute capability, or what ROCm and Cambricon report as such."""
    arch: str | None = None
    """ROCm's name of the chip, such as "gfx1100"."""
    fp16: bool | None = None
    """Whether the driver reports fp16 support (Intel)."""
    bf16: bool | None = None
    """Whether torch reports bf16 support, emulated or not (NVIDIA, AMD, Intel, MLU)."""
    windows: bool = False
    wsl: bool = False
    """Linux under Windows; the rules for Linux apply."""
    macos: tuple[int, ...] | None = None
    torch_version: tuple[int, int] = (0, 0)
    rocm_version: tuple[int, int] | None = None
    packages: frozenset[str] = frozenset()
    """Which of xformers, sageattention, flash_attn and triton can be imported and used."""
    xformers_version: str | None = None


def in_use(machine: Machine, options: Options) -> Machine:
    """The machine as the options let it be used: under `--cpu` the host is the device."""
    if not options.cpu or machine.kind == "cpu":
        return machine
    return dataclasses.replace(
        machine,
        kind="cpu",
        device="cpu",
        total_bytes=machine.ram_total_bytes,
        free_bytes=machine.ram_free_bytes,
        **dict.fromkeys(("name", "capability", "arch", "fp16", "bf16")),
    )


def device_type(device: str | None) -> str | None:
    """The part of a device's name before the colon."""
    return None if device is None else device.partition(":")[0]
