"""Gradients of losses. `reduction` is ATen's: 0 none, 1 mean, 2 sum."""

from __future__ import annotations

from typing import Any

import numpy

from holdfast.compute import functional as F
from holdfast.compute.ops.layers.loss import MEAN


def per_element(grad: Any, self: Any, target: Any, reduction: int) -> Any:
    """The gradient of each element's own loss, from the gradient of the reduced one."""
    if reduction != MEAN:
        return grad
    shape = numpy.broadcast_shapes(tuple(self.shape), tuple(target.shape))
    return grad / max(int(numpy.prod(shape)), 1)


def loss_grad_output(grad: Any, slopes: Any, reduction: int) -> Any:
    """The gradient of a loss's backward for its `grad_output`."""
    product = grad * slopes
    return F.sum(product) if reduction else product


def is_within(apart: Any, edge: float) -> Any:
    """1 where |distance| < `edge`, else 0."""
    return F.lt(F.abs(apart), edge).to(apart.dtype)


def apply_weight(value: Any, weight: Any) -> Any:
    """Multiply by the weight, if there is one."""
    return value if weight is None else value * weight


def logits_slope(self: Any, target: Any, weight: Any, pos_weight: Any) -> Any:
    """Of binary cross entropy with logits, for the logits."""
    share = F.sigmoid(self)
    if pos_weight is None:
        return apply_weight(share - target, weight)
    found = (pos_weight * target + 1 - target) * share - pos_weight * target
    return apply_weight(found, weight)


def logits_slope_for_target(self: Any, weight: Any, pos_weight: Any) -> Any:
    """Of binary cross entropy with logits, for the target."""
    if pos_weight is None:
        return apply_weight(F.neg(self), weight)
    return apply_weight(F.log_sigmoid(F.neg(self)) - pos_weight * F.log_sigmoid(self), weight)


def nll_grad(
    grad: Any, target: Any, weight: Any, reduction: int, ignore_index: int, forward: Any
) -> Any:
    """Of the negative log likelihood's backward, which is linear: the same lookup again."""
    return forward(grad, target, weight, reduction, ignore_index)[0]
