"""Elementwise losses, and those made of other ops. `reduction` is ATen's: 0 none, 1 mean, 2 sum."""

from __future__ import annotations

import math
from typing import Any

import numpy

from holdfast.compute import dtype as dtypes
from holdfast.compute import functional as F
from holdfast.compute.ops.rules import Meta, rule
from holdfast.compute.ops.table import Op, composite, op

NONE, MEAN, SUM = range(3)


def _shape(bound: dict[str, Any]) -> tuple[int, ...]:
    return numpy.broadcast_shapes(tuple(bound["self"].shape), tuple(bound["target"].shape))


def _infer_loss(op: Op, bound: dict[str, Any]) -> Meta:
    others = (bound["self"], bound["target"], bound.get("weight"), bound.get("pos_weight"))
    kind = dtypes.result_type(*others)
    return Meta(_shape(bound) if bound["reduction"] == NONE else (), kind)


def _infer_loss_backward(op: Op, bound: dict[str, Any]) -> Meta:
    kind = dtypes.result_type(bound["self"], bound["target"], bound.get("weight"))
    return Meta(_shape(bound), kind)


LOST, SLOPES = rule(_infer_loss), rule(_infer_loss_backward)


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
op("soft_margin_loss(Tensor self, Tensor target, int reduction=1) -> Tensor", LOST,
   {"self": "soft_margin_loss_backward(grad, self, target, reduction)"})  # fmt: skip
op("soft_margin_loss_backward(Tensor grad_output, Tensor self, Tensor target, int reduction)"
   " -> Tensor", SLOPES,
   {"grad_output": "loss_grad_output(grad, soft_margin_loss_backward(ones_like(grad_output), self,"
                   " target, reduction), reduction)",
    "self": "per_element(grad_output, self, target, reduction) * grad * target * target"
            " * sigmoid(self * target) * (1 - sigmoid(self * target))"})  # fmt: skip
op("binary_cross_entropy(Tensor self, Tensor target, Tensor? weight=None, int reduction=1)"
   " -> Tensor", LOST,
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
   " Tensor? pos_weight=None, int reduction=1) -> Tensor", LOST,
   {"self": "per_element(grad, self, target, reduction)"
            " * logits_slope(self, target, weight, pos_weight)",
    "target": "per_element(grad, self, target, reduction)"
              " * logits_slope_for_target(self, weight, pos_weight)"})  # fmt: skip


# ---- made of other ops


def reduced(loss: Any, reduction: int) -> Any:
    """Apply `reduction` to the elements of a loss."""
    if reduction == NONE:
        return loss
    return F.mean(loss) if reduction == MEAN else F.sum(loss)


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
