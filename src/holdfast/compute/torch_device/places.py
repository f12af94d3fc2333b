"""Which device is meant: there is one, and it is always the current one.

Covers: numbers, texts and `torch.device`s as an index; choosing the current device.
Promise: what names another device is refused with the names that there are.
"""

from __future__ import annotations

from typing import Any

import torch

from holdfast.compute.torch_device.errors import Refused
from holdfast.compute.torch_device.storage import DEVICE


def place(device: Any = None) -> int:
    """The index of a device given by number, name or `torch.device`; None is the current one.

    Raises Refused for what is not there.
    """
    if device is None or (type(device) is int and device == 0):
        return 0
    if isinstance(device, str):
        try:
            device = torch.device(device)
        except RuntimeError as exc:
            raise _unknown(device) from exc
    if isinstance(device, torch.device):
        if device.type != DEVICE or device.index not in (None, 0):
            raise _unknown(str(device))
        return 0
    raise _unknown(device)


def _unknown(device: Any) -> Refused:
    return Refused(f"there is no device {device!r} here", expected=f"{DEVICE!r}, '{DEVICE}:0' or 0")


def device_count() -> int:
    """How many devices there are."""
    return 1


def current_device() -> int:
    """The index of the device that `torch.device("holdfast")` is."""
    return 0


def set_device(device: Any) -> None:
    """Make a device the current one. A negative number leaves things as they are."""
    if not (type(device) is int and device < 0):
        place(device)


def _exchange_device(device: int) -> int:
    """Make a device the current one, and say which one was."""
    set_device(device)
    return 0


def _maybe_exchange_device(device: int) -> int:
    return _exchange_device(device)


class device:
    """Within the block a device is the current one; a negative number leaves things as they are."""

    def __init__(self, device: Any) -> None:
        set_device(device)
        self.idx = 0
        self.prev_idx = -1

    def __enter__(self) -> None:
        self.prev_idx = 0

    def __exit__(self, *_: object) -> None:
        return None


class device_of(device):
    """Within the block the device of a tensor is the current one."""

    def __init__(self, tensor: torch.Tensor) -> None:
        super().__init__(0 if tensor.device.type == DEVICE else -1)
