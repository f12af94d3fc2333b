"""Losses, computed in float32 or wider.

`reduction` is ATen's: 0 none, 1 mean, 2 sum.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy

from holdfast.compute import dtype as dtypes
from holdfast.compute.engines.numpy.kernels import cast, kernel, register, to_floating, widen
from holdfast.compute.engines.numpy.reduce.axes import axes, total
from holdfast.compute.ops.layers.loss import MEAN, NONE, check_reduction, class_axis


def reduce_loss(values: Any, reduction: int, kind: Any, count: Any = None) -> Any:
    """Apply `reduction` and cast to dtype `kind`; `count` replaces the size in a mean."""
    check_reduction(reduction)
    if reduction == NONE:
        return cast(values, kind)
    added = total(values, axes(None, values))
    if reduction == MEAN:
        with numpy.errstate(divide="ignore", invalid="ignore"):
            added = numpy.divide(added, added.dtype.type(values.size if count is None else count))
    return cast(added, kind)


def _gradient_per_element(grad: Any, like: Any, reduction: int) -> Any:
    """The gradient of each element of `like`, from the gradient of the reduced loss."""
    wide = to_floating(grad)
    share = wide / wide.dtype.type(max(like.size, 1)) if reduction == MEAN else wide
    return cast(share, like.dtype)


def _promote(*arrays: Any) -> tuple[Any, list[Any]]:
    """The promoted dtype, and the arguments cast to its working dtype."""
    kind = dtypes.result_type(*(a for a in arrays if a is not None))
    working = dtypes.working(dtypes.with_fractions(kind))
    return kind, [None if a is None else cast(a, working) for a in arrays]


def _register_loss(name: str, function: Callable[..., Any], slope: Callable[..., Any]) -> None:

    def forward(self: Any, target: Any, reduction: int = MEAN, *setting: Any) -> Any:
        kind, (one, other) = _promote(self, target)
        return reduce_loss(function(numpy.subtract(one, other), *setting), reduction, kind)

    def backward(grad_output: Any, self: Any, target: Any, reduction: int, *setting: Any) -> Any:
        kind, (one, other) = _promote(self, target)
        apart = numpy.subtract(one, other)
        share = _gradient_per_element(grad_output, apart, reduction)
        return cast(numpy.multiply(slope(apart, *setting), share), kind)

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


# ---- binary cross entropy


@kernel("binary_cross_entropy")
def binary_cross_entropy(self: Any, target: Any, weight: Any = None, reduction: int = MEAN) -> Any:
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
    found *= _gradient_per_element(grad_output, values, reduction)
    return cast(found if factor is None else found * factor, kind)


@kernel("binary_cross_entropy_with_logits")
def binary_cross_entropy_with_logits(
    self: Any, target: Any, weight: Any = None, pos_weight: Any = None, reduction: int = MEAN
) -> Any:
    kind, (values, wanted, factor, positive) = _promote(self, target, weight, pos_weight)
    # log(1 + exp(-x)), without overflow
    softened = numpy.log1p(numpy.exp(-numpy.abs(values))) + numpy.maximum(-values, 0)
    if positive is not None:
        softened = ((positive - 1) * wanted + 1) * softened
    found = (1 - wanted) * values + softened
    return reduce_loss(found if factor is None else found * factor, reduction, kind)


# ---- negative log likelihood


def _read_target(
    self: Any, target: Any, weight: Any, ignore_index: int, spatial: bool
) -> tuple[int, Any, Any, Any]:
    """The dimension of classes; of every target its class, a mask of those not ignored, its weight.

    The class and the weight are 0 where a target is ignored.
    """
    axis = class_axis(self, target, weight, spatial)
    kept = target != ignore_index
    classes = numpy.where(kept, target, 0).astype(dtypes.INT64)
    count = self.shape[axis]
    if classes.size and (classes.min() < 0 or classes.max() >= max(count, 1)):
        raise IndexError(f"the target names a class that is not among {count}")
    if weight is None:
        return axis, classes, kept, kept.astype(dtypes.working(self.dtype))
    return axis, classes, kept, numpy.where(kept, widen(weight)[classes], 0)


def _forward(
    spatial: bool, self: Any, target: Any, weight: Any, reduction: int, ignore_index: int
) -> Any:
    axis, classes, kept, counts = _read_target(self, target, weight, ignore_index, spatial)
    picked = numpy.take_along_axis(self, numpy.expand_dims(classes, axis), axis).squeeze(axis)
    # Ignored targets count 0, even if the element there is infinite.
    losses = numpy.where(kept, -widen(picked) * counts, counts.dtype.type(0))
    if reduction == NONE:
        return cast(losses, self.dtype), numpy.zeros((), self.dtype)
    weighed = total(counts, axes(None, counts))
    return reduce_loss(losses, reduction, self.dtype, weighed), cast(weighed, self.dtype)


def _backward(
    spatial: bool, grad_output: Any, self: Any, target: Any, weight: Any, reduction: int,
    ignore_index: int, total_weight: Any,
) -> Any:  # fmt: skip
    axis, classes, kept, counts = _read_target(self, target, weight, ignore_index, spatial)
    grad = widen(grad_output)
    if reduction == MEAN:
        with numpy.errstate(divide="ignore", invalid="ignore"):
            grad = grad / widen(total_weight)
    slopes = cast(numpy.where(kept, -counts * grad, counts.dtype.type(0)), self.dtype)
    made = numpy.zeros(self.shape, self.dtype)
    at, slopes = (numpy.expand_dims(a, axis) for a in (classes, slopes))
    numpy.put_along_axis(made, at, slopes, axis)
    return made


for _name, _spatial in (("nll_loss", False), ("nll_loss2d", True)):
    register(f"{_name}_forward", functools.partial(_forward, _spatial))
    register(f"{_name}_backward", functools.partial(_backward, _spatial))


# ---- one class against the others


def _margins(self: Any, target: Any, p: Any, margin: Any, weight: Any) -> Any:
    """Rows, classes, hinge terms of the other classes, and the weight of each row."""
    if p not in (1, 2):
        raise ValueError(f"p must be 1 or 2, not {p}")
    rows = to_floating(self).reshape(-1, self.shape[-1] if self.ndim else 1)
    classes = target.reshape(-1)
    if classes.shape != (rows.shape[0],):
        raise ValueError(f"{classes.size} targets for {rows.shape[0]} rows")
    if classes.size and (classes.min() < 0 or classes.max() >= rows.shape[1]):
        raise IndexError(f"the target names a class that is not among {rows.shape[1]}")
    own = numpy.take_along_axis(rows, classes[:, None], 1)
    within = numpy.maximum(rows - own + rows.dtype.type(margin), 0)
    numpy.put_along_axis(within, classes[:, None], 0, 1)
    counts = None if weight is None else widen(weight)[classes][:, None]
    return rows, classes, within, counts


@kernel("multi_margin_loss")
def multi_margin_loss(
    self: Any, target: Any, p: Any = 1, margin: Any = 1, weight: Any = None, reduction: int = MEAN
) -> Any:
    rows, _, within, counts = _margins(self, target, p, margin, weight)
    values = within if p == 1 else within * within
    values = values if counts is None else values * counts
    losses = numpy.add.reduce(values, axis=1) / rows.dtype.type(rows.shape[1])
    found = reduce_loss(losses, reduction, self.dtype)
    return found.reshape(target.shape) if reduction == NONE else found


@kernel("multi_margin_loss_backward")
def multi_margin_loss_backward(
    grad_output: Any, self: Any, target: Any, p: Any, margin: Any, weight: Any = None,
    reduction: int = MEAN,
) -> Any:  # fmt: skip
    rows, classes, within, counts = _margins(self, target, p, margin, weight)
    slopes = (within > 0).astype(rows.dtype) if p == 1 else within * rows.dtype.type(2)
    slopes = slopes if counts is None else slopes * counts
    slopes /= rows.dtype.type(rows.shape[1])
    numpy.put_along_axis(slopes, classes[:, None], -slopes.sum(axis=1, keepdims=True), 1)
    return _scale_rows(slopes, grad_output, reduction, self)


def _scale_rows(slopes: Any, grad: Any, reduction: int, like: Any) -> Any:
    """The gradient of `like` from the slopes of the loss of each row."""
    if reduction == MEAN:
        slopes /= slopes.dtype.type(max(len(slopes), 1))
    wide = widen(grad)
    wide = wide.reshape(-1, 1) if reduction == NONE else wide
    return cast(slopes * wide, like.dtype).reshape(like.shape)


# ---- several classes against the others


def _read_multilabel(self: Any, target: Any) -> tuple[Any, Any, Any, Any]:
    """Rows, targets, a mask of targets before the first -1, and a mask of target classes."""
    if self.shape != target.shape:
        raise ValueError("input and target of a multilabel margin loss have different shapes")
    rows = to_floating(self).reshape(-1, self.shape[-1] if self.ndim else 1)
    targets = target.reshape(rows.shape)
    counted = numpy.logical_and.accumulate(targets >= 0, axis=1)
    if (targets[counted] >= rows.shape[1]).any():
        raise IndexError(f"the target names a class that is not among {rows.shape[1]}")
    marked = numpy.zeros(rows.shape, bool)
    numpy.logical_or.at(marked, (numpy.nonzero(counted)[0], targets[counted]), True)
    return rows, numpy.where(counted, targets, 0), counted, marked


def _gaps(rows: Any, targets: Any, counted: Any, marked: Any) -> Any:
    """max(0, 1 - (own - other)) for every (row, target, other)."""
    own = numpy.take_along_axis(rows, targets, 1)
    gaps = numpy.maximum(1 - own[:, :, None] + rows[:, None, :], 0)
    return gaps * (counted[:, :, None] & ~marked[:, None, :])


@kernel("multilabel_margin_loss_forward")
def multilabel_margin_loss(self: Any, target: Any, reduction: int) -> Any:
    rows, targets, counted, marked = _read_multilabel(self, target)
    gaps = _gaps(rows, targets, counted, marked)
    losses = gaps.sum(axis=(1, 2)) / rows.dtype.type(max(rows.shape[1], 1))
    found = reduce_loss(losses, reduction, self.dtype)
    found = found.reshape(self.shape[:-1]) if reduction == NONE else found
    return found, cast(marked, self.dtype).reshape(target.shape)


@kernel("multilabel_margin_loss_backward")
def multilabel_margin_loss_backward(
    grad_output: Any, self: Any, target: Any, reduction: int, is_target: Any
) -> Any:
    rows, targets, counted, marked = _read_multilabel(self, target)
    slopes = (_gaps(rows, targets, counted, marked) > 0).astype(rows.dtype)
    made = slopes.sum(axis=1)
    sample = numpy.broadcast_to(numpy.arange(rows.shape[0])[:, None], targets.shape)
    numpy.subtract.at(made, (sample, targets), slopes.sum(axis=2))
    made /= rows.dtype.type(max(rows.shape[1], 1))
    return _scale_rows(made, grad_output, reduction, self)
