"""Layer, group, RMS and instance normalization, and dropout.

Gradients of the backward ops are taken through the same mathematics written in simple ops
(`normalize_gradients`).
"""

from __future__ import annotations

import math
from typing import Any

from holdfast.compute import dtype as formats
from holdfast.compute import functional as F
from holdfast.compute.ops.rules import Meta, gradients, meta_of, rule
from holdfast.compute.ops.table import Op, composite, op


def statistics_format(input: Any, *parameters: Any) -> Any:
    """The format of means and deviations: float32 where narrow numbers meet wide parameters."""
    mixed = any(p is not None and p.dtype != input.dtype for p in parameters)
    return formats.FLOAT32 if mixed and input.dtype in formats.NARROW else input.dtype


def _layer(op: Op, bound: dict[str, Any]) -> tuple[Meta, ...]:
    of, inner = bound["input"], len(bound["normalized_shape"])
    outer = (*of.shape[: len(of.shape) - inner], *(1,) * inner)
    kind = statistics_format(of, bound.get("weight"), bound.get("bias"))
    statistic = Meta(outer, kind)
    return meta_of(of), statistic, statistic


def _group(op: Op, bound: dict[str, Any]) -> tuple[Meta, ...]:
    of = bound["input"]
    kind = statistics_format(of, bound["weight"], bound["bias"])
    statistic = Meta((bound["N"], bound["group"]), kind)
    return meta_of(of), statistic, statistic


op("native_layer_norm(Tensor input, int[] normalized_shape, Tensor? weight, Tensor? bias,"
   " float eps) -> (Tensor, Tensor, Tensor)", rule(_layer),
   {"input, weight, bias": "native_layer_norm_backward(grad, input, normalized_shape, result1,"
                           " result2, weight, bias, mask)"})  # fmt: skip
op("native_layer_norm_backward(Tensor grad_out, Tensor input, int[] normalized_shape, Tensor mean,"
   " Tensor rstd, Tensor? weight, Tensor? bias, bool[3] output_mask) -> (Tensor, Tensor, Tensor)",
   gradients("input", "weight", "bias"),
   {"grad_out, input, weight": "layer_norm_twice(grads, given, grad_out, input, weight,"
             " normalized_shape, rstd, output_mask, mask)"})  # fmt: skip
op("native_group_norm(Tensor input, Tensor? weight, Tensor? bias, int N, int C, int HxW,"
   " int group, float eps) -> (Tensor, Tensor, Tensor)", rule(_group),
   {"input, weight, bias": "group_norm_gradient(grads, given, input, result1, result2, weight, N,"
                           " C, HxW, group, mask)"})  # fmt: skip
op("native_group_norm_backward(Tensor grad_out, Tensor input, Tensor mean, Tensor rstd,"
   " Tensor? weight, int N, int C, int HxW, int group, bool[3] output_mask)"
   " -> (Tensor, Tensor, Tensor)", gradients("input", "weight", "weight"),
   {"grad_out, input, weight": "group_norm_twice(grads, given, grad_out, input, weight,"
             " rstd, group, output_mask, mask)"})  # fmt: skip


def _rms(op: Op, bound: dict[str, Any]) -> tuple[Meta, ...]:
    made, statistic, _ = _layer(op, bound)
    return made, Meta(statistic.shape, formats.working(made.dtype))


op("_fused_rms_norm(Tensor input, int[] normalized_shape, Tensor? weight, float? eps)"
   " -> (Tensor, Tensor)", rule(_rms),
   {"input, weight": "_fused_rms_norm_backward(grad, input, normalized_shape, result1, weight,"
                     " mask)"})  # fmt: skip
op("_fused_rms_norm_backward(Tensor grad_out, Tensor input, int[] normalized_shape, Tensor rstd,"
   " Tensor? weight, bool[2] output_mask) -> (Tensor, Tensor)",
   gradients("input", "weight"),
   {"grad_out, input, weight": "rms_norm_twice(grads, given, grad_out, input, weight,"
             " normalized_shape, rstd, output_mask, mask)"})  # fmt: skip

# ---- what users call


@composite("layer_norm(Tensor input, int[] normalized_shape, Tensor? weight=None,"
           " Tensor? bias=None, float eps=1e-05, bool cudnn_enable=True) -> Tensor")  # fmt: skip
def layer_norm(
    input: Any, normalized_shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5,
    cudnn_enable: bool = True,
) -> Any:  # fmt: skip
    return F.native_layer_norm(input, normalized_shape, weight, bias, eps)[0]


@composite("rms_norm(Tensor input, int[] normalized_shape, Tensor? weight=None, float? eps=None)"
           " -> Tensor")  # fmt: skip
def rms_norm(input: Any, normalized_shape: Any, weight: Any = None, eps: Any = None) -> Any:
    return F._fused_rms_norm(input, normalized_shape, weight, eps)[0]


