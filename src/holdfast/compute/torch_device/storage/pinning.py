"""`pin_memory()` for a device whose memory is the host's.

Allocators that pin (the C++ shim, CUDA) are asked where there is one; else it is an ordinary copy,
with one warning.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch

from holdfast.compute.torch_device.storage.tensor_bridge import DEVICE

_libraries: list[Any] = []  # torch unregisters what is collected
_warned: list[bool] = []


def install() -> None:
    """Copy instead of failing where torch cannot pin memory for the device. Once is enough."""
    theirs: Any = torch.library.get_kernel("aten::_pin_memory", "CPU").call_boxed

    def _pin_memory(keys: Any, self: torch.Tensor, device: Any = None) -> torch.Tensor:
        if device is None and torch.cuda.is_available():
            device = torch.device("cuda")
        try:
            return theirs(keys, self, device)
        except NotImplementedError:
            if device is not None and device.type != DEVICE:
                raise
        _warn_once()
        return self.clone()

    aten = torch.library.Library("aten", "IMPL")
    aten.impl("_pin_memory", _pin_memory, "CPU", with_keyset=True)
    _libraries.append(aten)


def _warn_once() -> None:
    if _warned:
        return
    _warned.append(True)
    warnings.warn(
        f"pin_memory() has made an ordinary copy: {DEVICE!r} computes in the host's memory, and "
        "gains nothing from pinned memory",
        UserWarning,
        stacklevel=3,
    )
