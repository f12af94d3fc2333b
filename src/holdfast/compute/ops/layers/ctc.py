"""Connectionist temporal classification (CTC) loss."""

from __future__ import annotations

from typing import Any

from holdfast.compute import functional as F
from holdfast.compute.ops.layers.loss import MEAN, NONE
from holdfast.compute.ops.rules import like
from holdfast.compute.ops.table import composite, op

for _overload, _lengths in (("", "int[]"), (".Tensor", "Tensor")):
    _given = f"{_lengths} input_lengths, {_lengths} target_lengths"
    op(f"_ctc_loss{_overload}(Tensor log_probs, Tensor targets, {_given}, int blank=0,"
       " bool zero_infinity=False) -> (Tensor, Tensor)",
       gradient={"log_probs": "_ctc_loss_backward(grad, log_probs, targets, input_lengths,"
                 " target_lengths, result0, result1, blank, zero_infinity)"})  # fmt: skip
    op(f"_ctc_loss_backward{_overload}(Tensor grad, Tensor log_probs, Tensor targets, {_given},"
       " Tensor neg_log_likelihood, Tensor log_alpha, int blank, bool zero_infinity=False)"
       " -> Tensor", like("log_probs"))  # fmt: skip


def _loss(
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
              " bool zero_infinity=False) -> Tensor")(_loss)  # fmt: skip
