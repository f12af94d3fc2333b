"""`pin_memory()` for a device whose memory is the host's.

Covers: `tensor.pin_memory()` and `DataLoader(pin_memory=True)` where nothing pins for the device.
Leaves to others: allocators that pin (the C++ shim, CUDA): where there is one, it is asked.
Promise: pinning gives a copy with the same numbers, and says once that it is an ordinary one.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch

from holdfast.compute.torch_device.storage import DEVICE

_libraries: list[Any] = []  # what torch forgets when its library is collected
_told: list[bool] = []


def install() -> None:
    """Answer for the memory that torch cannot pin for the device. Once is enough."""
    theirs: Any = torch.library.get_kernel("aten::_pin_memory", "CPU").call_boxed

    def _pin_memory(keys: Any, self: torch.Tensor, device: Any = None) -> torch.Tensor:
        if device is None and torch.cuda.is_available():
            device = torch.device("cuda")
        try:
            return theirs(keys, self, device)
        except NotImplementedError:
            if device is not None and device.type != DEVICE:
                raise
        _tell()
        return self.clone()

    aten = torch.library.Library("aten", "IMPL")
    aten.impl("_pin_memory", _pin_memory, "CPU", with_keyset=True)
    _libraries.append(aten)


def _tell() -> None:
    if _told:
        return
    _told.append(True)
    warnings.warn(
        f"pin_memory() has made an ordinary copy: {DEVICE!r} computes in the host's memory, and "
        "gains nothing from pinned memory",
        UserWarning,
        stacklevel=3,
    )
