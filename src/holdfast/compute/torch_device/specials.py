"""Overloads that are about tensors rather than numbers, and those torch asks of every device.

Covers: making, resizing and copying tensors; reading one number; convolutions and attention under
the names that a device has to supply.
Leaves to others: everything the op table computes (`handlers`), overloads that are other overloads
of the table (`composed`), recurrent cells (`recurrent`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from holdfast.base.errors import BadInput, HoldfastError, OutOfMemory, Unsupported
from holdfast.compute.engine import engine_of
from holdfast.compute.ops import OPS
from holdfast.compute.torch_device import crossing, storage
from holdfast.compute.torch_device.crossing import chosen_for
from holdfast.compute.torch_device.errors import as_torch_has_it
from holdfast.compute.torch_device.storage import down, down_any, up

SPECIALS: dict[str, Callable[..., Any]] = {}
Tensor = torch.Tensor


def special(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A decorator: the function below is called for these overloads."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        for name in names:
            SPECIALS[name] = function
        return function

    return decorate


# ---- making


def _format(kind: torch.dtype | None) -> Any:
    kind = kind or torch.get_default_dtype()
    return storage.numpy_format(kind)


def _check(layout: Any, pin_memory: Any) -> None:
    if layout not in (None, torch.strided):
        raise Unsupported(
            f"the device has no {layout} tensors", expected="torch.strided", hint='device="cpu"'
        )
    if pin_memory:
        raise as_torch_has_it(
            BadInput(
                "only tensors on the CPU can be pinned",
                expected="pin_memory=False for a tensor on the device",
            )
        )


@special("_pin_memory")
def pin(self: Tensor, device: Any = None) -> Tensor:
    _check(None, True)
    return self


@special("empty.memory_format")
def empty(
    size: Any,
    *,
    dtype: Any = None,
    layout: Any = None,
    device: Any = None,
    pin_memory: Any = None,
    memory_format: Any = None,
) -> Tensor:
    if layout is not None or pin_memory:
        _check(layout, pin_memory)
    shape = tuple(size)
    if memory_format is None and dtype is not None:
        return up(_alloc(shape, storage.numpy_format(dtype), device))
    order = _ORDERS.get(memory_format)
    if order is None or len(shape) != len(order):
        return up(_alloc(shape, _format(dtype), device))
    made = _alloc(tuple(shape[d] for d in order), _format(dtype), device)
    return up(made.transpose([order.index(d) for d in range(len(order))]))


_ORDERS: dict[Any, tuple[int, ...]] = {
    torch.channels_last: (0, 2, 3, 1),
    torch.channels_last_3d: (0, 2, 3, 4, 1),
}


def _alloc(shape: tuple[int, ...], kind: Any, device: Any) -> Any:
    try:
        return chosen_for(device).alloc(shape, kind)
    except HoldfastError as exc:
        raise as_torch_has_it(exc) from exc
    except MemoryError as exc:
        raise as_torch_has_it(
            OutOfMemory(
                f"cannot make a tensor of shape {list(shape)}: no memory for it",
                expected="a tensor that fits into the memory of this machine",
            )
        ) from exc
    except ValueError as exc:
        wrong = BadInput(f"cannot make a tensor of shape {list(shape)}: {exc}")
        raise as_torch_has_it(wrong) from exc


@special("empty_strided")
def empty_strided(
    size: Any,
    stride: Any,
    *,
    dtype: Any = None,
    layout: Any = None,
    device: Any = None,
    pin_memory: Any = None,
) -> Tensor:
    _check(layout, pin_memory)
    shape, strides = tuple(size), tuple(stride)
    kind = _format(dtype)
    expected = 1
    for length, step in zip(reversed(shape), reversed(strides), strict=True):
        if step != expected and length != 1:
            break
        expected *= max(length, 1)
    else:
        return up(_alloc(shape, kind, device))
    if 0 in shape:
        return up(_alloc(shape, kind, device))
    last = sum((length - 1) * step for length, step in zip(shape, strides, strict=True))
    return storage.viewed(up(_alloc((last + 1,), kind, device)), shape, strides)


@special("_efficientzerotensor")
def zeros(
    size: Any, *, dtype: Any = None, layout: Any = None, device: Any = None, pin_memory: Any = None
) -> Tensor:
    """Zeros that are there: only torch's own devices can have ones that are not."""
    _check(layout, pin_memory)
    return up(_alloc(tuple(size), _format(dtype), device)).zero_()


# ---- copying


