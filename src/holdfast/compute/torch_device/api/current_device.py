"""Device indices and names, and the current device of a thread.

torch itself reads "holdfast" without an index as device 0 when it moves a tensor; new tensors are
made on the current device.
"""

from __future__ import annotations

import threading
from typing import Any

import torch

from holdfast.compute.torch_device.api import engine_choice
from holdfast.compute.torch_device.errors import Refused
from holdfast.compute.torch_device.storage.dlpack import DEVICE


class _Current(threading.local):
    """The device that new tensors of a thread are made on."""

    index = 0


_current = _Current()


def device_index(device: Any = None) -> int:
    """The index of a device given by index, name or `torch.device`; None is the current one.

    Raises Refused, which names the devices, where there is no such device.
    """
    if device is None:
        return current_device()
    if isinstance(device, str):
        try:
            device = torch.device(device)
        except RuntimeError as exc:
            raise _unknown(device) from exc
    if isinstance(device, torch.device):
        if device.type != DEVICE:
            raise _unknown(str(device))
        return current_device() if device.index is None else _check_index(device.index, str(device))
    return _check_index(device, device)


def _check_index(index: Any, shown: Any) -> int:
    if type(index) is not int or not (index == 0 or 0 < index < device_count()):
        raise _unknown(shown)
    return index


def _unknown(device: Any) -> Refused:
    count = device_count()
    names = f"'{DEVICE}:0' or 0" if count < 2 else f"'{DEVICE}:0' to '{DEVICE}:{count - 1}'"
    return Refused(f"there is no device {device!r} here", expected=f"{DEVICE!r}, {names}")


def device_count() -> int:
    """The number of devices of the chosen engine."""
    if engine_choice.engine() == engine_choice.HOST:
        return 1
    return engine_choice.engine_on().count()


def current_device() -> int:
    """The index of the device that `torch.device("holdfast")` is in this thread."""
    index = _current.index
    return index if not index or index < device_count() else 0


def set_device(device: Any) -> None:
    """Make a device the current one. A negative index changes nothing."""
    if not (type(device) is int and device < 0):
        _current.index = device_index(device)


def _exchange_device(device: int) -> int:
    """Make a device the current one; return the previous index."""
    before = current_device()
    set_device(device)
    return before


_maybe_exchange_device = _exchange_device


class device:
    """Makes a device the current one within the block; a negative index changes nothing."""

    def __init__(self, device: Any) -> None:
        self.idx = -1 if type(device) is int and device < 0 else device_index(device)
        self.prev_idx = -1

    def __enter__(self) -> None:
        self.prev_idx = _exchange_device(self.idx)

    def __exit__(self, *_: object) -> None:
        set_device(self.prev_idx)


class device_of(device):
    """Makes the device of a tensor the current one within the block."""

    def __init__(self, tensor: torch.Tensor) -> None:
        on_device = tensor.device.type == DEVICE
        super().__init__(tensor.device.index if on_device else -1)
