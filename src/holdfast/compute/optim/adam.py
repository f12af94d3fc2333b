"""Adam and AdamW."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.base.errors import BadInput
from holdfast.compute.optim import update
from holdfast.compute.optim.optimizer import Optimizer, Options, Params, count_step
from holdfast.compute.tensors.custom_tensor import CustomTensor


class Adam(Optimizer):
    """Kingma and Ba (2015); with `amsgrad`, Reddi et al. (2018)."""

    _decoupled = False
    _ranges = dict.fromkeys(("lr", "eps", "weight_decay"), (0, math.inf)) | {"betas": (0, 1)}

    def __init__(
        self,
        params: Params,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0,
        amsgrad: bool = False,
        *,
        maximize: bool = False,
        decoupled_weight_decay: bool = False,
    ) -> None:
        pair = tuple(betas) if isinstance(betas, list) else betas
        options = {"lr": lr, "betas": pair, "eps": eps, "weight_decay": weight_decay}
        options |= {"amsgrad": amsgrad, "maximize": maximize}
        options |= {"decoupled_weight_decay": decoupled_weight_decay or self._decoupled}
        super().__init__(params, options)

    def add_param_group(self, param_group: Mapping[str, Any]) -> None:
        super().add_param_group(param_group)
        betas = self.param_groups[-1]["betas"]
        if not isinstance(betas, tuple | list) or len(betas) != 2:
            self.param_groups.pop()
            raise BadInput(
                f"{type(self).__name__} cannot have betas={betas!r}", expected="two numbers"
            )

    def _update(self, parameter: CustomTensor, group: Options, state: Options) -> None:
        names = ["exp_avg", "exp_avg_sq", *(["max_exp_avg_sq"] if group["amsgrad"] else [])]
        step = count_step(state)
        states = [self._state_tensor(parameter, state, name) for name in names]
        (first, second), lr = group["betas"], group["lr"]
        size = lr / (1 - first**step)
        root = math.sqrt(1 - second**step)
        apart = group.get("decoupled_weight_decay", self._decoupled)
        decay = 0 if apart else group["weight_decay"]
        shrink = 1 - lr * group["weight_decay"] if apart else 1.0

        def change(xp: Any, p: Any, g: Any, kept: Sequence[Any], scratch: Sequence[Any]) -> None:
            mean, square = kept[:2]
            spare, other = scratch
            if shrink != 1.0:
                xp.multiply(p, shrink, out=p)
            g = update.effective_gradient(xp, p, g, spare, group["maximize"], decay)
            xp.subtract(g, mean, out=other)
            xp.multiply(other, 1 - first, out=other)
            xp.add(mean, other, out=mean)
            xp.multiply(g, g, out=other)
            xp.multiply(other, 1 - second, out=other)
            xp.multiply(square, second, out=square)
            xp.add(square, other, out=square)
            if len(kept) == 3:
                square = xp.maximum(kept[2], square, out=kept[2])
            xp.sqrt(square, out=other)
            xp.divide(other, root, out=other)
            xp.add(other, group["eps"], out=other)
            xp.divide(mean, other, out=other)
            update.subtract_scaled(xp, p, other, size, other)

        update.run(change, parameter, states, 2)


class AdamW(Adam):
    """Adam with decoupled weight decay: Loshchilov and Hutter (2019)."""

    _decoupled = True

    def __init__(
        self,
        params: Params,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        amsgrad: bool = False,
        *,
        maximize: bool = False,
    ) -> None:
        super().__init__(params, lr, betas, eps, weight_decay, amsgrad, maximize=maximize)


class CustomAdam(Adam):
    """Adam with the names of specification 003: `parameters`, `lr`, `m` and `v`."""

    def __init__(self, parameters: Params, lr: float = 0.001, **options: Any) -> None:
        super().__init__(parameters, lr, **options)
        self.parameters = [p for group in self.param_groups for p in group["params"]]

    @property
    def lr(self) -> float:
        """The learning rate of the first group."""
        return self.param_groups[0]["lr"]

    @lr.setter
    def lr(self, value: float) -> None:
        for group in self.param_groups:
            group["lr"] = value

    @property
    def m(self) -> dict[int, CustomTensor]:
        """The first moment of each updated parameter, by its index."""
        return self._moments("exp_avg")

    @property
    def v(self) -> dict[int, CustomTensor]:
        """The second moment of each updated parameter, by its index."""
        return self._moments("exp_avg_sq")

    def _moments(self, name: str) -> dict[int, CustomTensor]:
        return {
            place: self.state[parameter][name]
            for place, parameter in enumerate(self.parameters)
            if parameter in self.state
        }
