"""What torch's Inductor asks a device for: the device has none of it, and says so.

Promise: Inductor on tensors of other devices is left alone; nothing here is loaded before Inductor
asks.
"""

from __future__ import annotations

from typing import Any

from torch._inductor.codegen import wrapper
from torch._inductor.codegen.common import DeviceOpOverrides, register_device_op_overrides

from holdfast.base.errors import Unsupported
from holdfast.compute.torch_device.storage import DEVICE


def _refused() -> Unsupported:
    return Unsupported(
        f"torch's Inductor generates no code for tensors on {DEVICE!r}",
        expected="tensors on the CPU, or another backend",
        hint='torch.compile(…, backend="holdfast")',
    )


class Scheduling:
    """Stands where Inductor looks for a generator of kernels."""

    def __init__(self, *_: Any) -> None:
        raise _refused()


class PythonWrapperCodegen(wrapper.PythonWrapperCodegen):
    """Stands where Inductor looks for a generator of what calls kernels."""

    @staticmethod
    def create(*_: Any, **__: Any) -> Any:
        raise _refused()


CppWrapperCodegen = WrapperFxCodegen = PythonWrapperCodegen

register_device_op_overrides(DEVICE, DeviceOpOverrides())
