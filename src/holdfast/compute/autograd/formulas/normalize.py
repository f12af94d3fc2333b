"""Gradients of `native_*_norm_backward`. Their results cannot be differentiated again."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from holdfast.compute import functional as F
from holdfast.compute.autograd import tape


def dropout_scale(p: float, train: Any) -> float:
    """The factor that dropout applies to the elements it keeps."""
    if train is False:
        return 1.0
    return 0.0 if p == 1 else 1 / (1 - p)


def _through(
    function: Callable[..., Any], tensors: Any, grads: Any, given: Any, asked: Any, mask: Any
) -> tuple[Any, ...]:
    """Gradients of `function(*tensors)`, which consists of simple ops.

    `asked` tells which of its results were computed.
    """
    leaves = [None if t is None else t.detach() for t in tensors]
    wanted = [leaf for leaf, want in zip(leaves, mask, strict=True) if want and leaf is not None]
    for leaf in wanted:
        leaf.requires_grad_()
    with tape.enable_grad():
        outs = function(*leaves)
    pairs = [
        (out, grad)
        for out, grad, there, wanted_out in zip(outs, grads, given, asked, strict=False)
        if there and wanted_out and out.requires_grad
    ]
    if not pairs:
        return (None,) * len(leaves)
    ends, seeds = zip(*pairs, strict=True)
    found = tape.grad(ends, wanted, seeds, allow_unused=True)
    by_leaf = {id(leaf): grad for leaf, grad in zip(wanted, found, strict=True)}
    return tuple(by_leaf.get(id(leaf)) for leaf in leaves)


def _normal(input: Any, dims: list[int], rstd: Any, centered: bool = True) -> tuple[Any, Any]:
    """`input` normalized over `dims`, and the scale; eps is derived from `rstd`."""
    middle = F.mean(input, dims, True) if centered else 0
    apart = input - middle
    variance = F.mean(apart * apart, dims, True)
    eps = F.pow(F.reshape(rstd, list(variance.shape)), -2).detach() - variance.detach()
    scale = F.rsqrt(variance + eps)
    return apart * scale, scale


def _to_input(scaled: Any, normal: Any, scale: Any, dims: list[int], centered: bool = True) -> Any:
    found = scaled - normal * F.mean(scaled * normal, dims, True)
    return (found - F.mean(scaled, dims, True) if centered else found) * scale


def layer_norm_double_backward(
    grads: Any, given: Any, grad_out: Any, input: Any, weight: Any, shape: Any, rstd: Any,
    output_mask: Any, mask: Any, centered: bool = True,
) -> tuple[Any, ...]:  # fmt: skip
    """Of `native_layer_norm_backward`."""
    lead = input.ndim - len(shape)
    inner, outer = list(range(lead, input.ndim)), list(range(lead))

    def over_rows(value: Any) -> Any:
        return F.sum(value, outer) if outer else value

    def backward(grad: Any, values: Any, factor: Any) -> tuple[Any, ...]:
        normal, scale = _normal(values, inner, rstd, centered)
        scaled = grad if factor is None else grad * factor
        to_input = _to_input(scaled, normal, scale, inner, centered)
        return to_input, over_rows(grad * normal), over_rows(grad)

    return _through(backward, (grad_out, input, weight), grads, given, output_mask, mask)


def rms_norm_double_backward(*args: Any) -> tuple[Any, ...]:
    """Of `_fused_rms_norm_backward`."""
    return layer_norm_double_backward(*args, centered=False)


def group_norm_gradient(
    grads: Any, given: Any, input: Any, mean: Any, rstd: Any, weight: Any, N: int, C: int,
    HxW: int, group: int, mask: Any,
) -> tuple[Any, ...]:  # fmt: skip
    """Of group norm; as in torch, its mean and deviation have gradients too."""
    found = F.native_group_norm_backward(
        grads[0], input, mean, rstd, weight, N, C, HxW, group, mask
    )
    if not (mask[0] and (given[1] or given[2])):
        return found
    count = C // group * HxW
    rows, column = F.reshape(input, [N, group, count]), [N, group, 1]
    apart = rows - F.reshape(mean, column)
    cubed = F.reshape(rstd * rstd * rstd * grads[2], column)
    extra = F.reshape(grads[1], column) / max(count, 1) - apart * cubed / max(count, 1)
    return found[0] + F.reshape(extra, list(input.shape)), *found[1:]


def group_norm_double_backward(
    grads: Any, given: Any, grad_out: Any, input: Any, weight: Any, rstd: Any, group: int,
    output_mask: Any, mask: Any,
) -> tuple[Any, ...]:  # fmt: skip
    """Of `native_group_norm_backward`."""
    samples, channels = input.shape[:2]
    split = [samples, group, channels // group, math.prod(input.shape[2:])]

    def backward(grad: Any, values: Any, factor: Any) -> tuple[Any, ...]:
        normal, scale = _normal(F.reshape(values, split), [2, 3], rstd)
        grad = F.reshape(grad, split)
        scaled = grad if factor is None else grad * F.reshape(factor, [1, *split[1:3], 1])
        to_input = F.reshape(_to_input(scaled, normal, scale, [2, 3]), list(input.shape))
        sums = (F.reshape(F.sum(g, [0, 3]), [channels]) for g in (grad * normal, grad))
        return to_input, *sums

    return _through(backward, (grad_out, input, weight), grads, given, output_mask, mask)


def batch_norm_double_backward(
    grads: Any, given: Any, grad_out: Any, input: Any, weight: Any, mean: Any, var: Any,
    train: bool, eps: float, output_mask: Any, mask: Any,
) -> tuple[Any, ...]:  # fmt: skip
    """Of `native_batch_norm_backward`."""
    channel = [1, -1] + [1] * (input.ndim - 2)
    dims = [d for d in range(input.ndim) if d != 1]

    def backward(grad: Any, values: Any, factor: Any) -> tuple[Any, ...]:
        scaled = grad if factor is None else grad * F.reshape(factor, channel)
        if train:
            middle = F.mean(values, dims, True)
            scale = F.rsqrt(F.mean((values - middle) * (values - middle), dims, True) + eps)
            normal = (values - middle) * scale
            found = _to_input(scaled, normal, scale, dims)
        else:
            scale = F.rsqrt(F.reshape(var, channel) + eps)
            normal = (values - F.reshape(mean, channel)) * scale
            found = scaled * scale
        return found, F.sum(grad * normal, dims), F.sum(grad, dims)

    return _through(backward, (grad_out, input, weight), grads, given, output_mask, mask)
