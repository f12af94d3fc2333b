"""Tensors as text, where an engine other than NumPy holds their numbers.

Covers: printing from a copy on the CPU.
Leaves to others: how a tensor is printed (torch).
Promise: printing computes nothing on the device, so that it builds no kernels and counts no
fallbacks; the text is the same.
"""

from __future__ import annotations

import importlib
from typing import Any

import torch

from holdfast.compute.torch_device import storage


def install() -> None:
    """Have torch print what the host cannot read from a copy. Once is enough."""
    words: Any = importlib.import_module("torch._tensor_str")
    theirs = words._tensor_str

    def _tensor_str(self: torch.Tensor, indent: int) -> str:
        return theirs(_readable(self), indent)

    words._tensor_str = _tensor_str


def _readable(tensor: torch.Tensor) -> torch.Tensor:
    plain = tensor.layout is torch.strided and tensor.device.type == storage.DEVICE
    if not plain or storage.is_on_host(tensor):
        return tensor
    return tensor.detach().cpu()
