"""`fused=True` of SGD, Adagrad, Adam and AdamW, and gradient scaling (`torch.amp.GradScaler`)."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import torch

from holdfast.compute.torch_device.overrides.tensor_overloads import special

Tensor = torch.Tensor
Tensors = list[Tensor]


def _register_fused(*names: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """A decorator: register the step of one parameter for all parameters of an optimizer.

    The step is called with the parameter, its gradient and its states (None where their list is
    empty), the rate, and the other options by name.
    """

    def decorate(step: Callable[..., None]) -> Callable[..., None]:
        @special(*(f"{name}{ending}" for name in names for ending in ("", ".tensor_lr")))
        def every(
            self: Tensors,
            grads: Tensors,
            *states: Tensors,
            lr: float | Tensor,
            maximize: bool,
            grad_scale: Tensor | None = None,
            found_inf: Tensor | None = None,
            **options: Any,
        ) -> None:
            if found_inf is not None and bool(found_inf):
                return
            kept = (one or [None] * len(self) for one in states)
            for param, grad, *state in zip(self, grads, *kept, strict=True):
                if grad_scale is not None:
                    grad.div_(grad_scale)  # in place, as torch does
                step(param, -grad if maximize else grad, *state, rate=float(lr), **options)

        return every

    return decorate


@_register_fused("_fused_sgd_")
def sgd(
    param: Tensor, step: Tensor, before: Any, *, rate: float, weight_decay: float,
    momentum: float, dampening: float, nesterov: bool, is_first_step: bool,
) -> None:  # fmt: skip
    if weight_decay:
        step = step.add(param, alpha=weight_decay)
    if momentum:
        if is_first_step:
            before.copy_(step)
        else:
            before.mul_(momentum).add_(step, alpha=1 - dampening)
        step = step.add(before, alpha=momentum) if nesterov else before
    param.add_(step, alpha=-rate)


@_register_fused("_fused_adagrad_")
def adagrad(
    param: Tensor, step: Tensor, total: Tensor, count: Tensor, *, rate: float, lr_decay: float,
    weight_decay: float, eps: float,
) -> None:  # fmt: skip
    if weight_decay:
        step = step.add(param, alpha=weight_decay)
    total.addcmul_(step, step)
    rate = rate / (1 + (count.item() - 1) * lr_decay)
    param.addcdiv_(step, total.sqrt().add_(eps), value=-rate)


def _adam(
    decoupled: bool, param: Tensor, step: Tensor, mean: Tensor, spread: Tensor, largest: Any,
    steps: Tensor, *, rate: float, beta1: float, beta2: float, weight_decay: float, eps: float,
    amsgrad: bool,
) -> None:  # fmt: skip
    if weight_decay and decoupled:
        param.mul_(1 - rate * weight_decay)
    elif weight_decay:
        step = step.add(param, alpha=weight_decay)
    count = steps.item()
    mean.lerp_(step, 1 - beta1)
    spread.mul_(beta2).addcmul_(step, step, value=1 - beta2)
    if amsgrad:
        spread = largest.copy_(torch.maximum(largest, spread))
    root = spread.sqrt().div_(math.sqrt(1 - beta2**count)).add_(eps)
    param.addcdiv_(mean, root, value=-rate / (1 - beta1**count))


_register_fused("_fused_adam_")(functools.partial(_adam, False))
_register_fused("_fused_adamw_")(functools.partial(_adam, True))


# ---- scaling of gradients


@special("_amp_foreach_non_finite_check_and_unscale_")
def unscale(self: Tensors, found_inf: Tensor, inv_scale: Tensor) -> None:
    for grad in self:
        if not bool(torch.isfinite(grad).all()):
            found_inf.fill_(1)
        grad.mul_(inv_scale)


@special("_amp_update_scale_")
def update_scale(
    self: Tensor, growth_tracker: Tensor, found_inf: Tensor, scale_growth_factor: float,
    scale_backoff_factor: float, growth_interval: int,
) -> Tensor:  # fmt: skip
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
