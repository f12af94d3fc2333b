"""Overloads that are ops of the table under another name, or a few of them.

None of them falls back to the host.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import torch

from holdfast.compute.torch_device.dispatch.fallback import compute_by_torch
from holdfast.compute.torch_device.dispatch.handlers import fit
from holdfast.compute.torch_device.errors import Refused
from holdfast.compute.torch_device.overrides.tensor_overloads import compute_op, special
from holdfast.compute.torch_device.storage import tensor_bridge
from holdfast.compute.torch_device.storage.tensor_bridge import as_array

Tensor = torch.Tensor


def write(target: Tensor, value: Tensor) -> Tensor:
    """Write to the target of an out= form, which gets the value's shape."""
    if not target.untyped_storage().nbytes() and target.dtype is value.dtype:
        tensor_bridge.put(target, as_array(value))
        return target
    fit(target, tuple(value.shape))
    return target.copy_(value)


# ---- factories


def _fill(out: Tensor, name: str, *args: Any) -> Tensor:
    return write(out, compute_op(name, *args, like=out, dtype=tensor_bridge.numpy_dtype(out.dtype)))


@special("range.out")
def range_(start: Any, end: Any, step: Any = 1, *, out: Tensor) -> Tensor:
    count = math.floor((end - start) / step) + 1
    steps = torch.arange(count, dtype=out.dtype, device=out.device)
    return write(out, steps.mul_(step).add_(start))


@special("arange.start_out")
def arange(start: Any, end: Any, step: Any = 1, *, out: Tensor) -> Tensor:
    return _fill(out, "arange.start_step", start, end, step)


@special("linspace.out")
def linspace(start: Any, end: Any, steps: int, *, out: Tensor) -> Tensor:
    return _fill(out, "linspace", start, end, steps)


@special("logspace.out")
def logspace(start: Any, end: Any, steps: int, base: float = 10.0, *, out: Tensor) -> Tensor:
    return _fill(out, "logspace", start, end, steps, base)


@special("eye.out", "eye.m_out")
def eye(n: int, m: int | None = None, *, out: Tensor) -> Tensor:
    return _fill(out, "eye.m", n, n if m is None else m)


@special("kaiser_window", "kaiser_window.periodic", "kaiser_window.beta")
def kaiser_window(
    window_length: int, periodic: bool = True, beta: float = 12.0, *, dtype: Any = None,
    layout: Any = None, device: Any = None, pin_memory: Any = None,
) -> Tensor:  # fmt: skip
    kind = dtype or torch.get_default_dtype()
    if window_length < 0 or not kind.is_floating_point or layout not in (None, torch.strided):
        raise Refused(
            f"cannot make a Kaiser window of {window_length} numbers of {kind}",
            expected="0 or more floating-point numbers, strided",
        )
    if window_length < 2:
        return torch.ones(window_length, dtype=kind, device=device)
    steps = torch.arange(window_length + periodic, dtype=torch.float64, device=device)
    ramp = steps[:window_length] * (2 / (window_length + periodic - 1)) - 1
    found = torch.special.i0(beta * (1 - ramp * ramp).clamp_(min=0).sqrt_())
    return (found / torch.special.i0(torch.full_like(ramp[:1], beta))).to(kind)


@special("randperm.generator_out")
def randperm(n: int, *, generator: Any = None, out: Tensor) -> Tensor:
    if generator is not None:
        overload = torch.ops.aten.randperm.generator_out
        return compute_by_torch(overload, (n,), {"generator": generator, "out": out})
    return _fill(out, "randperm", n)


# ---- helpers of torch's own functions

# Overload -> the op that it is, with the same arguments.
for _overload, _op in {
    "_aminmax": "aminmax",
    "_cholesky_solve_helper": "cholesky_solve",
    "_linalg_eigvals": "linalg_eigvals",
    "_logcumsumexp": "logcumsumexp",
    "_stack": "stack",
    "convolution_overrideable": "convolution",
}.items():
    special(_overload)(functools.partial(compute_op, _op))


@special("_logcumsumexp.out")
def logcumsumexp_out(self: Tensor, dim: int, *, out: Tensor) -> Tensor:
    return write(out, compute_op("logcumsumexp", self, dim))


@special("_stack.out")
def stack_out(tensors: Any, dim: int = 0, *, out: Tensor) -> Tensor:
    return write(out, compute_op("stack", tensors, dim))


def _special_helper(name: str) -> None:
    """Register `_cummax_helper` or `_cummin_helper`, which write to two targets."""

    @special(f"_{name}_helper")
    def helper(self: Tensor, values: Tensor, indices: Tensor, dim: int) -> None:
        for target, found in zip((values, indices), compute_op(name, self, dim), strict=True):
            target.copy_(found)


_special_helper("cummax")
_special_helper("cummin")


@special("_aminmax.dim")
def aminmax_along(self: Tensor, dim: int, keepdim: bool = False) -> Any:
    return compute_op("aminmax", self, dim=dim, keepdim=keepdim)


@special("unique_dim_consecutive")
def unique_consecutive(
    self: Tensor, dim: int, return_inverse: bool = False, return_counts: bool = False
) -> Any:
    return compute_op("unique_consecutive", self, return_inverse, return_counts, dim)


@special("__lshift__.Scalar", "__lshift__.Tensor")
def shift_left(self: Tensor, other: Any) -> Tensor:
    return self * 2**other if self.is_floating_point() else torch.bitwise_left_shift(self, other)


@special("__rshift__.Scalar", "__rshift__.Tensor")
def shift_right(self: Tensor, other: Any) -> Tensor:
    return self / 2**other if self.is_floating_point() else torch.bitwise_right_shift(self, other)


@special("_compute_linear_combination")
def linear_combination(input: Tensor, coefficients: Tensor) -> Tensor:
    return torch.tensordot(coefficients, input, dims=1)


@special("linalg__powsum")
def powsum(
    self: Tensor, ord: Any = 2, dim: Any = None, keepdim: bool = False, *, dtype: Any = None
) -> Tensor:
    wide = self if dtype is None else self.to(dtype)
    return wide.abs().pow(ord).sum(dim, keepdim)


@special("_add_relu.Tensor", "_add_relu.Scalar")
def add_relu(self: Tensor, other: Any, *, alpha: Any = 1) -> Tensor:
    return torch.add(self, other, alpha=alpha).relu_()


@special("_add_relu_.Tensor", "_add_relu_.Scalar")
def add_relu_(self: Tensor, other: Any, *, alpha: Any = 1) -> Tensor:
    return self.add_(other, alpha=alpha).relu_()


@special("_assert_async")
def assert_true(self: Tensor) -> None:
    assert_true_with_message(self, "Expected Tensor with single nonzero value, but got zero")


@special("_assert_async.msg")
def assert_true_with_message(self: Tensor, assert_msg: str) -> None:
    if not bool(self):
        raise Refused(assert_msg)
