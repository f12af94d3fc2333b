"""Losses, elementwise or against class indices. `reduction` is ATen's: 0 none, 1 mean, 2 sum."""

from __future__ import annotations

import math
from typing import Any

import numpy

from holdfast.compute import dtype as dtypes
from holdfast.compute import functional as F
from holdfast.compute.ops.rules import LIKE_SELF, Meta, like, rule
from holdfast.compute.ops.table import Op, composite, op

NONE, MEAN, SUM = range(3)


def check_reduction(reduction: int) -> None:
    """Raise ValueError for an unknown reduction."""
    if reduction not in (NONE, MEAN, SUM):
        raise ValueError(f"reduction {reduction} is unknown; 0 is none, 1 is mean, 2 is sum")


def _shape(bound: dict[str, Any]) -> tuple[int, ...]:
    return numpy.broadcast_shapes(tuple(bound["self"].shape), tuple(bound["target"].shape))


def _infer_loss(op: Op, bound: dict[str, Any]) -> Meta:
    others = (bound["self"], bound["target"], bound.get("weight"), bound.get("pos_weight"))
    kind = dtypes.result_type(*others)
    return Meta(_shape(bound) if bound["reduction"] == NONE else (), kind)


def _infer_loss_backward(op: Op, bound: dict[str, Any]) -> Meta:
    kind = dtypes.result_type(bound["self"], bound["target"], bound.get("weight"))
    return Meta(_shape(bound), kind)


def _check_same_shape(self: Any, target: Any, *_: Any, **named: Any) -> None:
    if self.shape != target.shape:
        raise ValueError("input and target of a binary cross entropy have different shapes")


LOST, SLOPES = rule(_infer_loss), rule(_infer_loss_backward)
_ENTROPY = rule(_infer_loss, check=_check_same_shape)


def _loss(name: str, setting: str, default: str, curved: str) -> None:
    """A symmetric loss of (self - target); `curved` is its second derivative."""
    typed, given = (f", float {setting}", f", {setting}") if setting else ("", "")
    op(f"{name}(Tensor self, Tensor target, int reduction=1{typed}{default}) -> Tensor", LOST,
       {"self": f"{name}_backward(grad, self, target, reduction{given})",
        "target": f"{name}_backward(grad, target, self, reduction{given})"})  # fmt: skip
    of_grad = f"loss_grad_output(grad, {name}_backward(ones_like(grad_output), self, target," \
              f" reduction{given}), reduction)"  # fmt: skip
    bend = f"per_element(grad_output, self, target, reduction) * grad * {curved}"
    op(f"{name}_backward(Tensor grad_output, Tensor self, Tensor target, int reduction{typed})"
       " -> Tensor", SLOPES,
       {"grad_output": of_grad, "self": bend, "target": f"0 - {bend}"})  # fmt: skip


_loss("mse_loss", "", "", "2")
_loss("smooth_l1_loss", "beta", "=1.", "is_within(self - target, beta) / (beta or 1)")
_loss("huber_loss", "delta", "=1.", "is_within(self - target, delta)")


def _soft_margin(self: Any, target: Any, reduction: int = MEAN) -> Any:
    return reduced(F.softplus(F.neg(target) * self), reduction)


def _soft_margin_backward(grad_output: Any, self: Any, target: Any, reduction: int) -> Any:
    slope = F.neg(target) * F.sigmoid(F.neg(target) * self)
    return slope * (grad_output / max(slope.numel(), 1) if reduction == MEAN else grad_output)


op("soft_margin_loss(Tensor self, Tensor target, int reduction=1) -> Tensor", LOST,
   {"self": "soft_margin_loss_backward(grad, self, target, reduction)"},
   _soft_margin)  # fmt: skip
op("soft_margin_loss_backward(Tensor grad_output, Tensor self, Tensor target, int reduction)"
   " -> Tensor", SLOPES,
   {"grad_output": "loss_grad_output(grad, soft_margin_loss_backward(ones_like(grad_output), self,"
                   " target, reduction), reduction)",
    "self": "per_element(grad_output, self, target, reduction) * grad * target * target"
            " * sigmoid(self * target) * (1 - sigmoid(self * target))"},
   _soft_margin_backward)  # fmt: skip
op("binary_cross_entropy(Tensor self, Tensor target, Tensor? weight=None, int reduction=1)"
   " -> Tensor", _ENTROPY,
   {"self": "binary_cross_entropy_backward(grad, self, target, weight, reduction)",
    "target": "per_element(grad, self, target, reduction) * apply_weight(log1p(0 - self)"
              " - log(self), weight)"})  # fmt: skip
op("binary_cross_entropy_backward(Tensor grad_output, Tensor self, Tensor target,"
   " Tensor? weight=None, int reduction=1) -> Tensor", SLOPES,
   {"grad_output": "loss_grad_output(grad, binary_cross_entropy_backward(ones_like(grad_output),"
                   " self, target, weight, reduction), reduction)",
    "self": "per_element(grad_output, self, target, reduction) * grad * apply_weight("
            "(self * self - 2 * self * target + target) / clamp_min(pow(self * (1 - self), 2),"
            " 1e-12), weight)",
    "target": "per_element(grad_output, self, target, reduction) * grad * apply_weight("
              "0 - 1 / clamp_min(self * (1 - self), 1e-12), weight)"})  # fmt: skip
