"""Losses whose target is a class, computed in float32 or wider.

`reduction` is ATen's: 0 none, 1 mean, 2 sum.
"""

from __future__ import annotations

from typing import Any

import numpy

from holdfast.compute import dtype as dtypes
from holdfast.compute.engines.numpy.kernels import cast, kernel, to_floating, widen
from holdfast.compute.engines.numpy.layers.loss import reduce_loss
from holdfast.compute.engines.numpy.reduce.axes import axes, total
from holdfast.compute.ops.layers.loss import MEAN, NONE

# ---- negative log likelihood


def _class_indices(self: Any, target: Any, ignore_index: int, spatial: bool) -> tuple[Any, Any]:
    """The target's classes (0 where ignored), and a mask of those not ignored."""
    axis = 1 if spatial or self.ndim == 2 else 0
    wanted = self.shape[:axis] + self.shape[axis + 1 :]
    if target.shape != wanted:
        raise ValueError(
            f"the target has shape {list(target.shape)}, the input asks for {list(wanted)}"
        )
    kept = target != ignore_index
    classes = numpy.where(kept, target, 0).astype(dtypes.INT64)
    count = self.shape[axis]
    if classes.size and (classes.min() < 0 or classes.max() >= max(count, 1)):
        raise IndexError(f"the target names a class that is not among {count}")
    return classes, kept


def _weights(self: Any, weight: Any, classes: Any, kept: Any, channels: int) -> Any:
    """The weight of every target: 0 where ignored."""
    if weight is None:
        return kept.astype(dtypes.working(self.dtype))
    if weight.shape != (channels,):
        raise ValueError(f"the weight has shape {list(weight.shape)}, for {channels} classes")
    return numpy.where(kept, widen(weight)[classes], 0)


def _pick_classes(self: Any, classes: Any, spatial: bool) -> Any:
    """The elements of `self` at the target's classes."""
    axis = 1 if spatial or self.ndim == 2 else 0
    return numpy.take_along_axis(self, numpy.expand_dims(classes, axis), axis).squeeze(axis)


def _forward(
    self: Any, target: Any, weight: Any, reduction: int, ignore_index: int, spatial: bool
) -> Any:
    channels = self.shape[1 if spatial or self.ndim == 2 else 0]
    classes, kept = _class_indices(self, target, ignore_index, spatial)
    counts = _weights(self, weight, classes, kept, channels)
    # Ignored targets count 0, even if the element there is infinite.
    losses = numpy.where(
        kept, -widen(_pick_classes(self, classes, spatial)) * counts, counts.dtype.type(0)
    )
    if reduction == NONE:
        return cast(losses, self.dtype), numpy.zeros((), self.dtype)
    weighed = total(counts, axes(None, counts))
    return reduce_loss(losses, reduction, self.dtype, weighed), cast(weighed, self.dtype)


def _backward(spatial: bool, *args: Any) -> Any:
    grad_output, self, target, weight, reduction, ignore_index, total_weight = args
    axis = 1 if spatial or self.ndim == 2 else 0
    classes, kept = _class_indices(self, target, ignore_index, spatial)
    counts = _weights(self, weight, classes, kept, self.shape[axis])
    grad = widen(grad_output)
    if reduction == MEAN:
        with numpy.errstate(divide="ignore", invalid="ignore"):
            grad = grad / widen(total_weight)
    slopes = numpy.where(kept, -counts * grad, counts.dtype.type(0))
    made = numpy.zeros(self.shape, self.dtype)
    indices = numpy.expand_dims(classes, axis)
    numpy.put_along_axis(made, indices, numpy.expand_dims(cast(slopes, self.dtype), axis), axis)
    return made


@kernel("nll_loss_forward")
def nll_loss(self: Any, target: Any, weight: Any, reduction: int, ignore_index: int) -> Any:
    return _forward(self, target, weight, reduction, ignore_index, False)


@kernel("nll_loss2d_forward")
def nll_loss2d(self: Any, target: Any, weight: Any, reduction: int, ignore_index: int) -> Any:
    return _forward(self, target, weight, reduction, ignore_index, True)


@kernel("nll_loss_backward")
def nll_loss_backward(*args: Any) -> Any:
    return _backward(False, *args)


@kernel("nll_loss2d_backward")
def nll_loss2d_backward(*args: Any) -> Any:
    return _backward(True, *args)


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
    grad = widen(grad_output)
    grad = grad.reshape(-1, 1) if reduction == NONE else grad
    if reduction == MEAN:
        slopes /= rows.dtype.type(rows.shape[0])
    return cast(slopes * grad, self.dtype).reshape(self.shape)


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
    grad = widen(grad_output)
    grad = grad.reshape(-1, 1) if reduction == NONE else grad
    if reduction == MEAN:
        made /= rows.dtype.type(max(rows.shape[0], 1))
    return cast(made * grad, self.dtype).reshape(self.shape)
