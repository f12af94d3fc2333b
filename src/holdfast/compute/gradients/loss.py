"""Words for the gradient lines of losses. `reduction` is ATen's: 0 none, 1 mean, 2 sum."""

from __future__ import annotations

from typing import Any

import numpy

from holdfast.compute import functional as F
from holdfast.compute.ops.loss import MEAN


def per_value(grad: Any, self: Any, target: Any, reduction: int) -> Any:
    """The gradient of each number's own loss, out of the gradient of the reduced one."""
    if reduction != MEAN:
        return grad
    shape = numpy.broadcast_shapes(tuple(self.shape), tuple(target.shape))
    return grad / max(int(numpy.prod(shape)), 1)


def loss_slope_for(grad: Any, slopes: Any, reduction: int) -> Any:
    """The gradient of a loss's backward for the gradient that went into it."""
    product = grad * slopes
    return F.sum(product) if reduction else product


def within(apart: Any, edge: float) -> Any:
    """1 where a distance is less than `edge`, else 0."""
    return F.lt(F.abs(apart), edge).to(apart.dtype)


def times_weight(value: Any, weight: Any) -> Any:
    """Weighted, if there is a weight."""
    return value if weight is None else value * weight


def logits_slope(self: Any, target: Any, weight: Any, pos_weight: Any) -> Any:
    """Of binary cross entropy with logits, for the logits."""
    share = F.sigmoid(self)
    if pos_weight is None:
        return times_weight(share - target, weight)
    found = (pos_weight * target + 1 - target) * share - pos_weight * target
    return times_weight(found, weight)


def logits_slope_for_target(self: Any, weight: Any, pos_weight: Any) -> Any:
    """Of binary cross entropy with logits, for the target."""
    if pos_weight is None:
        return times_weight(F.neg(self), weight)
    return times_weight(F.log_sigmoid(F.neg(self)) - pos_weight * F.log_sigmoid(self), weight)


def nll_grad(
    grad: Any, target: Any, weight: Any, reduction: int, ignore_index: int, forward: Any
) -> Any:
    """Of the negative log likelihood's backward: it is linear, so the same look-up again."""
    return forward(grad, target, weight, reduction, ignore_index)[0]
