"""OpenCL devices: Holdfast's torch device with the OpenCL engine.

OpenCL starts with the first tensor or module. The engine is chosen for the whole process: once a
stage runs here, `holdfast` stages use OpenCL too.
"""

from __future__ import annotations

from typing import Any

import torch

import holdfast.torch
from holdfast.base.errors import HoldfastError
from holdfast.memory.resources import opencl_devices
from holdfast.pipeline.devices.holdfast_device import Holdfast

ENGINE = "opencl"


class OpenCL(Holdfast):
    """`torch.device("holdfast")` with the OpenCL engine; "opencl:1" is its second device.

    The engine itself evicts what does not fit, so nothing is streamed.
    """

    preparation = "building kernels, if new"

    @property
    def name(self) -> str:
        return ENGINE if self.index is None else f"{ENGINE}:{self.index}"

    def unusable(self) -> str | None:
        try:
            count = len(opencl_devices.devices())
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
        self._choose()
        return super().place(module)

    def put(self, tensor: torch.Tensor) -> torch.Tensor:
        self._choose()
        return super().put(tensor)

    def _choose(self) -> None:
        if holdfast.torch.engine() != ENGINE:
            holdfast.torch.use(ENGINE)
