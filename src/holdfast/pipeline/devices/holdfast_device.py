"""Holdfast's own torch device: torch's networks, computed by an engine of the op table.

Ops without a kernel fall back to torch's CPU kernels and are counted, unless HOLDFAST_STRICT
forbids it. Pictures equal those of the CPU up to rounding.
"""

from __future__ import annotations

import holdfast.torch  # noqa: F401  (registers the device with torch)
from holdfast.pipeline.devices.torch_devices import Accelerator, Device
from holdfast.topology.amx import disable_broken_amx


class Holdfast(Accelerator):
    """`torch.device("holdfast")`; it uses host memory, so nothing is streamed."""

    kind = "holdfast"
    missing = "does not know it"
    streams = "no"
    carrier = Device.carrier

    def __init__(self, index: int | None = None) -> None:
        super().__init__(index)
        disable_broken_amx()
