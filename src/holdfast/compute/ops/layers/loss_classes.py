"""Losses against class indices: negative log likelihood, cross entropy, margins."""

from __future__ import annotations

from typing import Any

from holdfast.compute import dtype as dtypes
from holdfast.compute import functional as F
from holdfast.compute.ops.layers.loss import MEAN, NONE, reduced
from holdfast.compute.ops.rules import LIKE_SELF, Meta, rule
from holdfast.compute.ops.table import Op, composite, op


def _infer_loss(op: Op, bound: dict[str, Any]) -> tuple[Meta, Meta]:
    of, target = bound["self"], bound["target"]
    shape = tuple(target.shape) if bound["reduction"] == NONE else ()
    return Meta(shape, of.dtype), Meta((), of.dtype)


for _name in ("nll_loss", "nll_loss2d"):
    op(f"{_name}_forward(Tensor self, Tensor target, Tensor? weight, int reduction,"
       " int ignore_index) -> (Tensor output, Tensor total_weight)", rule(_infer_loss),
       {"self": f"{_name}_backward(grad, shape_only(grad, self.shape), target, weight, reduction,"
                " ignore_index, result1)"})  # fmt: skip
    op(f"{_name}_backward(Tensor grad_output, Tensor self, Tensor target, Tensor? weight,"
       " int reduction, int ignore_index, Tensor total_weight) -> Tensor", LIKE_SELF,
       {"grad_output": f"nll_grad(grad, target, weight, reduction, ignore_index, {_name}_forward)"
        })  # fmt: skip


def _infer_margin(op: Op, bound: dict[str, Any]) -> Meta:
    of = bound["self"]
    return Meta(tuple(bound["target"].shape) if bound["reduction"] == NONE else (), of.dtype)


op("multi_margin_loss(Tensor self, Tensor target, Scalar p=1, Scalar margin=1,"
   " Tensor? weight=None, int reduction=1) -> Tensor", rule(_infer_margin),
   {"self": "multi_margin_loss_backward(grad, self, target, p, margin, weight, reduction)"
    })  # fmt: skip
op("multi_margin_loss_backward(Tensor grad_output, Tensor self, Tensor target, Scalar p,"
   " Scalar margin, Tensor? weight=None, int reduction=1) -> Tensor", LIKE_SELF)  # fmt: skip


def _infer_labels(op: Op, bound: dict[str, Any]) -> tuple[Meta, Meta]:
    of, target = bound["self"], bound["target"]
    shape = tuple(of.shape[:-1]) if bound["reduction"] == NONE else ()
    return Meta(shape, of.dtype), Meta(tuple(target.shape), of.dtype)


op("multilabel_margin_loss_forward(Tensor self, Tensor target, int reduction)"
   " -> (Tensor output, Tensor is_target)", rule(_infer_labels),
   {"self": "multilabel_margin_loss_backward(grad, self, target, reduction, result1)"
    })  # fmt: skip
op("multilabel_margin_loss_backward(Tensor grad_output, Tensor self, Tensor target,"
   " int reduction, Tensor is_target) -> Tensor", LIKE_SELF)  # fmt: skip


@composite("multilabel_margin_loss(Tensor self, Tensor target, int reduction=1) -> Tensor")
def multilabel_margin_loss(self: Any, target: Any, reduction: int = MEAN) -> Any:
    return F.multilabel_margin_loss_forward(self, target, reduction)[0]


# ---- what users call


_SETTINGS = "Tensor? weight=None, int reduction=1, int ignore_index=-100"


@composite(f"nll_loss(Tensor self, Tensor target, {_SETTINGS}) -> Tensor")
def nll_loss(
    self: Any, target: Any, weight: Any = None, reduction: int = MEAN, ignore_index: int = -100
) -> Any:
    return F.nll_loss_forward(self, target, weight, reduction, ignore_index)[0]