@composite("group_norm(Tensor input, int num_groups, Tensor? weight=None, Tensor? bias=None,"
           " float eps=1e-05, bool cudnn_enabled=True) -> Tensor")  # fmt: skip
def group_norm(
    input: Any, num_groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5,
    cudnn_enabled: bool = True,
) -> Any:  # fmt: skip
    if input.ndim < 2 or input.shape[1] % num_groups:
        raise ValueError(f"the channels of {list(input.shape)} do not make {num_groups} groups")
    samples, channels = input.shape[:2]
    positions = math.prod(input.shape[2:])
    return F.native_group_norm(
        input, weight, bias, samples, channels, positions, num_groups, eps
    )[0]  # fmt: skip


@composite("instance_norm(Tensor input, Tensor? weight, Tensor? bias, Tensor? running_mean,"
           " Tensor? running_var, bool use_input_stats, float momentum, float eps,"
           " bool cudnn_enabled) -> Tensor")  # fmt: skip
def instance_norm(
    input: Any, weight: Any, bias: Any, running_mean: Any, running_var: Any, use_input_stats: bool,
    momentum: float, eps: float, cudnn_enabled: bool,
) -> Any:  # fmt: skip
    samples, channels = input.shape[:2]
    flat = F.reshape(input, [1, samples * channels, *input.shape[2:]])
    each = [
        None if one is None else F.repeat(one, [samples])
        for one in (weight, bias, running_mean, running_var)
    ]
    made = F.native_batch_norm(flat, *each, use_input_stats, momentum, eps)[0]
    for running, found in zip((running_mean, running_var), each[2:], strict=True):
        if running is not None and use_input_stats:
            mean = F.mean(F.reshape(found, [samples, channels]), 0)
            running.device.engine.write(running._array, mean._array)
    return F.reshape(made, list(input.shape))


# ---- dropout


def _dropped(op: Op, bound: dict[str, Any]) -> tuple[Meta, Meta]:
    of = bound["input"]
    return meta_of(of), Meta(tuple(of.shape), formats.BOOL)


def _kept(op: Op, bound: dict[str, Any]) -> Meta:
    of = bound["grad_output"]
    return Meta(tuple(of.shape), formats.with_fractions(of.dtype))


op("native_dropout(Tensor input, float p, bool? train) -> (Tensor, Tensor)", rule(_dropped),
   {"input": "native_dropout_backward(grad, result1, dropout_scale(p, train))"},
   effect=True)  # fmt: skip
op("native_dropout_backward(Tensor grad_output, Tensor mask, float scale) -> Tensor",
   rule(_kept), {"grad_output": "native_dropout_backward(grad, mask, scale)"})  # fmt: skip


@composite("dropout(Tensor input, float p, bool train) -> Tensor")
def dropout(input: Any, p: float, train: bool) -> Any:
    return F.native_dropout(input, p, train)[0] if _dropping(input, p, train) else input


# The values that SELU settles at far below 0, which alpha dropout puts in for what it drops.
_ALPHA = 1.7580993408473766


def _noise(input: Any, p: float, per_feature: bool) -> Any:
    """1 where something is kept, else 0; for whole features where that is asked."""
    shape = list(input.shape)
    if per_feature:
        if input.ndim < 2:
            raise ValueError("dropping features takes at least 2 dimensions: samples, features")
        shape = [*shape[:2], *[1] * (input.ndim - 2)]
    return F.bernoulli(F.new_empty(input, shape), 1 - p)


def _dropping(input: Any, p: float, train: bool) -> bool:
    if not 0 <= p <= 1:
        raise ValueError(f"the probability of dropping is between 0 and 1, not {p}")
    return train and p != 0 and bool(input.numel())


@composite("feature_dropout(Tensor input, float p, bool train) -> Tensor")
def feature_dropout(input: Any, p: float, train: bool) -> Any:
    if not _dropping(input, p, train):
        return input
    if p == 1:
        return input * F.zeros_like(input)
    return input * (_noise(input, p, True) / (1 - p))


def _alpha(input: Any, p: float, train: bool, per_feature: bool) -> Any:
    if not _dropping(input, p, train):
        return input
    if p == 1:
        return input * F.zeros_like(input)
    kept = _noise(input, p, per_feature)
    scale = 1 / math.sqrt((_ALPHA**2 * p + 1) * (1 - p))
    shift = (kept - 1) * (_ALPHA * scale) + _ALPHA * scale * p
    return input * (kept * scale) + shift


@composite("alpha_dropout(Tensor input, float p, bool train) -> Tensor")
def alpha_dropout(input: Any, p: float, train: bool) -> Any:
    return _alpha(input, p, train, False)


@composite("feature_alpha_dropout(Tensor input, float p, bool train) -> Tensor")
def feature_alpha_dropout(input: Any, p: float, train: bool) -> Any:
    return _alpha(input, p, train, True)
