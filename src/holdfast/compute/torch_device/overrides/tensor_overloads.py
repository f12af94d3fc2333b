"""Making, copying and resizing tensors, reading one element, and the registry of overrides.

Also convolutions, under the names that a device has to supply.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from holdfast.base.errors import HoldfastError, OutOfMemory, Unsupported
from holdfast.compute.engine import engine_of
from holdfast.compute.ops import OPS
from holdfast.compute.torch_device.dispatch import engine_dispatch
from holdfast.compute.torch_device.dispatch.engine_dispatch import engine_for
from holdfast.compute.torch_device.error_translation import to_torch_error
from holdfast.compute.torch_device.errors import Refused
from holdfast.compute.torch_device.storage import tensor_bridge
from holdfast.compute.torch_device.storage.tensor_bridge import as_array, as_array_any, as_tensor

SPECIALS: dict[str, Callable[..., Any]] = {}
Tensor = torch.Tensor


def special(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A decorator: register a function for these overloads."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        for name in names:
            SPECIALS[name] = function
        return function

    return decorate


# ---- making


def _numpy_dtype(kind: torch.dtype | None) -> Any:
    return tensor_bridge.numpy_dtype(kind or torch.get_default_dtype())


def _check(layout: Any, pin_memory: Any) -> None:
    if layout not in (None, torch.strided):
        raise Unsupported(
            f"the device has no {layout} tensors", expected="torch.strided", hint='device="cpu"'
        )
    if pin_memory:
        raise Refused(
            "only tensors on the CPU can be pinned",
            expected="pin_memory=False for a tensor on the device",
        )


@special("_pin_memory")
def pin(self: Tensor, device: Any = None) -> Tensor:
    _check(None, True)
    return self


@special("empty.memory_format")
def empty(
    size: Any, *, dtype: Any = None, layout: Any = None, device: Any = None,
    pin_memory: Any = None, memory_format: Any = None,
) -> Tensor:  # fmt: skip
    if layout is not None or pin_memory:
        _check(layout, pin_memory)
    shape = tuple(size)
    order = _ORDERS.get(memory_format)
    if order is None or len(shape) != len(order):
        return as_tensor(_alloc(shape, _numpy_dtype(dtype), device))
    made = _alloc(tuple(shape[d] for d in order), _numpy_dtype(dtype), device)
    return as_tensor(made.transpose([order.index(d) for d in range(len(order))]))


_ORDERS: dict[Any, tuple[int, ...]] = {
    torch.channels_last: (0, 2, 3, 1),
    torch.channels_last_3d: (0, 2, 3, 4, 1),
}


def _alloc(shape: tuple[int, ...], kind: Any, device: Any) -> Any:
    try:
        return engine_for(device).alloc(shape, kind)
    except HoldfastError as exc:
        raise to_torch_error(exc) from exc
    except MemoryError as exc:
        raise to_torch_error(
            OutOfMemory(
                f"cannot make a tensor of shape {list(shape)}: no memory for it",
                expected="a tensor that fits into the memory of this machine",
            )
        ) from exc
    except ValueError as exc:
        raise Refused(f"cannot make a tensor of shape {list(shape)}: {exc}") from exc


@special("empty_strided")
def empty_strided(
    size: Any, stride: Any, *, dtype: Any = None, layout: Any = None, device: Any = None,
    pin_memory: Any = None,
) -> Tensor:  # fmt: skip
    _check(layout, pin_memory)
    shape, strides = tuple(size), tuple(stride)
    kind = _numpy_dtype(dtype)
    expected = 1
    for length, step in zip(reversed(shape), reversed(strides), strict=True):
        if step != expected and length != 1:
            break
        expected *= max(length, 1)
    else:
        return as_tensor(_alloc(shape, kind, device))
    if 0 in shape:
        return as_tensor(_alloc(shape, kind, device))
    last = sum((length - 1) * step for length, step in zip(shape, strides, strict=True))
    return tensor_bridge.make_view(as_tensor(_alloc((last + 1,), kind, device)), shape, strides)


@special("_efficientzerotensor")
def zeros(
    size: Any, *, dtype: Any = None, layout: Any = None, device: Any = None, pin_memory: Any = None
) -> Tensor:
    """Real zeros: only torch's own devices can have zero tensors without memory."""
    _check(layout, pin_memory)
    return as_tensor(_alloc(tuple(size), _numpy_dtype(dtype), device)).zero_()


