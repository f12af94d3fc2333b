"""`VRAMState` and `CPUState`, with the specification's values.

`reserve.vram_state` and `reserve.cpu_state` choose one. As in ComfyUI the state depends on the
options and the platform, never on the card's size: for small cards there is the weight budget.
"""

from __future__ import annotations

from enum import Enum


class VRAMState(Enum):
    """How models share the device's memory."""

    DISABLED = 0
    """No device memory: the CPU computes, models never move."""
    NO_VRAM = 1
    """Nothing stays on the device between uses."""
    LOW_VRAM = 2
    """A part of each model stays on the device, as much as fits."""
    NORMAL_VRAM = 3
    """Models are loaded whole if they fit, else in part."""
    HIGH_VRAM = 4
    """Models stay on the device after they ran."""
    SHARED = 5
    """CPU and GPU share one memory; models are still moved between the two."""


class CPUState(Enum):
    """Which kind of processor computes."""

    GPU = 0
    """An accelerator: NVIDIA, AMD, Intel, Ascend, Cambricon, DirectML."""
    CPU = 1
    """Only the CPU."""
    MPS = 2
    """Apple silicon."""
