"""Ops in place: `x.add_(y)`, `out=`, and what gradients forbid.

Covers: putting results into tensors that exist, and the checks before that.
Leaves to others: computing (`tensors.apply`), indexing (`indexing`).
Promise: a call that is refused has changed nothing; a tensor that is changed says so to the notes
that need it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy

from holdfast.base.errors import BadInput, Misuse
from holdfast.compute import autograd, functional
from holdfast.compute import dtype as formats
from holdfast.compute.ops.table import Op
from holdfast.compute.schema import described

if TYPE_CHECKING:
    from holdfast.compute.tensors import CustomTensor


def into(out: Any, op: Op, args: Any, kwargs: Any) -> Any:
    """Compute an op and put what it returns into `out`, a tensor or a tuple of them."""
    from holdfast.compute import tensors

    result = tensors.apply(op, args, kwargs)
    targets = list(out) if isinstance(out, list | tuple) else [out]
    values = list(result) if isinstance(result, list | tuple) else [result]
    if len(targets) != len(values) or not all(hasattr(t, "_array") for t in targets):
        raise BadInput(
            f"cannot put the result of {op.name} into out={described(out)}",
            expected="a tensor" if len(values) == 1 else f"a tuple of {len(values)} tensors",
        )
    pairs = list(zip(targets, values, strict=True))
    for target, value in pairs:
        refuse_leaf(target, op)
        _check_room(op, target, value)
    for target, value in pairs:
        assign(op, target, value)
    return out


def in_place(name: str) -> Callable[..., Any]:
    """The in-place form of the op `name`: its result goes into the first argument."""
    from holdfast.compute import tensors

    packet: Any = functional.packet(name)

    def method(self: CustomTensor, *args: Any, **kwargs: Any) -> CustomTensor:
        op = packet._only or packet.choose((self, *args), kwargs)
        refuse_leaf(self, op)
        return assign(op, self, tensors.apply(op, (self, *args), kwargs))

    method.__name__ = f"{name}_"
    return method


def refuse_leaf(target: CustomTensor, op: Op) -> None:
    """Raise Misuse where gradients forbid changing `target` in place."""
    if not (target.requires_grad and autograd.mode.enabled):
        return
    if target.grad_fn is None:
        raise Misuse(
            f"cannot compute {op.name} in place: {described(target)} is a leaf that requires a "
            "gradient",
            expected="a result, or a tensor without requires_grad",
            hint="with no_grad(): …, as optimizers do",
        )
    base = target._base
    if base is not None and base.requires_grad and base.grad_fn is None:
        raise Misuse(
            f"cannot compute {op.name} in place: {described(target)} is a view of a leaf that "
            "requires a gradient",
            expected="a view of a result, or of a tensor without requires_grad",
            hint="with no_grad(): …, as optimizers do",
        )


def _through_a_view(op: Op, target: CustomTensor) -> Misuse:
    return Misuse(
        f"cannot compute {op.name} in place: {described(target)} is a view that gradients go "
        "through",
        expected="a tensor with memory of its own",
        hint="clone() first, the op without the underscore, or base[index] = value",
    )


def assign(op: Op, target: CustomTensor, value: CustomTensor) -> CustomTensor:
    """Put `value` into `target`, which takes over its gradient. Raises BadInput if it cannot."""
    _check_room(op, target, value)
    noted = value.requires_grad or (target.requires_grad and autograd.mode.enabled)
    if target._base is not None and noted:
        return _assign_to_view(op, target, target._base, value)
    if value.grad_fn is not None:
        value.grad_fn.keep_copy(target)
    target.device.engine.write(target._array, value._array)
    target._touch()
    if value.requires_grad:
        retained = target._retained is not None
        target.requires_grad = True
        target.grad_fn, target._place = value.grad_fn, value._place
        if retained:
            target.retain_grad()
    return target


def _assign_to_view(
    op: Op, target: CustomTensor, base: CustomTensor, value: CustomTensor
) -> CustomTensor:
    """Change a view that gradients go through: its base is what changes, and the view follows."""
    layout = _layout(target._array, base._array)
    if layout is None:
        raise _through_a_view(op, target)
    if value.grad_fn is not None:
        value.grad_fn.keep_copy(target)
    fitting = value if value.dtype == base.dtype else value.to(base.dtype)
    assign(op, base, functional.as_strided_scatter(base, fitting, *layout))
    seen = functional.as_strided(base, *layout)
    target.requires_grad, target.grad_fn, target._place = True, seen.grad_fn, seen._place
    target._history = base.grad_fn
    return target


def _layout(view: Any, base: Any) -> tuple[list[int], list[int], int] | None:
    """Sizes, steps and beginning of a view in its base's memory; None where the base has gaps."""
    if type(base) is not numpy.ndarray or not base.flags.c_contiguous or view.dtype != base.dtype:
        return None
    if base.base is not None and isinstance(base.base, numpy.ndarray):
        owner = base
        while isinstance(owner.base, numpy.ndarray):
            owner = owner.base
        if owner.ctypes.data != base.ctypes.data:
            return None
    width = base.itemsize
    begin = (view.ctypes.data - base.ctypes.data) // width
    return list(view.shape), [step // width for step in view.strides], begin


def _check_room(op: Op, target: CustomTensor, value: CustomTensor) -> None:
    """Raise BadInput or Misuse where `value` cannot be put into `target`."""
    if not target.device.matches(value.device):
        raise BadInput(
            f"cannot put the result of {op.name}, {described(value)} on {value.device}, into "
            f"{described(target)} on {target.device}",
            expected="both on one device",
            hint=f"tensor.to({str(value.device)!r})",
        )
    fits = tuple(target.shape) == tuple(value.shape)
    if not fits or formats.category(value.dtype) > formats.category(target.dtype):
        raise BadInput(
            f"cannot put the result of {op.name}, {described(value)}, into {described(target)}",
            expected="a tensor of that shape whose format can hold it",
            hint="the op without the underscore or out=, which makes a new tensor",
        )
    if not getattr(getattr(target._array, "flags", None), "writeable", True):
        raise Misuse(
            f"cannot put the result of {op.name} into {described(target)}: several of its numbers "
            "share one place in memory, or its memory must not be changed",
            expected="a tensor with memory of its own",
            hint="clone() first",
        )
