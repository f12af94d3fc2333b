"""Tensors of modules changed where they are: moved, filled, freed of gradients."""

from __future__ import annotations

from typing import Any

import numpy

from holdfast.base.errors import BadInput
from holdfast.compute import dtype as formats
from holdfast.compute.device import CustomDevice
from holdfast.compute.tensors import CustomTensor


def told_apart(given: Any, device: Any, dtype: Any) -> tuple[Any, Any]:
    """A word for a device, or for a number format."""
    try:
        return device, formats.dtype(given)
    except BadInput:
        if not isinstance(given, str):
            raise
        return given, dtype


def learnable(kind: numpy.dtype[Any], of: str) -> numpy.dtype[Any]:
    """A format for weights. Raises BadInput for whole numbers, which cannot learn."""
    if formats.category(kind) < formats.FLOATING:
        raise BadInput(
            f"{of} cannot be turned into {kind}",
            expected="a format with fractions",
            hint="quant.quantize_weights(model)",
        )
    return kind


def convert(
    tensor: CustomTensor, device: CustomDevice | None, kind: numpy.dtype[Any] | None
) -> None:
    """Move a leaf to a device and, if it holds fractions, to a number format."""
    if device is not None and device != tensor.device:
        array = tensor.data
        tensor._array, tensor.device = device.engine.upload(array), device
    if kind is not None and formats.category(tensor.dtype) >= formats.FLOATING:
        tensor._array = tensor.device.engine.cast(tensor._array, kind)


def fill(tensor: CustomTensor, value: Any) -> None:
    """Copy numbers of the same shape into a tensor, whatever holds them."""
    engine = tensor.device.engine
    same = isinstance(value, CustomTensor) and value.device.engine is engine
    array = value._array if same else engine.upload(to_host(value))
    engine.write(tensor._array, array)
    tensor._touch()


def to_host(value: Any) -> Any:
    """The numbers of one of our tensors, a torch tensor or an array, as an array of the host."""
    if isinstance(value, CustomTensor):
        return value.data
    if hasattr(value, "detach"):  # torch's bfloat16 and float8 fit float32 without loss
        value = value.detach().cpu()
        if str(value.dtype).startswith(("torch.bfloat16", "torch.float8")):
            value = value.float()
    return numpy.asarray(value)


def forget_gradient(tensor: CustomTensor, set_to_none: bool) -> None:
    """Drop a tensor's gradient, or fill it with zeros."""
    if tensor.grad is None:
        return
    if set_to_none:
        tensor.grad = None
    else:
        tensor.grad = CustomTensor._filled(
            0, (tuple(tensor.shape), tensor.grad.dtype, tensor.device)
        )
