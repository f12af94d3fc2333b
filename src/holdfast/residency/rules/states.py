"""How much of the device's memory models may take, and which kind of processor computes.

The values are those of the specification. Nothing here looks at the machine: `reserve.vram_state`
and `reserve.cpu_state` say which one holds. As in ComfyUI the state follows from the options and
the platform, never from the card's size: what a small card keeps is the weight budget's business.
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
    """A part of each model stays on the device, as much as there is room for."""
    NORMAL_VRAM = 3
    """Models are loaded whole where they fit, in part where they do not."""
    HIGH_VRAM = 4
    """Models stay on the device when they have run."""
    SHARED = 5
    """CPU and GPU have one memory; models are still moved between the two."""


class CPUState(Enum):
    """Which kind of processor computes."""

    GPU = 0
    """A device of its own: NVIDIA, AMD, Intel, Ascend, Cambricon, DirectML."""
    CPU = 1
    """The CPU alone."""
    MPS = 2
    """Apple silicon."""
