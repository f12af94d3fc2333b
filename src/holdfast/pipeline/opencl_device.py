"""OpenCL devices in pipelines: torch's networks on Holdfast's own device, with the OpenCL engine.

Covers: which device is meant, choosing the engine.
Leaves to others: computing (holdfast.compute.engines.opencl), tensors (holdfast.torch).
Promise: OpenCL starts when something comes to the device. Which engine computes is decided for the
whole process: once a stage is here, what `holdfast` stages make is on OpenCL devices too.
"""

from __future__ import annotations

from typing import Any

import torch

import holdfast.torch
from holdfast.base.errors import HoldfastError
from holdfast.memory import opencl
from holdfast.pipeline.holdfast_device import Holdfast

ENGINE = "opencl"


class OpenCL(Holdfast):
    """`torch.device("holdfast")` with the OpenCL engine; "opencl:1" is its second device.

    What is larger than the device makes room for itself there, so nothing is streamed to it.
    """

    preparation = "building kernels, if new"

    @property
    def name(self) -> str:
        """As the user writes it."""
        return ENGINE if self.index is None else f"{ENGINE}:{self.index}"

    def unusable(self) -> str | None:
        """No driver, no device, or none of that number."""
        try:
            count = len(opencl.devices())
            self._choose()
        except HoldfastError as exc:
            return exc.what
        if self.index is not None and self.index >= count:
            return f"OpenCL has {count} here, numbered from 0"
        return None

    @property
    def _api(self) -> Any:
        self._choose()
        return super()._api

    def place(self, module: torch.nn.Module) -> torch.nn.Module:
        """Bring a module here."""
        self._choose()
        return super().place(module)

    def put(self, tensor: torch.Tensor) -> torch.Tensor:
        """Bring a tensor here."""
        self._choose()
        return super().put(tensor)

    def _choose(self) -> None:
        if holdfast.torch.engine() != ENGINE:
            holdfast.torch.use(ENGINE)
