"""What torch's Inductor asks a device for; loaded when it asks, and refuses."""

from __future__ import annotations

from typing import Any

from torch._inductor.codegen import wrapper
from torch._inductor.codegen.common import DeviceOpOverrides, register_device_op_overrides

from holdfast.base.errors import Unsupported
from holdfast.compute.torch_device.storage.tensor_bridge import DEVICE


def _make_error() -> Unsupported:
    return Unsupported(
        f"torch's Inductor generates no code for tensors on {DEVICE!r}",
        expected="tensors on the CPU, or another backend",
        hint='torch.compile(…, backend="holdfast")',
    )


class Scheduling:
    """Inductor's generator of kernels."""

    def __init__(self, *_: Any) -> None:
        raise _make_error()


class PythonWrapperCodegen(wrapper.PythonWrapperCodegen):
    """Inductor's generator of the code that calls kernels."""

    @staticmethod
    def create(*_: Any, **__: Any) -> Any:
        raise _make_error()


CppWrapperCodegen = WrapperFxCodegen = PythonWrapperCodegen

register_device_op_overrides(DEVICE, DeviceOpOverrides())
