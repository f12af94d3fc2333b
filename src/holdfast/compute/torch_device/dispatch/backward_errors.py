"""Carry exceptions of a backward pass to the code that called `backward()`.

torch computes gradients of a device in a thread of its own. When Python raises there, the exception
stays set in that thread while torch's C++ unwinds, and on its way torch leaves the device's stream:
for that it asks the guard, which is written in Python, for the device type. Python refuses what any
function returns while an exception is set, and torch then ends the process. So the guard takes the
exception away before it answers, and the engine, which is left with an error that has no exception,
raises it again.
"""

from __future__ import annotations

from collections import deque
from threading import get_ident
from typing import Any

import torch

from holdfast.compute.torch_device.api import current_device, engine_choice

_C: Any = torch._C  # untyped: the stubs lack these names
_taken: deque[BaseException] = deque(maxlen=64)
_WITHOUT = "without setting an exception"


def _device_type(
    kind: Any = _C._autograd.DeviceType.PrivateUse1, ask: Any = get_ident, taken: Any = _taken
) -> Any:
    """The device type. Takes away an exception that is set, and touches nothing else.

    Names are default arguments: while an exception is set, a failed look-up would raise.
    """
    try:
        ask()  # any function in C: Python refuses its result while an exception is set
    except SystemError as exc:
        taken.append(exc.__cause__ or exc)
    return kind


class Guard(_C._acc.DeviceGuard):
    """Tells torch the device type."""

    type_: Any = _device_type

    def __init__(self) -> None:
        super().__init__()
        self.type_ = _device_type  # so that a look-up succeeds at once


class _Engine(_C._ImperativeEngine):
    """torch's autograd engine; raises what the guard took away."""

    def run_backward(self, *args: Any, **kwargs: Any) -> Any:
        try:
            if engine_choice.choice.elsewhere and current_device.device_count() > 1:
                # torch knows of one device, and has a thread for that one alone.
                with torch.autograd.set_multithreading_enabled(False):
                    return super().run_backward(*args, **kwargs)
            return super().run_backward(*args, **kwargs)
        except SystemError as exc:
            if not _taken or _WITHOUT not in str(exc):
                raise
            lost = _taken.pop()
        raise lost


def install() -> None:
    """Have torch compute gradients with `_Engine`."""
    variable: Any = torch.autograd.Variable
    variable._execution_engine = _Engine()
