"""What the decisions know of a machine: one frozen description of one device and its host.

Covers: the description, and how it looks under `--cpu`.
Leaves to others: filling it in (detect), free memory at the time of a call (queries).
Promise: nothing is asked of the machine here, and no torch is needed; unknown is None.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Literal

from holdfast.residency.rules.options import Options

Kind = Literal["cuda", "rocm", "xpu", "npu", "mlu", "mps", "directml", "cpu"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """One device, the host around it, and the software that was found."""

    kind: Kind
    device: str
    """The name torch has for it: "cuda:0" (ROCm too), "xpu:0", "mps", "privateuseone:0", "cpu"."""
    total_bytes: int
    """Memory of the device; that of the host where both share it."""
    free_bytes: int | None = None
    """What a model could take on the device when this was written down."""
    ram_total_bytes: int
    ram_free_bytes: int | None = None
    name: str | None = None
    """The card's name as its driver gives it."""
    capability: tuple[int, int] | None = None
    """CUDA's compute capability; what ROCm and Cambricon answer to the same question."""
    arch: str | None = None
    """ROCm's name of the chip, such as "gfx1100"."""
    fp16: bool | None = None
    """Whether the driver says that the device computes with fp16 (Intel)."""
    bf16: bool | None = None
    """Whether torch says that bf16 works at all, in emulation too (NVIDIA, AMD, Intel, MLU)."""
    windows: bool = False
    wsl: bool = False
    """Linux below Windows. The rules of Linux hold for it."""
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
        name=None,
        capability=None,
        arch=None,
        fp16=None,
        bf16=None,
    )


def device_type(device: str | None) -> str | None:
    """The part of a device's name before the colon."""
    return None if device is None else device.partition(":")[0]
