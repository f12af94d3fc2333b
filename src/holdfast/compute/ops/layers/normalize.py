"""Layer, group, RMS, batch and instance normalization.

Training changes running statistics in place, also in `native_batch_norm`, whose signature does
not say so. Second gradients use the same formulas in simple ops (`autograd.formulas.normalize`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from holdfast.compute import dtype as dtypes
from holdfast.compute import functional as F
from holdfast.compute.ops.rules import Meta, gradients, meta_of, rule
from holdfast.compute.ops.table import Op, composite, op


def statistics_dtype(input: Any, *parameters: Any) -> Any:
    """The dtype of means and deviations: float32 for narrow inputs with wider parameters."""
    mixed = any(p is not None and p.dtype != input.dtype for p in parameters)
    return dtypes.FLOAT32 if mixed and input.dtype in dtypes.NARROW else input.dtype


def leading_dims(input: Any, normalized_shape: Any) -> int:
    """How many dimensions precede the normalized ones. Raises ValueError."""
    shape = tuple(normalized_shape)
    lead = input.ndim - len(shape)
    if lead < 0 or tuple(input.shape[lead:]) != shape or not shape:
        raise ValueError(f"the last sizes of the input are not the normalized shape {list(shape)}")
    return lead


def _check_group(
    input: Any, weight: Any, bias: Any, N: int, C: int, HxW: int, group: int, eps: float
) -> None:
    if C % group:
        raise ValueError(f"{C} channels do not make {group} equal groups")


def _infer_layer(op: Op, bound: dict[str, Any]) -> tuple[Meta, ...]:
    of, inner = bound["input"], len(bound["normalized_shape"])
    outer = (*of.shape[: len(of.shape) - inner], *(1,) * inner)
    kind = statistics_dtype(of, bound.get("weight"), bound.get("bias"))
    statistic = Meta(outer, kind)
    return meta_of(of), statistic, statistic


def _infer_group(op: Op, bound: dict[str, Any]) -> tuple[Meta, ...]:
    of = bound["input"]
    kind = statistics_dtype(of, bound["weight"], bound["bias"])
    statistic = Meta((bound["N"], bound["group"]), kind)
    return meta_of(of), statistic, statistic


op("native_layer_norm(Tensor input, int[] normalized_shape, Tensor? weight, Tensor? bias,"
   " float eps) -> (Tensor, Tensor, Tensor)", rule(_infer_layer),
   {"input, weight, bias": "native_layer_norm_backward(grad, input, normalized_shape, result1,"
                           " result2, weight, bias, mask)"})  # fmt: skip
op("native_layer_norm_backward(Tensor grad_out, Tensor input, int[] normalized_shape, Tensor mean,"
   " Tensor rstd, Tensor? weight, Tensor? bias, bool[3] output_mask) -> (Tensor, Tensor, Tensor)",
   gradients("input", "weight", "bias"),
   {"grad_out, input, weight": "layer_norm_double_backward(grads, given, grad_out, input, weight,"
             " normalized_shape, rstd, output_mask, mask)"})  # fmt: skip
op("native_group_norm(Tensor input, Tensor? weight, Tensor? bias, int N, int C, int HxW,"
   " int group, float eps) -> (Tensor, Tensor, Tensor)", rule(_infer_group, check=_check_group),
   {"input, weight, bias": "group_norm_gradient(grads, given, input, result1, result2, weight, N,"
                           " C, HxW, group, mask)"})  # fmt: skip
op("native_group_norm_backward(Tensor grad_out, Tensor input, Tensor mean, Tensor rstd,"
   " Tensor? weight, int N, int C, int HxW, int group, bool[3] output_mask)"
   " -> (Tensor, Tensor, Tensor)", gradients("input", "weight", "weight"),
   {"grad_out, input, weight": "group_norm_double_backward(grads, given, grad_out, input, weight,"
             " rstd, group, output_mask, mask)"})  # fmt: skip


def _infer_rms(op: Op, bound: dict[str, Any]) -> tuple[Meta, ...]:
    made, statistic, _ = _infer_layer(op, bound)
    return made, Meta(statistic.shape, dtypes.working(made.dtype))


op("_fused_rms_norm(Tensor input, int[] normalized_shape, Tensor? weight, float? eps)"
   " -> (Tensor, Tensor)", rule(_infer_rms),
   {"input, weight": "_fused_rms_norm_backward(grad, input, normalized_shape, result1, weight,"
                     " mask)"})  # fmt: skip
op("_fused_rms_norm_backward(Tensor grad_out, Tensor input, int[] normalized_shape, Tensor rstd,"
   " Tensor? weight, bool[2] output_mask) -> (Tensor, Tensor)",
   gradients("input", "weight"),
   {"grad_out, input, weight": "rms_norm_double_backward(grads, given, grad_out, input, weight,"
             " normalized_shape, rstd, output_mask, mask)"})  # fmt: skip

# ---- batch norm in ATen's several forms

_NAMES = ("weight", "bias", "running_mean", "running_var")


def _infer_batch_norm(op: Op, bound: dict[str, Any]) -> tuple[Meta, ...]:
    of = bound["input"]
    kind = statistics_dtype(of, *(bound.get(name) for name in _NAMES))
    training = bound.get("training", "with_update" in op.name)
    statistic = Meta((of.shape[1],) if training else (0,), kind)
    return meta_of(of), statistic, statistic


def check_batch_norm(
    input: Any, weight: Any, bias: Any, running_mean: Any, running_var: Any, training: bool,
    *_: Any,
) -> None:  # fmt: skip
    """Raise ValueError for arguments that do not fit each other."""
    if input.ndim < 2:
        raise ValueError("batch norm takes an input of at least 2 dimensions: samples, channels")
    channels = input.shape[1]
    for name, array in zip(_NAMES, (weight, bias, running_mean, running_var), strict=True):
        if array is not None and tuple(array.shape) != (channels,):
            raise ValueError(f"{name} has shape {list(array.shape)}, for {channels} channels")
    if not training and (running_mean is None or running_var is None):
        raise ValueError("outside of training, batch norm needs running_mean and running_var")
    if training and not math.prod((input.shape[0], *input.shape[2:])):
        raise ValueError("training needs at least one value of each channel")


def other_forms(
    batch_norm: Callable[..., Any], backward: Callable[..., Any], reserve: Callable[..., Any]
) -> dict[str, Callable[..., Any]]:
    """The kernels of ATen's other forms, from those of the general one and of its gradient."""
    return {
        "_native_batch_norm_legit.no_stats":
            lambda *args: batch_norm(*args[:-3], None, None, *args[-3:]),
        "_native_batch_norm_legit_no_training":
            lambda *args: batch_norm(*args[:-2], False, *args[-2:]),
        "_batch_norm_with_update":
            lambda *args: (*batch_norm(*args[:-2], True, *args[-2:]), reserve(args[0])),
        "batch_norm_backward": lambda *args: backward(*args[:-1]),
    }  # fmt: skip


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
