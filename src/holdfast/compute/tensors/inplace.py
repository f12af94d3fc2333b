"""In-place ops (`x.add_(y)`) and `out=`.

A refused call changes nothing. A change increases the version of the tensor, so that recorded
calls detect it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy

from holdfast.base.errors import BadInput, Misuse
from holdfast.compute import dtype as dtypes
from holdfast.compute import functional
from holdfast.compute.autograd import tape
from holdfast.compute.ops.schema import describe
from holdfast.compute.ops.table import Op
from holdfast.compute.tensor_calls import tensor_calls

Tensor = Any  # a CustomTensor, whose module imports this one


def into(out: Any, op: Op, args: Any, kwargs: Any) -> Any:
    """Compute an op and write its result into `out`, a tensor or a tuple of them."""
    result = tensor_calls.apply(op, args, kwargs)
    targets = list(out) if isinstance(out, list | tuple) else [out]
    values = list(result) if isinstance(result, list | tuple) else [result]
    if len(targets) != len(values) or not all(hasattr(t, "_array") for t in targets):
        raise BadInput(
            f"cannot put the result of {op.name} into out={describe(out)}",
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
    """The in-place form of the op `name`: it writes the result to its first argument."""
    packet: Any = functional.packet(name)

    def method(self: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        op = packet._only or packet.choose((self, *args), kwargs)
        refuse_leaf(self, op)
        return assign(op, self, tensor_calls.apply(op, (self, *args), kwargs))

    method.__name__ = f"{name}_"
    return method


def refuse_leaf(target: Tensor, op: Op) -> None:
    """Raise Misuse if gradients forbid changing `target` in place."""
    if not (target.requires_grad and tape.mode.enabled):
        return
    base = target._base
    of_leaf = base is not None and base.requires_grad and base.grad_fn is None
    if target.grad_fn is None or of_leaf:
        what = "a leaf" if target.grad_fn is None else "a view of a leaf"
        wanted = "a result, or" if target.grad_fn is None else "a view of a result, or of"
        raise Misuse(
            f"cannot compute {op.name} in place: {describe(target)} is {what} that requires a "
            "gradient",
            expected=f"{wanted} a tensor without requires_grad",
            hint="with no_grad(): …, as optimizers do",
        )


def assign(op: Op, target: Tensor, value: Tensor) -> Tensor:
    """Write `value` to `target`, which takes over its gradient history. Raises BadInput."""
    _check_room(op, target, value)
    noted = value.requires_grad or (target.requires_grad and tape.mode.enabled)
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


def _assign_to_view(op: Op, target: Tensor, base: Tensor, value: Tensor) -> Tensor:
    """Write to a view that is part of the graph: its base changes, and the view follows."""
    layout = _layout(target._array, base._array)
    if layout is None:
        raise Misuse(
            f"cannot compute {op.name} in place: {describe(target)} is a view that gradients go "
            "through",
            expected="a tensor with memory of its own",
            hint="clone() first, the op without the underscore, or base[index] = value",
        )
    if value.grad_fn is not None:
        value.grad_fn.keep_copy(target)
    fitting = value if value.dtype == base.dtype else value.to(base.dtype)
    assign(op, base, functional.as_strided_scatter(base, fitting, *layout))
    seen = functional.as_strided(base, *layout)
    target.requires_grad, target.grad_fn, target._place = True, seen.grad_fn, seen._place
    target._history = base.grad_fn
    return target


def _layout(view: Any, base: Any) -> tuple[list[int], list[int], int] | None:
    """Sizes, strides and offset of a view in its base's memory; None if the base has gaps."""
    if type(base) is not numpy.ndarray or not base.flags.c_contiguous or view.dtype != base.dtype:
        return None
    owner = base
    while isinstance(owner.base, numpy.ndarray):
        owner = owner.base
    if owner is not base and owner.ctypes.data != base.ctypes.data:
        return None
    width = base.itemsize
    begin = (view.ctypes.data - base.ctypes.data) // width
    return list(view.shape), [step // width for step in view.strides], begin


def _check_room(op: Op, target: Tensor, value: Tensor) -> None:
    if not target.device.matches(value.device):
        raise BadInput(
            f"cannot put the result of {op.name}, {describe(value)} on {value.device}, into "
            f"{describe(target)} on {target.device}",
            expected="both on one device",
            hint=f"tensor.to({str(value.device)!r})",
        )
    fits = tuple(target.shape) == tuple(value.shape)
    if not fits or dtypes.category(value.dtype) > dtypes.category(target.dtype):
        raise BadInput(
            f"cannot put the result of {op.name}, {describe(value)}, into {describe(target)}",
            expected="a tensor of that shape whose dtype can hold it",
            hint="the op without the underscore or out=, which makes a new tensor",
        )
    if not getattr(getattr(target._array, "flags", None), "writeable", True):
        raise Misuse(
            f"cannot put the result of {op.name} into {describe(target)}: several of its elements "
            "share memory, or its memory is read-only",
            expected="a tensor with memory of its own",
            hint="clone() first",
        )
