"""Stochastic gradient descent with momentum."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from holdfast.base.errors import BadInput
from holdfast.compute.optim import update
from holdfast.compute.optim.optimizer import Optimizer, Options, Params
from holdfast.compute.tensors.custom_tensor import CustomTensor


class SGD(Optimizer):
    """parameter -= lr * gradient, or a running sum of gradients with `momentum`."""

    _ranges = dict.fromkeys(("lr", "momentum", "weight_decay"), (0, math.inf))

    def __init__(
        self,
        params: Params,
        lr: float = 1e-3,
        momentum: float = 0,
        dampening: float = 0,
        weight_decay: float = 0,
        nesterov: bool = False,
        *,
        maximize: bool = False,
    ) -> None:
        options = {"lr": lr, "momentum": momentum, "dampening": dampening}
        options |= {"weight_decay": weight_decay, "nesterov": nesterov, "maximize": maximize}
        super().__init__(params, options)
        if nesterov and (momentum <= 0 or dampening):
            raise BadInput(
                f"SGD cannot look ahead (nesterov) with momentum={momentum} and "
                f"dampening={dampening}",
                expected="a momentum above 0, and no dampening",
            )

    def _update(self, parameter: CustomTensor, group: Options, state: Options) -> None:
        momentum, first = group["momentum"], state.get("momentum_buffer") is None
        damping = 1.0 if first else 1.0 - group["dampening"]
        states = [self._state_tensor(parameter, state, "momentum_buffer")] if momentum else []

        def change(xp: Any, p: Any, g: Any, kept: Sequence[Any], scratch: Sequence[Any]) -> None:
            spare, other = scratch
            g = update.effective_gradient(xp, p, g, spare, group["maximize"], group["weight_decay"])
            if kept:
                buffer = kept[0]
                xp.multiply(buffer, momentum, out=buffer)
                part = g if damping == 1.0 else xp.multiply(g, damping, out=other)
                xp.add(buffer, part, out=buffer)
                if group["nesterov"]:
                    xp.multiply(buffer, momentum, out=other)
                    g = xp.add(g, other, out=other)
                else:
                    g = buffer
            update.subtract_scaled(xp, p, g, group["lr"], other)

        update.run(change, parameter, states, 2)
