"""`safetensors.torch.load_file(..., device="holdfast")`.

safetensors knows its devices by name and refuses ours: it reads to the CPU, then tensors move.
"""

from __future__ import annotations

import functools
from typing import Any

import safetensors.torch
import torch

from holdfast.compute.torch_device.storage.tensor_bridge import DEVICE


def install() -> None:
    """Teach `load_file` the device. Once is enough."""
    theirs = safetensors.torch.load_file
    if hasattr(theirs, "__wrapped__"):
        return

    @functools.wraps(theirs)
    def load_file(filename: Any, device: Any = "cpu", *args: Any, **kwargs: Any) -> Any:
        if isinstance(device, int) or torch.device(device).type != DEVICE:
            return theirs(filename, device, *args, **kwargs)
        loaded = theirs(filename, "cpu", *args, **kwargs)
        return {name: tensor.to(device) for name, tensor in loaded.items()}

    safetensors.torch.load_file = load_file