op("binary_cross_entropy_with_logits(Tensor self, Tensor target, Tensor? weight=None,"
   " Tensor? pos_weight=None, int reduction=1) -> Tensor", _ENTROPY,
   {"self": "per_element(grad, self, target, reduction)"
            " * logits_slope(self, target, weight, pos_weight)",
    "target": "per_element(grad, self, target, reduction)"
              " * logits_slope_for_target(self, weight, pos_weight)"})  # fmt: skip


# ---- made of other ops


def reduced(loss: Any, reduction: int) -> Any:
    """Apply `reduction` to the elements of a loss. Raises ValueError for an unknown one."""
    check_reduction(reduction)
    return loss if reduction == NONE else F.mean(loss) if reduction == MEAN else F.sum(loss)


@composite("l1_loss(Tensor self, Tensor target, int reduction=1) -> Tensor")
def l1_loss(self: Any, target: Any, reduction: int = MEAN) -> Any:
    return reduced(F.abs(self - target), reduction)


@composite("kl_div(Tensor self, Tensor target, int reduction=1, *, bool log_target=False)"
           " -> Tensor")  # fmt: skip
def kl_div(self: Any, target: Any, reduction: int = MEAN, *, log_target: bool = False) -> Any:
    if log_target:
        return reduced(F.exp(target) * (target - self), reduction)
    return reduced(F.xlogy(target, target) - target * self, reduction)


@composite("poisson_nll_loss(Tensor input, Tensor target, bool log_input, bool full, float eps,"
           " int reduction) -> Tensor")  # fmt: skip
def poisson_nll_loss(
    input: Any, target: Any, log_input: bool, full: bool, eps: float, reduction: int
) -> Any:
    mean, logged = (F.exp(input), input) if log_input else (input, F.log(input + eps))
    loss = mean - target * logged
    if full:
        stirling = target * F.log(target) - target + 0.5 * F.log(2 * math.pi * target)
        loss = loss + F.masked_fill(stirling, F.le(target, 1), 0)
    return reduced(loss, reduction)


@composite("hinge_embedding_loss(Tensor self, Tensor target, float margin=1., int reduction=1)"
           " -> Tensor")  # fmt: skip
def hinge_embedding_loss(self: Any, target: Any, margin: float = 1.0, reduction: int = MEAN) -> Any:
    zero = F.zeros_like(self)
    apart = F.where(F.eq(target, 1), zero, F.clamp_min(margin - self, 0))
    near = F.where(F.eq(target, -1), zero, self)
    return reduced(apart + near, reduction)


@composite("margin_ranking_loss(Tensor input1, Tensor input2, Tensor target, float margin=0.,"
           " int reduction=1) -> Tensor")  # fmt: skip
def margin_ranking_loss(
    input1: Any, input2: Any, target: Any, margin: float = 0.0, reduction: int = MEAN
) -> Any:
    return reduced(F.clamp_min(F.neg(target) * (input1 - input2) + margin, 0), reduction)


@composite("cosine_embedding_loss(Tensor input1, Tensor input2, Tensor target, float margin=0.,"
           " int reduction=1) -> Tensor")  # fmt: skip
def cosine_embedding_loss(
    input1: Any, input2: Any, target: Any, margin: float = 0.0, reduction: int = MEAN
) -> Any:
    dim = -1 if input1.ndim < 2 else 1
    tiny = 1e-12
    one, other = (F.sum(x * x, dim) + tiny for x in (input1, input2))
    cosine = F.sum(input1 * input2, dim) / F.sqrt(one * other)
    zero = F.zeros_like(cosine)
    near = F.where(F.eq(target, 1), 1 - cosine, zero)
    apart = F.where(F.eq(target, -1), F.clamp_min(cosine - margin, 0), zero)
    return reduced(near + apart, reduction)


@composite("triplet_margin_loss(Tensor anchor, Tensor positive, Tensor negative, float margin=1.,"
           " float p=2., float eps=1e-06, bool swap=False, int reduction=1) -> Tensor")  # fmt: skip
def triplet_margin_loss(
    anchor: Any, positive: Any, negative: Any, margin: float = 1.0, p: float = 2.0,
    eps: float = 1e-6, swap: bool = False, reduction: int = MEAN,
) -> Any:  # fmt: skip
    near = F.pairwise_distance(anchor, positive, p, eps)
    apart = F.pairwise_distance(anchor, negative, p, eps)
    if swap:
        apart = F.minimum(apart, F.pairwise_distance(positive, negative, p, eps))
    return reduced(F.clamp_min(margin + near - apart, 0), reduction)


# ---- against class indices


def _infer_class_loss(_: Op, bound: dict[str, Any]) -> Meta:
    shape = tuple(bound["target"].shape) if bound["reduction"] == NONE else ()
    return Meta(shape, bound["self"].dtype)