@composite(f"nll_loss2d(Tensor self, Tensor target, {_SETTINGS}) -> Tensor")
def nll_loss2d(
    self: Any, target: Any, weight: Any = None, reduction: int = MEAN, ignore_index: int = -100
) -> Any:
    return F.nll_loss2d_forward(self, target, weight, reduction, ignore_index)[0]


@composite(f"nll_loss_nd(Tensor self, Tensor target, {_SETTINGS}) -> Tensor")
def nll_loss_nd(
    self: Any, target: Any, weight: Any = None, reduction: int = MEAN, ignore_index: int = -100
) -> Any:
    if self.ndim <= 2:
        return nll_loss(self, target, weight, reduction, ignore_index)
    if self.ndim == 4:
        return nll_loss2d(self, target, weight, reduction, ignore_index)
    samples, channels = self.shape[:2]
    shape = list(target.shape)
    flat = F.reshape(self, [samples, channels, 1, -1])
    found = nll_loss2d(
        flat, F.reshape(target, [samples, 1, -1]), weight, reduction, ignore_index
    )  # fmt: skip
    return F.reshape(found, shape) if reduction == NONE else found


@composite(f"cross_entropy_loss(Tensor self, Tensor target, {_SETTINGS},"
           " float label_smoothing=0.) -> Tensor")  # fmt: skip
def cross_entropy_loss(
    self: Any, target: Any, weight: Any = None, reduction: int = MEAN, ignore_index: int = -100,
    label_smoothing: float = 0.0,
) -> Any:  # fmt: skip
    if not 0 <= label_smoothing <= 1:
        raise ValueError(f"label_smoothing is between 0 and 1, not {label_smoothing}")
    axis = 0 if self.ndim == 1 else 1
    logged = F._log_softmax(self, axis, False)
    if tuple(self.shape) == tuple(target.shape):
        if dtypes.category(target.dtype) != dtypes.FLOATING:
            raise TypeError(f"probabilities as a target are floating-point, not {target.dtype}")
        return _of_shares(logged, target, weight, reduction, label_smoothing, axis)
    found = nll_loss_nd(logged, target, weight, reduction, ignore_index)
    if not label_smoothing:
        return found
    smooth = _smoothed(logged, target, weight, reduction, ignore_index, axis)
    return found * (1 - label_smoothing) + smooth * (label_smoothing / self.shape[axis])


def _per_class(weight: Any, logged: Any, axis: int) -> Any:
    shape = [1] * logged.ndim
    shape[axis] = logged.shape[axis]
    return F.reshape(weight, shape)


def _of_shares(
    logged: Any, target: Any, weight: Any, reduction: int, smoothing: float, axis: int
) -> Any:
    """Cross entropy against probabilities."""
    if smoothing:
        target = target * (1 - smoothing) + smoothing / logged.shape[axis]
    product = logged * target
    if weight is not None:
        product = product * _per_class(weight, logged, axis)
    losses = F.neg(F.sum(product, axis))
    if reduction == MEAN:
        places = logged.numel() // max(logged.shape[axis], 1)
        return F.sum(losses) / places
    return reduced(losses, reduction)


def _smoothed(
    logged: Any, target: Any, weight: Any, reduction: int, ignore_index: int, axis: int
) -> Any:
    """The loss against a uniform distribution over classes."""
    spread = logged if weight is None else logged * _per_class(weight, logged, axis)
    losses = F.neg(F.sum(spread, axis))
    ignored = F.eq(target, ignore_index)
    losses = F.masked_fill(losses, ignored, 0)
    if reduction != MEAN:
        return reduced(losses, reduction)
    if weight is None:
        return F.sum(losses) / F.sum(F.logical_not(ignored)).to(logged.dtype)
    classes = F.masked_fill(target, ignored, 0)
    counts = F.index_select(weight, 0, F.reshape(classes, [-1]))
    counts = F.masked_fill(counts, F.reshape(ignored, [-1]), 0)
    return F.sum(losses) / F.sum(counts)
