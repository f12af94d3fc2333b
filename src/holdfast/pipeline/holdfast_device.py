"""Holdfast's own torch device: the networks are torch's, the op table's engine computes.

Promise: what the engine cannot compute falls back to torch's CPU kernels and is counted, unless
HOLDFAST_STRICT forbids it; pictures are those of the CPU but for rounding.
"""

from __future__ import annotations

import holdfast.torch  # noqa: F401  (makes the device known to torch)
from holdfast.pipeline.torch_devices import Accelerator, TorchDevice
from holdfast.topology.amx import keep_from_crashing


class Holdfast(Accelerator):
    """`torch.device("holdfast")`; its memory is the host's, so nothing is streamed to it."""

    kind = "holdfast"
    missing = "does not know it"
    streams = "no"
    carrier = TorchDevice.carrier

    def __init__(self, index: int | None = None) -> None:
        super().__init__(index)
        keep_from_crashing()