def class_axis(self: Any, target: Any, weight: Any, spatial: bool) -> int:
    """The dimension of classes. Raises ValueError for a target or a weight that does not fit."""
    axis = 1 if spatial or self.ndim == 2 else 0
    wanted = self.shape[:axis] + self.shape[axis + 1 :]
    if target.shape != wanted:
        raise ValueError(
            f"the target has shape {list(target.shape)}, the input asks for {list(wanted)}"
        )
    count = self.shape[axis]
    if weight is not None and weight.shape != (count,):
        raise ValueError(f"the weight has shape {list(weight.shape)}, for {count} classes")
    return axis


for _name in ("nll_loss", "nll_loss2d"):
    op(f"{_name}_forward(Tensor self, Tensor target, Tensor? weight, int reduction,"
       " int ignore_index) -> (Tensor output, Tensor total_weight)",
       rule(lambda op, bound: (_infer_class_loss(op, bound), Meta((), bound["self"].dtype))),
       {"self": f"{_name}_backward(grad, shape_only(grad, self.shape), target, weight, reduction,"
                " ignore_index, result1)"})  # fmt: skip
    op(f"{_name}_backward(Tensor grad_output, Tensor self, Tensor target, Tensor? weight,"
       " int reduction, int ignore_index, Tensor total_weight) -> Tensor", LIKE_SELF,
       {"grad_output": f"nll_grad(grad, target, weight, reduction, ignore_index, {_name}_forward)"
        })  # fmt: skip


op("multi_margin_loss(Tensor self, Tensor target, Scalar p=1, Scalar margin=1,"
   " Tensor? weight=None, int reduction=1) -> Tensor", rule(_infer_class_loss),
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


_SETTINGS = "Tensor? weight=None, int reduction=1, int ignore_index=-100"


def _nll(name: str) -> Any:
    def loss(
        self: Any, target: Any, weight: Any = None, reduction: int = MEAN, ignore_index: int = -100
    ) -> Any:
        return F.packet(f"{name}_forward")(self, target, weight, reduction, ignore_index)[0]

    return loss


for _name in ("nll_loss", "nll_loss2d"):
    composite(f"{_name}(Tensor self, Tensor target, {_SETTINGS}) -> Tensor")(_nll(_name))


@composite(f"nll_loss_nd(Tensor self, Tensor target, {_SETTINGS}) -> Tensor")
def nll_loss_nd(
    self: Any, target: Any, weight: Any = None, reduction: int = MEAN, ignore_index: int = -100
) -> Any:
    if self.ndim <= 2:
        return F.nll_loss(self, target, weight, reduction, ignore_index)
    if self.ndim == 4:
        return F.nll_loss2d(self, target, weight, reduction, ignore_index)
    samples, channels = self.shape[:2]
    shape = list(target.shape)
    flat = F.reshape(self, [samples, channels, 1, -1])
    found = F.nll_loss2d(
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
    smooth = _smooth(logged, target, weight, reduction, ignore_index, axis)
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


def _smooth(
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


# ---- connectionist temporal classification (CTC)

for _overload, _lengths in (("", "int[]"), (".Tensor", "Tensor")):
    _given = f"{_lengths} input_lengths, {_lengths} target_lengths"
    op(f"_ctc_loss{_overload}(Tensor log_probs, Tensor targets, {_given}, int blank=0,"
       " bool zero_infinity=False) -> (Tensor, Tensor)",
       gradient={"log_probs": "_ctc_loss_backward(grad, log_probs, targets, input_lengths,"
                 " target_lengths, result0, result1, blank, zero_infinity)"})  # fmt: skip
    op(f"_ctc_loss_backward{_overload}(Tensor grad, Tensor log_probs, Tensor targets, {_given},"
       " Tensor neg_log_likelihood, Tensor log_alpha, int blank, bool zero_infinity=False)"
       " -> Tensor", like("log_probs"))  # fmt: skip


def _ctc_loss(
    log_probs: Any, targets: Any, input_lengths: Any, target_lengths: Any, blank: int = 0,
    reduction: int = MEAN, zero_infinity: bool = False,
) -> Any:  # fmt: skip
    lost = F._ctc_loss(log_probs, targets, input_lengths, target_lengths, blank, zero_infinity)[0]
    if zero_infinity:
        lost = F.where(F.isinf(lost), F.zeros_like(lost), lost)
    if reduction == NONE:
        return lost
    if reduction != MEAN:
        return F.sum(lost)
    counts = target_lengths
    if not hasattr(counts, "_array"):
        counts = lost._new([counts] if isinstance(counts, int) else list(counts))
    counts = F.reshape(F.clamp_min(counts.to(lost.dtype), 1), list(lost.shape))
    return F.mean(lost / counts)


for _overload, _lengths in (("IntList", "int[]"), ("Tensor", "Tensor")):
    composite(f"ctc_loss.{_overload}(Tensor log_probs, Tensor targets, {_lengths} input_lengths,"
              f" {_lengths} target_lengths, int blank=0, int reduction=1,"
              " bool zero_infinity=False) -> Tensor")(_ctc_loss)  # fmt: skip