# ---- copying


@special("_copy_from")
def copy_from(self: Tensor, dst: Tensor, non_blocking: bool = False) -> Tensor:
    """Copy into `dst`; one of the two is on the device, or both."""
    if self.is_conj() or self.is_neg() or dst.is_conj() or dst.is_neg():
        source, target = _resolve_copy(self, dst)
    else:
        source, target = as_array_any(self), as_array_any(dst)
    try:
        if source.shape != target.shape:
            engine_dispatch.check_broadcast(source.shape, target.shape)
    except ValueError as exc:
        raise Refused(
            f"cannot copy {list(source.shape)} into {list(target.shape)}",
            expected="a shape that broadcasts to the target's",
        ) from exc
    tensor_bridge.check_writable(target)
    try:
        engine_dispatch.write(target, source)
    except HoldfastError as exc:
        raise to_torch_error(exc) from exc.__cause__
    return dst


def _resolve_copy(source: Tensor, target: Tensor) -> tuple[Any, Any]:
    """Source and target arrays of a copy between tensors with conjugate or negative bits."""
    conjugated = source.is_conj() != target.is_conj()
    negated = source.is_neg() != target.is_neg()
    array = as_array_any(_as_stored(source))
    if conjugated:
        array = engine_dispatch.by_name("conj_physical", array)
    if negated:
        array = engine_dispatch.by_name("neg", array)
    return array, as_array_any(_as_stored(target))


def _as_stored(tensor: Tensor) -> Tensor:
    """The same memory without these bits."""
    tensor = tensor.conj() if tensor.is_conj() else tensor
    return torch.ops.aten._neg_view(tensor) if tensor.is_neg() else tensor


@special("_to_copy")
def to_copy(
    self: Tensor, *, non_blocking: bool = False, memory_format: Any = None, **kind: Any
) -> Tensor:
    """A copy of another dtype, layout or device. torch's own would pin memory on the CPU."""
    kept = memory_format or torch.preserve_format
    return torch.empty_like(self, memory_format=kept, **kind).copy_(self)


@special("_copy_from_and_resize")
def copy_from_and_resize(self: Tensor, dst: Tensor) -> Tensor:
    if dst.shape != self.shape:
        if dst.device.type == tensor_bridge.DEVICE:
            tensor_bridge.resize(dst, tuple(self.shape))
        else:
            dst.resize_(self.shape)
    return copy_from(self, dst)


@special("_local_scalar_dense")
def local_scalar(self: Tensor) -> Any:
    array = engine_dispatch.to_host(as_array(self))
    kind = array.dtype.kind
    return float(array.reshape(())) if kind not in "biufc" else array.item()


@special("resize_")
def resize_(self: Tensor, size: Any, *, memory_format: Any = None) -> Tensor:
    tensor_bridge.resize(self, tuple(size))
    order = _ORDERS.get(memory_format)
    if order is not None:
        strides, step = [0] * len(order), 1
        for dim in reversed(order):
            strides[dim], step = step, step * self.shape[dim]
        self.as_strided_(self.shape, strides)
    return self


@special("_resize_output_")
def resize_output(self: Tensor, size: Any, device: Any = None) -> Tensor:
    return tensor_bridge.resize(self, tuple(size))


# ---- ops that a device has to supply


def compute_op(name: str, *args: Any, like: Tensor | None = None, **named: Any) -> Any:
    """Run an op of the table on tensors; without tensors, on the engine of `like`."""
    try:
        out = engine_dispatch.compute_op(
            OPS[name],
            [_array(a) for a in args],
            {key: _array(value) for key, value in named.items()},
            lambda: engine_for(None) if like is None else engine_of(as_array(like)),
        )
    except HoldfastError as exc:
        raise to_torch_error(exc) from exc.__cause__
    if isinstance(out, tuple):
        return tuple(None if one is None else as_tensor(one) for one in out)
    return as_tensor(out)


def _array(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_array(one) for one in value]
    return as_array(value) if isinstance(value, Tensor) else value


@special("convolution_backward_overrideable")
def convolution_backward(
    grad_output: Tensor, input: Tensor, weight: Tensor, *rest: Any, **named: Any
) -> Any:
    *geometry, mask = (*rest, *named.values())
    channels = [weight.shape[1] * geometry[-1] if geometry[3] else weight.shape[0]]
    return compute_op("convolution_backward", grad_output, input, weight, channels, *geometry, mask)
