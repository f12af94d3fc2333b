"""Kernels of losses that compare number by number.

Promise: computed in float32 or wider; `reduction` is ATen's: 0 none, 1 mean, 2 sum.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy

from holdfast.compute import dtype as formats
from holdfast.compute.engines.numpy.kernels import cast, floating, kernel
from holdfast.compute.engines.numpy.reducing import axes, total
from holdfast.compute.ops.loss import MEAN, NONE, SUM


def reduced(values: Any, reduction: int, kind: Any, count: Any = None) -> Any:
    """All of them, their mean or their sum, in the result's format."""
    if reduction == NONE:
        return cast(values, kind)
    if reduction not in (MEAN, SUM):
        raise ValueError(f"reduction {reduction} is unknown; 0 is none, 1 is mean, 2 is sum")
    added = total(values, axes(None, values))
    if reduction == MEAN:
        with numpy.errstate(divide="ignore", invalid="ignore"):
            added = numpy.divide(added, added.dtype.type(values.size if count is None else count))
    return cast(added, kind)


def per_value(grad: Any, size: int, reduction: int) -> Any:
    """The gradient of each number, out of the gradient of the reduced loss."""
    wide = floating(grad)
    return wide / wide.dtype.type(max(size, 1)) if reduction == MEAN else wide


def _meet(*arrays: Any) -> tuple[Any, list[Any]]:
    """The format of the result, and the arguments in the format that is computed in."""
    kind = formats.result_type(*(a for a in arrays if a is not None))
    working = formats.working(formats.with_fractions(kind))
    return kind, [None if a is None else cast(a, working) for a in arrays]


def _loss(name: str, function: Callable[..., Any], slope: Callable[..., Any]) -> None:
    """Put a loss of (input - target) and its backward among the kernels."""

    def forward(self: Any, target: Any, reduction: int = MEAN, *setting: Any) -> Any:
        kind, (one, other) = _meet(self, target)
        return reduced(function(numpy.subtract(one, other), *setting), reduction, kind)

    def backward(grad_output: Any, self: Any, target: Any, reduction: int, *setting: Any) -> Any:
        kind, (one, other) = _meet(self, target)
        apart = numpy.subtract(one, other)
        made = numpy.multiply(
            slope(apart, *setting), cast(per_value(grad_output, apart.size, reduction), apart.dtype)
        )
        return cast(made, kind)

    kernel(name)(forward)
    kernel(f"{name}_backward")(backward)


def _huber(apart: Any, delta: float = 1.0) -> Any:
    far = numpy.abs(apart)
    edge = apart.dtype.type(delta)
    near = numpy.minimum(far, edge)
    return near * (far - near * apart.dtype.type(0.5))


def _huber_slope(apart: Any, delta: float = 1.0) -> Any:
    edge = apart.dtype.type(delta)
    return numpy.clip(apart, -edge, edge)


def _smooth_l1(apart: Any, beta: float = 1.0) -> Any:
    return numpy.abs(apart) if beta == 0 else _huber(apart, beta) / apart.dtype.type(beta)


def _smooth_l1_slope(apart: Any, beta: float = 1.0) -> Any:
    if beta == 0:
        return numpy.sign(apart)
    return _huber_slope(apart, beta) / apart.dtype.type(beta)


_loss("mse_loss", numpy.square, lambda apart: apart * apart.dtype.type(2))
_loss("smooth_l1_loss", _smooth_l1, _smooth_l1_slope)
_loss("huber_loss", _huber, _huber_slope)


@kernel("soft_margin_loss")
def soft_margin_loss(self: Any, target: Any, reduction: int = MEAN) -> Any:
    kind, (values, signs) = _meet(self, target)
    return reduced(numpy.logaddexp(values.dtype.type(0), -signs * values), reduction, kind)


@kernel("soft_margin_loss_backward")
def soft_margin_loss_backward(grad_output: Any, self: Any, target: Any, reduction: int) -> Any:
    kind, (values, signs) = _meet(self, target)
    one = values.dtype.type(1)
    with numpy.errstate(over="ignore"):
        slope = -signs / (one + numpy.exp(signs * values))
    return cast(slope * cast(per_value(grad_output, values.size, reduction), values.dtype), kind)


# ---- binary cross entropy


@kernel("binary_cross_entropy")
def binary_cross_entropy(self: Any, target: Any, weight: Any = None, reduction: int = MEAN) -> Any:
    if self.shape != target.shape:
        raise ValueError("input and target of a binary cross entropy have different shapes")
    kind, (values, wanted, factor) = _meet(self, target, weight)
    if values.size and not (numpy.all(values >= 0) and numpy.all(values <= 1)):
        raise ValueError("all probabilities must be between 0 and 1; for logits there is "
                         "binary_cross_entropy_with_logits")  # fmt: skip
    low = values.dtype.type(-100)
    with numpy.errstate(divide="ignore"):
        yes = numpy.maximum(numpy.log(values), low)
        no = numpy.maximum(numpy.log1p(-values), low)
    found = (wanted - 1) * no - wanted * yes
    return reduced(found if factor is None else found * factor, reduction, kind)


@kernel("binary_cross_entropy_backward")
def binary_cross_entropy_backward(
    grad_output: Any, self: Any, target: Any, weight: Any = None, reduction: int = MEAN
) -> Any:
    kind, (values, wanted, factor) = _meet(self, target, weight)
    below = numpy.maximum((1 - values) * values, values.dtype.type(1e-12))
    found = (values - wanted) / below
    found *= cast(per_value(grad_output, values.size, reduction), values.dtype)
    return cast(found if factor is None else found * factor, kind)


@kernel("binary_cross_entropy_with_logits")
def binary_cross_entropy_with_logits(
    self: Any, target: Any, weight: Any = None, pos_weight: Any = None, reduction: int = MEAN
) -> Any:
    if self.shape != target.shape:
        raise ValueError("input and target of a binary cross entropy have different shapes")
    kind, (values, wanted, factor, positive) = _meet(self, target, weight, pos_weight)
    # log(1 + exp(-x)), without overflow
    softened = numpy.log1p(numpy.exp(-numpy.abs(values))) + numpy.maximum(-values, 0)
    if positive is None:
        found = (1 - wanted) * values + softened
    else:
        found = (1 - wanted) * values + ((positive - 1) * wanted + 1) * softened
    return reduced(found if factor is None else found * factor, reduction, kind)
