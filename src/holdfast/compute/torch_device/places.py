"""Which device is meant: the engine has one or more, and one of them is the current one.

Covers: numbers, texts and `torch.device`s as an index; choosing the current device of a thread.
Leaves to others: which engine there is (`selecting`).
Promise: what names another device is refused with the names that there are.

torch itself takes "holdfast" without a number for the device 0 where it moves a tensor; new tensors
are made on the current device.
"""

from __future__ import annotations

import threading
from typing import Any

import torch

from holdfast.compute.torch_device import selecting
from holdfast.compute.torch_device.capsules import DEVICE
from holdfast.compute.torch_device.errors import Refused


class _Current(threading.local):
    """The device that new tensors of a thread are made on."""

    index = 0


_current = _Current()


def place(device: Any = None) -> int:
    """The index of a device given by number, name or `torch.device`; None is the current one.

    Raises Refused for what is not there.
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
        return current_device() if device.index is None else _checked(device.index, str(device))
    return _checked(device, device)


def _checked(index: Any, shown: Any) -> int:
    if type(index) is not int or not (index == 0 or 0 < index < device_count()):
        raise _unknown(shown)
    return index


def _unknown(device: Any) -> Refused:
    count = device_count()
    names = f"'{DEVICE}:0' or 0" if count < 2 else f"'{DEVICE}:0' to '{DEVICE}:{count - 1}'"
    return Refused(f"there is no device {device!r} here", expected=f"{DEVICE!r}, {names}")


def device_count() -> int:
    """How many devices there are: those of the engine that was chosen."""
    if selecting.engine() == selecting.HOST:
        return 1
    return selecting.chosen().count()


def current_device() -> int:
    """The index of the device that `torch.device("holdfast")` is in this thread."""
    index = _current.index
    return index if not index or index < device_count() else 0


def set_device(device: Any) -> None:
    """Make a device the current one. A negative number leaves things as they are."""
    if not (type(device) is int and device < 0):
        _current.index = place(device)


def _exchange_device(device: int) -> int:
    """Make a device the current one, and say which one was."""
    before = current_device()
    set_device(device)
    return before


def _maybe_exchange_device(device: int) -> int:
    return _exchange_device(device)


class device:
    """Within the block a device is the current one; a negative number leaves things as they are."""

    def __init__(self, device: Any) -> None:
        self.idx = -1 if type(device) is int and device < 0 else place(device)
        self.prev_idx = -1

    def __enter__(self) -> None:
        self.prev_idx = _exchange_device(self.idx)

    def __exit__(self, *_: object) -> None:
        set_device(self.prev_idx)


class device_of(device):
    """Within the block the device of a tensor is the current one."""

    def __init__(self, tensor: torch.Tensor) -> None:
        on_device = tensor.device.type == DEVICE
        super().__init__(tensor.device.index if on_device else -1)
