"""Moving, casting and filling a module's tensors in place."""

from __future__ import annotations

from typing import Any

import numpy

from holdfast.base.errors import BadInput
from holdfast.compute import dtype as dtypes
from holdfast.compute.tensors.custom_tensor import CustomTensor
from holdfast.compute.tensors.device import CustomDevice


def parse_target(given: Any, device: Any, dtype: Any) -> tuple[Any, Any]:
    """(device, dtype) with `given` as whichever of the two it names."""
    try:
        return device, dtypes.dtype(given)
    except BadInput:
        if not isinstance(given, str):
            raise
        return given, dtype


def check_weight_dtype(kind: numpy.dtype[Any], of: str) -> numpy.dtype[Any]:
    """Raise BadInput for a dtype that weights cannot have (integers, booleans)."""
    if dtypes.category(kind) < dtypes.FLOATING:
        raise BadInput(
            f"{of} cannot be turned into {kind}",
            expected="a floating-point dtype",
            hint="quant.quantize_weights(model)",
        )
    return kind


def convert(
    tensor: CustomTensor, device: CustomDevice | None, kind: numpy.dtype[Any] | None
) -> None:
    """Move a leaf to a device; cast it to `kind` if it is floating point or complex."""
    if device is not None and device != tensor.device:
        array = tensor.data
        tensor._array, tensor.device = device.engine.upload(array), device
    if kind is not None and dtypes.category(tensor.dtype) >= dtypes.FLOATING:
        tensor._array = tensor.device.engine.cast(tensor._array, kind)


def fill(tensor: CustomTensor, value: Any) -> None:
    """Copy the elements of a tensor, torch tensor or array of the same shape into a tensor."""
    engine = tensor.device.engine
    same = isinstance(value, CustomTensor) and value.device.engine is engine
    array = value._array if same else engine.upload(to_host(value))
    engine.write(tensor._array, array)
    tensor._touch()


def to_host(value: Any) -> Any:
    """A tensor, torch tensor or array as a host array."""
    if isinstance(value, CustomTensor):
        return value.data
    if hasattr(value, "detach"):  # torch's bfloat16 and float8 fit float32 without loss
        value = value.detach().cpu()
        if str(value.dtype).startswith(("torch.bfloat16", "torch.float8")):
            value = value.float()
    return numpy.asarray(value)


def clear_gradient(tensor: CustomTensor, set_to_none: bool) -> None:
    """Drop a tensor's gradient, or fill it with zeros."""
    if tensor.grad is not None:
        meta = (tuple(tensor.shape), tensor.grad.dtype, tensor.device)
        tensor.grad = None if set_to_none else CustomTensor._full(0, meta)
