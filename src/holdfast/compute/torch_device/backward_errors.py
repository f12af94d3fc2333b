"""Errors that are raised while gradients are computed reach whoever asked for the gradients.

Covers: the guard that torch asks for the kind of device; the engine that runs backward.
Promise: an exception of a hook, a handler or an autograd function comes out of `backward()` as it
was raised, with its traceback, and the process goes on.

torch computes gradients of a device in a thread of its own. When Python raises there, the exception
stays set in that thread while torch's C++ unwinds, and on its way torch leaves the device's stream:
for that it asks the guard, which is written in Python, for the kind of device. Python refuses what
any function returns while an exception is set, and torch then ends the process. So the guard takes
the exception away before it answers, and the engine, which is left with an error that has no
exception, gets it back from here.
"""

from __future__ import annotations

from collections import deque
from threading import get_ident
from typing import Any

import torch

from holdfast.compute.torch_device import places, selecting

_C: Any = torch._C  # what its stubs do not mention
_taken: deque[BaseException] = deque(maxlen=64)
_WITHOUT = "without setting an exception"


def _device_type(
    kind: Any = _C._autograd.DeviceType.PrivateUse1, ask: Any = get_ident, taken: Any = _taken
) -> Any:
    """The kind of device. An exception that is set is taken away; nothing else is touched.

    Names are defaults: a look-up that misses (in the globals, before the builtins) fails then.
    """
    try:
        ask()  # any function in C: Python refuses its result while an exception is set
    except SystemError as exc:
        taken.append(exc.__cause__ or exc)
    return kind


class Guard(_C._acc.DeviceGuard):
    """Answers what kind of device this is."""

    type_: Any = _device_type

    def __init__(self) -> None:
        super().__init__()
        self.type_ = _device_type  # found at the first look, in the class and in the object


class _Engine(_C._ImperativeEngine):
    """torch's engine for gradients; what the guard took away is raised again."""

    def run_backward(self, *args: Any, **kwargs: Any) -> Any:
        try:
            if selecting.choice.elsewhere and places.device_count() > 1:
                # torch believes that there is one device, and has a thread for that one alone.
                with torch.autograd.set_multithreading_enabled(False):
                    return super().run_backward(*args, **kwargs)
            return super().run_backward(*args, **kwargs)
        except SystemError as exc:
            if not _taken or _WITHOUT not in str(exc):
                raise
            lost = _taken.pop()
        raise lost


def install() -> None:
    """Have torch compute gradients with this engine."""
    variable: Any = torch.autograd.Variable
    variable._execution_engine = _Engine()
