"""RMSprop and Adagrad."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from holdfast.compute.nn.init import constant_
from holdfast.compute.optim import update
from holdfast.compute.optim.optimizer import Optimizer, Options, Params, count_step
from holdfast.compute.tensors.custom_tensor import CustomTensor


class RMSprop(Optimizer):
    """Divide by the root of a running mean of squares (Hinton's lecture); `centered`: by the
    running standard deviation (Graves 2013).
    """

    _ranges = dict.fromkeys(("lr", "alpha", "eps", "momentum", "weight_decay"), (0, math.inf))

    def __init__(
        self,
        params: Params,
        lr: float = 1e-2,
        alpha: float = 0.99,
        eps: float = 1e-8,
        weight_decay: float = 0,
        momentum: float = 0,
        centered: bool = False,
        *,
        maximize: bool = False,
    ) -> None:
        options = {"lr": lr, "momentum": momentum, "alpha": alpha, "eps": eps}
        options |= {"centered": centered, "weight_decay": weight_decay, "maximize": maximize}
        super().__init__(params, options)

    def _update(self, parameter: CustomTensor, group: Options, state: Options) -> None:
        names = ["square_avg"]
        names += ["momentum_buffer"] if group["momentum"] > 0 else []
        names += ["grad_avg"] if group["centered"] else []
        count_step(state)
        states = [self._state_tensor(parameter, state, name) for name in names]
        alpha, momentum = group["alpha"], group["momentum"]

        def change(xp: Any, p: Any, g: Any, kept: Sequence[Any], scratch: Sequence[Any]) -> None:
            by = dict(zip(names, kept, strict=True))
            spare, other, last = scratch
            square = by["square_avg"]
            g = update.effective_gradient(xp, p, g, spare, group["maximize"], group["weight_decay"])
            xp.multiply(square, alpha, out=square)
            xp.multiply(g, g, out=other)
            xp.multiply(other, 1 - alpha, out=other)
            xp.add(square, other, out=square)
            if "grad_avg" in by:
                mean = by["grad_avg"]
                xp.subtract(g, mean, out=other)
                xp.multiply(other, 1 - alpha, out=other)
                xp.add(mean, other, out=mean)
                xp.multiply(mean, mean, out=last)
                square = xp.subtract(square, last, out=last)
            xp.sqrt(square, out=other)
            xp.add(other, group["eps"], out=other)
            ahead = xp.divide(g, other, out=other)
            if "momentum_buffer" in by:
                buffer = by["momentum_buffer"]
                xp.multiply(buffer, momentum, out=buffer)
                ahead = xp.add(buffer, other, out=buffer)
            update.subtract_scaled(xp, p, ahead, group["lr"], other)

        update.run(change, parameter, states, 3)


class Adagrad(Optimizer):
    """Divide by the root of the sum of all squares so far: Duchi et al. (2011)."""

    _ranges = dict.fromkeys(
        ("lr", "lr_decay", "eps", "weight_decay", "initial_accumulator_value"), (0, math.inf)
    )

    def __init__(
        self,
        params: Params,
        lr: float = 1e-2,
        lr_decay: float = 0,
        weight_decay: float = 0,
        initial_accumulator_value: float = 0,
        eps: float = 1e-10,
        *,
        maximize: bool = False,
    ) -> None:
        options = {"lr": lr, "lr_decay": lr_decay, "eps": eps, "weight_decay": weight_decay}
        options |= {"initial_accumulator_value": initial_accumulator_value, "maximize": maximize}
        super().__init__(params, options)

    def _update(self, parameter: CustomTensor, group: Options, state: Options) -> None:
        if "sum" not in state:
            sums = self._state_tensor(parameter, state, "sum")
            constant_(sums, group["initial_accumulator_value"])
        rate = group["lr"] / (1 + (count_step(state) - 1) * group["lr_decay"])

        def change(xp: Any, p: Any, g: Any, kept: Sequence[Any], scratch: Sequence[Any]) -> None:
            total = kept[0]
            spare, other = scratch
            g = update.effective_gradient(xp, p, g, spare, group["maximize"], group["weight_decay"])
            xp.multiply(g, g, out=other)
            xp.add(total, other, out=total)
            xp.sqrt(total, out=other)
            xp.add(other, group["eps"], out=other)
            xp.divide(g, other, out=other)
            update.subtract_scaled(xp, p, other, rate, other)

        update.run(change, parameter, [state["sum"]], 2)
