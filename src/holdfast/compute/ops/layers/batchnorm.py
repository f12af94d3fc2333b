"""Batch normalization in ATen's several forms.

Training changes running statistics in place, also in `native_batch_norm`, whose signature does
not say so.
"""

from __future__ import annotations

from typing import Any

from holdfast.compute import functional as F
from holdfast.compute.ops.layers.normalize import statistics_dtype
from holdfast.compute.ops.rules import Meta, gradients, meta_of, rule
from holdfast.compute.ops.table import Op, composite, op

_NAMES = ("weight", "bias", "running_mean", "running_var")


def _infer_batch_norm(op: Op, bound: dict[str, Any]) -> tuple[Meta, ...]:
    of = bound["input"]
    kind = statistics_dtype(of, *(bound.get(name) for name in _NAMES))
    training = bound.get("training", "with_update" in op.name)
    statistic = Meta((of.shape[1],) if training else (0,), kind)
    return meta_of(of), statistic, statistic


_OUT = " -> (Tensor, Tensor, Tensor)"
_HEAD = "Tensor input, Tensor? weight, Tensor? bias, "
_TAIL = "float momentum, float eps)"


def _back(mean: str = "running_mean", var: str = "running_var", train: str = "training") -> Any:
    return {"input, weight, bias": f"native_batch_norm_backward(grad, input, weight, {mean}, {var},"
            f" result1, result2, {train}, eps, mask)"}  # fmt: skip


op(f"native_batch_norm({_HEAD}Tensor? running_mean, Tensor? running_var, bool training, {_TAIL}"
   + _OUT, rule(_infer_batch_norm), _back())  # fmt: skip
op(f"_native_batch_norm_legit({_HEAD}Tensor(a!) running_mean, Tensor(b!) running_var,"
   f" bool training, {_TAIL}" + _OUT, rule(_infer_batch_norm), _back())  # fmt: skip
op(f"_native_batch_norm_legit.no_stats({_HEAD}bool training, {_TAIL}" + _OUT,
   rule(_infer_batch_norm),
   _back("None", "None"))  # fmt: skip
op(f"_native_batch_norm_legit_no_training({_HEAD}Tensor running_mean, Tensor running_var, {_TAIL}"
   + _OUT, rule(_infer_batch_norm), _back(train="False"))  # fmt: skip
op(f"_batch_norm_with_update({_HEAD}Tensor(a!) running_mean, Tensor(b!) running_var, {_TAIL}"
   " -> (Tensor, Tensor, Tensor, Tensor)", rule(_infer_batch_norm),
   _back(train="True"))  # fmt: skip
op("native_batch_norm_backward(Tensor grad_out, Tensor input, Tensor? weight,"
   " Tensor? running_mean, Tensor? running_var, Tensor? save_mean, Tensor? save_invstd,"
   " bool train, float eps, bool[3] output_mask)" + _OUT,
   gradients("input", "weight", "weight"),
   {"grad_out, input, weight": "batch_norm_double_backward(grads, given, grad_out, input, weight,"
             " running_mean, running_var, train, eps, output_mask, mask)"})  # fmt: skip
op("batch_norm_backward(Tensor grad_out, Tensor input, Tensor weight, Tensor? running_mean,"
   " Tensor? running_var, Tensor? save_mean, Tensor? save_var, bool update, float eps,"
   " bool[3] output_mask, Tensor reserve)" + _OUT,
   gradients("input", "weight", "weight"),
   {"grad_out, input, weight": "batch_norm_double_backward(grads, given, grad_out, input, weight,"
             " running_mean, running_var, update, eps, output_mask, mask)"})  # fmt: skip


@composite(f"batch_norm({_HEAD}Tensor? running_mean, Tensor? running_var, bool training,"
           " float momentum, float eps, bool cudnn_enabled) -> Tensor")  # fmt: skip
def batch_norm(
    input: Any, weight: Any, bias: Any, running_mean: Any, running_var: Any, training: bool,
    momentum: float, eps: float, cudnn_enabled: bool,
) -> Any:  # fmt: skip
    return F.native_batch_norm(
        input, weight, bias, running_mean, running_var, training, momentum, eps
    )[0]  # fmt: skip
