"""Print tensors of engines other than NumPy from a copy on the CPU.

So that printing builds no kernels on the device and counts no fallbacks.
"""

from __future__ import annotations

import importlib
from typing import Any

import torch

from holdfast.compute.torch_device.storage import tensor_bridge


def install() -> None:
    """Have torch print such tensors from a copy. Once is enough."""
    printer: Any = importlib.import_module("torch._tensor_str")
    theirs = printer._tensor_str

    def _tensor_str(self: torch.Tensor, indent: int) -> str:
        return theirs(_make_readable(self), indent)

    printer._tensor_str = _tensor_str


def _make_readable(tensor: torch.Tensor) -> torch.Tensor:
    plain = tensor.layout is torch.strided and tensor.device.type == tensor_bridge.DEVICE
    if not plain or tensor_bridge.is_on_host(tensor):
        return tensor
    return tensor.detach().cpu()
