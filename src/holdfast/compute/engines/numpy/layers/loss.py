"""Losses that compare elementwise, computed in float32 or wider.

`reduction` is ATen's: 0 none, 1 mean, 2 sum.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy

from holdfast.compute import dtype as dtypes
from holdfast.compute.engines.numpy.kernels import cast, kernel, to_floating
from holdfast.compute.engines.numpy.reduce.axes import axes, total
from holdfast.compute.ops.layers.loss import MEAN, NONE, SUM


def reduce_loss(values: Any, reduction: int, kind: Any, count: Any = None) -> Any:
    """Apply `reduction` and cast to dtype `kind`; `count` replaces the size in a mean."""
    if reduction == NONE:
        return cast(values, kind)
    if reduction not in (MEAN, SUM):
        raise ValueError(f"reduction {reduction} is unknown; 0 is none, 1 is mean, 2 is sum")
    added = total(values, axes(None, values))
    if reduction == MEAN:
        with numpy.errstate(divide="ignore", invalid="ignore"):
            added = numpy.divide(added, added.dtype.type(values.size if count is None else count))
    return cast(added, kind)


def gradient_per_element(grad: Any, size: int, reduction: int) -> Any:
    """The gradient of each element, from the gradient of the reduced loss."""
    wide = to_floating(grad)
    return wide / wide.dtype.type(max(size, 1)) if reduction == MEAN else wide


def _promote(*arrays: Any) -> tuple[Any, list[Any]]:
    """The promoted dtype, and the arguments cast to its working dtype."""
    kind = dtypes.result_type(*(a for a in arrays if a is not None))
    working = dtypes.working(dtypes.with_fractions(kind))
    return kind, [None if a is None else cast(a, working) for a in arrays]


def _register_loss(name: str, function: Callable[..., Any], slope: Callable[..., Any]) -> None:
    """Register a loss of (input - target) and its backward op."""

    def forward(self: Any, target: Any, reduction: int = MEAN, *setting: Any) -> Any:
        kind, (one, other) = _promote(self, target)
        return reduce_loss(function(numpy.subtract(one, other), *setting), reduction, kind)

    def backward(grad_output: Any, self: Any, target: Any, reduction: int, *setting: Any) -> Any:
        kind, (one, other) = _promote(self, target)
        apart = numpy.subtract(one, other)
        made = numpy.multiply(
            slope(apart, *setting),
            cast(gradient_per_element(grad_output, apart.size, reduction), apart.dtype),
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


_register_loss("mse_loss", numpy.square, lambda apart: apart * apart.dtype.type(2))
_register_loss("smooth_l1_loss", _smooth_l1, _smooth_l1_slope)
_register_loss("huber_loss", _huber, _huber_slope)


@kernel("soft_margin_loss")
def soft_margin_loss(self: Any, target: Any, reduction: int = MEAN) -> Any:
    kind, (values, signs) = _promote(self, target)
    return reduce_loss(numpy.logaddexp(values.dtype.type(0), -signs * values), reduction, kind)


@kernel("soft_margin_loss_backward")
def soft_margin_loss_backward(grad_output: Any, self: Any, target: Any, reduction: int) -> Any:
    kind, (values, signs) = _promote(self, target)
    one = values.dtype.type(1)
    with numpy.errstate(over="ignore"):
        slope = -signs / (one + numpy.exp(signs * values))
    return cast(
        slope * cast(gradient_per_element(grad_output, values.size, reduction), values.dtype), kind
    )


# ---- binary cross entropy


@kernel("binary_cross_entropy")
def binary_cross_entropy(self: Any, target: Any, weight: Any = None, reduction: int = MEAN) -> Any:
    if self.shape != target.shape:
        raise ValueError("input and target of a binary cross entropy have different shapes")
    kind, (values, wanted, factor) = _promote(self, target, weight)
    if values.size and not (numpy.all(values >= 0) and numpy.all(values <= 1)):
        raise ValueError("all probabilities must be between 0 and 1; for logits there is "
                         "binary_cross_entropy_with_logits")  # fmt: skip
    low = values.dtype.type(-100)
    with numpy.errstate(divide="ignore"):
        yes = numpy.maximum(numpy.log(values), low)
        no = numpy.maximum(numpy.log1p(-values), low)
    found = (wanted - 1) * no - wanted * yes
    return reduce_loss(found if factor is None else found * factor, reduction, kind)


@kernel("binary_cross_entropy_backward")
def binary_cross_entropy_backward(
    grad_output: Any, self: Any, target: Any, weight: Any = None, reduction: int = MEAN
) -> Any:
    kind, (values, wanted, factor) = _promote(self, target, weight)
    below = numpy.maximum((1 - values) * values, values.dtype.type(1e-12))
    found = (values - wanted) / below
    found *= cast(gradient_per_element(grad_output, values.size, reduction), values.dtype)
    return cast(found if factor is None else found * factor, kind)


@kernel("binary_cross_entropy_with_logits")
def binary_cross_entropy_with_logits(
    self: Any, target: Any, weight: Any = None, pos_weight: Any = None, reduction: int = MEAN
) -> Any:
    if self.shape != target.shape:
        raise ValueError("input and target of a binary cross entropy have different shapes")
    kind, (values, wanted, factor, positive) = _promote(self, target, weight, pos_weight)
    # log(1 + exp(-x)), without overflow
    softened = numpy.log1p(numpy.exp(-numpy.abs(values))) + numpy.maximum(-values, 0)
    if positive is None:
        found = (1 - wanted) * values + softened
    else:
        found = (1 - wanted) * values + ((positive - 1) * wanted + 1) * softened
    return reduce_loss(found if factor is None else found * factor, reduction, kind)
