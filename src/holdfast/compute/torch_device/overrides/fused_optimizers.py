"""`fused=True` of SGD, Adagrad, Adam and AdamW, and gradient scaling (`torch.amp.GradScaler`)."""

from __future__ import annotations

import math
from typing import Any

import torch

from holdfast.compute.torch_device.overrides.tensor_overloads import special

Tensor = torch.Tensor
Tensors = list[Tensor]


def _overflowed(found_inf: Tensor | None) -> bool:
    return found_inf is not None and bool(found_inf)


def _unscale(grad: Tensor, grad_scale: Tensor | None, maximize: bool) -> Tensor:
    """Unscale a gradient in place, as torch does; negated to maximize."""
    if grad_scale is not None:
        grad.div_(grad_scale)
    return -grad if maximize else grad


@special("_fused_sgd_", "_fused_sgd_.tensor_lr")
def sgd(
    self: Tensors,
    grads: Tensors,
    momentum_buffer_list: Tensors,
    *,
    weight_decay: float,
    momentum: float,
    lr: float | Tensor,
    dampening: float,
    nesterov: bool,
    maximize: bool,
    is_first_step: bool,
    grad_scale: Tensor | None = None,
    found_inf: Tensor | None = None,
) -> None:
    if _overflowed(found_inf):
        return
    rate = float(lr)
    for place, (param, grad) in enumerate(zip(self, grads, strict=True)):
        step = _unscale(grad, grad_scale, maximize)
        if weight_decay:
            step = step.add(param, alpha=weight_decay)
        if momentum:
            before = momentum_buffer_list[place]
            if is_first_step:
                before.copy_(step)
            else:
                before.mul_(momentum).add_(step, alpha=1 - dampening)
            step = step.add(before, alpha=momentum) if nesterov else before
        param.add_(step, alpha=-rate)


@special("_fused_adagrad_", "_fused_adagrad_.tensor_lr")
def adagrad(
    self: Tensors,
    grads: Tensors,
    state_sums: Tensors,
    state_steps: Tensors,
    *,
    lr: float | Tensor,
    lr_decay: float,
    weight_decay: float,
    eps: float,
    maximize: bool,
    grad_scale: Tensor | None = None,
    found_inf: Tensor | None = None,
) -> None:
    if _overflowed(found_inf):
        return
    for param, grad, total, count in zip(self, grads, state_sums, state_steps, strict=True):
        step = _unscale(grad, grad_scale, maximize)
        if weight_decay:
            step = step.add(param, alpha=weight_decay)
        rate = float(lr) / (1 + (count.item() - 1) * lr_decay)
        total.addcmul_(step, step)
        param.addcdiv_(step, total.sqrt().add_(eps), value=-rate)


def _adam(
    decoupled: bool,
    self: Tensors,
    grads: Tensors,
    exp_avgs: Tensors,
    exp_avg_sqs: Tensors,
    max_exp_avg_sqs: Tensors,
    state_steps: Tensors,
    *,
    lr: float | Tensor,
    beta1: float,
    beta2: float,
    weight_decay: float,
    eps: float,
    amsgrad: bool,
    maximize: bool,
    grad_scale: Tensor | None = None,
    found_inf: Tensor | None = None,
) -> None:
    if _overflowed(found_inf):
        return
    rate = float(lr)
    for place, (param, grad) in enumerate(zip(self, grads, strict=True)):
        step = _unscale(grad, grad_scale, maximize)
        if weight_decay and decoupled:
            param.mul_(1 - rate * weight_decay)
        elif weight_decay:
            step = step.add(param, alpha=weight_decay)
        mean, spread, count = exp_avgs[place], exp_avg_sqs[place], state_steps[place].item()
        mean.lerp_(step, 1 - beta1)
        spread.mul_(beta2).addcmul_(step, step, value=1 - beta2)
        if amsgrad:
            largest = max_exp_avg_sqs[place]
            spread = largest.copy_(torch.maximum(largest, spread))
        root = spread.sqrt().div_(math.sqrt(1 - beta2**count)).add_(eps)
        param.addcdiv_(mean, root, value=-rate / (1 - beta1**count))


@special("_fused_adam_", "_fused_adam_.tensor_lr")
def adam(*args: Any, **named: Any) -> None:
    _adam(False, *args, **named)


@special("_fused_adamw_", "_fused_adamw_.tensor_lr")
def adamw(*args: Any, **named: Any) -> None:
    _adam(True, *args, **named)


# ---- scaling of gradients


@special("_amp_foreach_non_finite_check_and_unscale_")
def unscale(self: Tensors, found_inf: Tensor, inv_scale: Tensor) -> None:
    for grad in self:
        if not bool(torch.isfinite(grad).all()):
            found_inf.fill_(1)
        grad.mul_(inv_scale)


@special("_amp_update_scale_")
def update_scale(
    self: Tensor,
    growth_tracker: Tensor,
    found_inf: Tensor,
    scale_growth_factor: float,
    scale_backoff_factor: float,
    growth_interval: int,
) -> Tensor:
    if bool(found_inf):
        growth_tracker.zero_()
        return self.mul_(scale_backoff_factor)
    steps = int(growth_tracker) + 1
    if steps < growth_interval:
        growth_tracker.fill_(steps)
        return self
    growth_tracker.zero_()
    larger = self * scale_growth_factor
    return self.copy_(larger) if bool(torch.isfinite(larger)) else self