@special("_copy_from")
def copy_from(self: Tensor, dst: Tensor, non_blocking: bool = False) -> Tensor:
    """Copy into `dst`; one of the two is on the device, or both."""
    if self.is_conj() or self.is_neg() or dst.is_conj() or dst.is_neg():
        source, target = _as_it_reads(self, dst)
    else:
        source, target = down_any(self), down_any(dst)
    if source.shape != target.shape:
        _check_shapes(source.shape, target.shape)
    storage.check_writable(target)
    try:
        crossing.write(target, source)
    except HoldfastError as exc:
        raise as_torch_has_it(exc) from exc.__cause__
    return dst


def _check_shapes(source: tuple[int, ...], target: tuple[int, ...]) -> None:
    try:
        crossing.check_broadcast(source, target)
    except ValueError as exc:
        wrong = BadInput(
            f"cannot copy {list(source)} into {list(target)}",
            expected="a shape that broadcasts to the target's",
        )
        raise as_torch_has_it(wrong) from exc


def _as_it_reads(source: Tensor, target: Tensor) -> tuple[Any, Any]:
    """Numbers to copy and the memory to copy them to, where torch notes a conjugate or a minus."""
    conjugated = source.is_conj() != target.is_conj()
    negated = source.is_neg() != target.is_neg()
    array = down_any(_as_stored(source))
    if conjugated:
        array = crossing.by_name("conj_physical", array)
    if negated:
        array = crossing.by_name("neg", array)
    return array, down_any(_as_stored(target))


def _as_stored(tensor: Tensor) -> Tensor:
    """The same memory without a note."""
    tensor = tensor.conj() if tensor.is_conj() else tensor
    return torch.ops.aten._neg_view(tensor) if tensor.is_neg() else tensor


@special("_to_copy")
def to_copy(
    self: Tensor,
    *,
    dtype: Any = None,
    layout: Any = None,
    device: Any = None,
    pin_memory: Any = None,
    non_blocking: bool = False,
    memory_format: Any = None,
) -> Tensor:
    """A copy in another format, order or place. torch's own would pin memory on the CPU."""
    made = torch.empty_like(
        self,
        dtype=dtype,
        layout=layout,
        device=device,
        pin_memory=pin_memory,
        memory_format=memory_format or torch.preserve_format,
    )
    return made.copy_(self)


@special("_copy_from_and_resize")
def copy_from_and_resize(self: Tensor, dst: Tensor) -> Tensor:
    if dst.shape != self.shape:
        if dst.device.type == storage.DEVICE:
            storage.resize(dst, tuple(self.shape))
        else:
            dst.resize_(self.shape)
    return copy_from(self, dst)


@special("_local_scalar_dense")
def local_scalar(self: Tensor) -> Any:
    array = crossing.to_host(down(self))
    kind = array.dtype.kind
    return float(array.reshape(())) if kind not in "biufc" else array.item()


@special("resize_")
def resize_(self: Tensor, size: Any, *, memory_format: Any = None) -> Tensor:
    storage.resize(self, tuple(size))
    order = _ORDERS.get(memory_format)
    if order is not None:
        strides, step = [0] * len(order), 1
        for dim in reversed(order):
            strides[dim], step = step, step * self.shape[dim]
        self.as_strided_(self.shape, strides)
    return self


@special("_resize_output_")
def resize_output(self: Tensor, size: Any, device: Any = None) -> Tensor:
    return storage.resize(self, tuple(size))


# ---- what a device has to supply


def computed(name: str, *args: Any, like: Tensor | None = None, **named: Any) -> Any:
    """What an op of the table makes of tensors, as tensors; without any, where `like` is."""
    try:
        out = crossing.computed(
            OPS[name],
            [_array(a) for a in args],
            {key: _array(value) for key, value in named.items()},
            lambda: chosen_for(None) if like is None else engine_of(down(like)),
        )
    except HoldfastError as exc:
        raise as_torch_has_it(exc) from exc.__cause__
    if isinstance(out, tuple):
        return tuple(None if one is None else up(one) for one in out)
    return up(out)


def _array(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_array(one) for one in value]
    return down(value) if isinstance(value, Tensor) else value


@special("convolution_overrideable")
def convolution(*args: Any) -> Tensor:
    return computed("convolution", *args)


@special("convolution_backward_overrideable")
def convolution_backward(
    grad_output: Tensor, input: Tensor, weight: Tensor, *rest: Any, **named: Any
) -> Any:
    *geometry, mask = (*rest, *named.values())
    channels = [weight.shape[1] * geometry[-1] if geometry[3] else weight.shape[0]]
    return computed("convolution_backward", grad_output, input, weight, channels, *geometry, mask)
