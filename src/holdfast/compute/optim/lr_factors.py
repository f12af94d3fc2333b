"""Schedulers whose rate is the first rate times a factor of the epoch."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable

from holdfast.base.errors import BadInput
from holdfast.compute.optim.lr_base import LRScheduler, check_count, check_factor, groups_of
from holdfast.compute.optim.optimizer import Optimizer


class _Factor(LRScheduler):
    """The first rate times a factor of the epoch, computed from the rate before."""

    def _factor(self, epoch: int) -> float:
        raise NotImplementedError

    def get_lr(self) -> list[float]:
        now = self._factor(self.last_epoch)
        before = self._factor(self.last_epoch - 1) if self.last_epoch > 0 else 1.0
        # Compared first, because both may be 0.
        return self._rates if now == before else [rate * (now / before) for rate in self._rates]

    def _closed_form(self) -> list[float]:
        return [base * self._factor(self.last_epoch) for base in self.base_lrs]


class StepLR(_Factor):
    """Times `gamma` every `step_size` epochs."""

    def __init__(
        self, optimizer: Optimizer, step_size: int, gamma: float = 0.1, last_epoch: int = -1
    ) -> None:
        self.step_size = check_count("StepLR", "step_size", step_size)
        self.gamma = check_factor("StepLR", "gamma", gamma)
        super().__init__(optimizer, last_epoch)

    def _factor(self, epoch: int) -> float:
        return self.gamma ** (epoch // self.step_size)


class MultiStepLR(_Factor):
    """Times `gamma` at each of the `milestones`."""

    def __init__(
        self,
        optimizer: Optimizer,
        milestones: Iterable[int],
        gamma: float = 0.1,
        last_epoch: int = -1,
    ) -> None:
        if not isinstance(milestones, Iterable):
            raise BadInput(
                f"MultiStepLR cannot have milestones={milestones!r}", expected="a list of epochs"
            )
        self.milestones = Counter(milestones)
        self.gamma = check_factor("MultiStepLR", "gamma", gamma)
        super().__init__(optimizer, last_epoch)

    def _factor(self, epoch: int) -> float:
        return self.gamma ** bisect_right(sorted(self.milestones.elements()), epoch)


class ExponentialLR(_Factor):
    """Times `gamma` every epoch."""

    def __init__(self, optimizer: Optimizer, gamma: float, last_epoch: int = -1) -> None:
        self.gamma = check_factor("ExponentialLR", "gamma", gamma)
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        return [r * self.gamma for r in self._rates] if self.last_epoch > 0 else self._rates

    def _factor(self, epoch: int) -> float:
        return self.gamma**epoch


class LinearLR(_Factor):
    """The factor goes from `start_factor` to `end_factor` in `total_iters` epochs."""

    def __init__(
        self,
        optimizer: Optimizer,
        start_factor: float = 1.0 / 3,
        end_factor: float = 1.0,
        total_iters: int = 5,
        last_epoch: int = -1,
    ) -> None:
        if not 0 < start_factor <= 1 or not 0 <= end_factor <= 1:
            raise BadInput(
                f"LinearLR cannot go from {start_factor} to {end_factor}",
                expected="a start above 0 and up to 1, an end from 0 to 1",
            )
        self.start_factor, self.end_factor = start_factor, end_factor
        self.total_iters = check_count("LinearLR", "total_iters", total_iters)
        super().__init__(optimizer, last_epoch)

    def _factor(self, epoch: int) -> float:
        done = min(epoch, self.total_iters) / self.total_iters
        return self.start_factor + (self.end_factor - self.start_factor) * done


class ConstantLR(_Factor):
    """Times `factor` until epoch `total_iters`."""

    def __init__(
        self,
        optimizer: Optimizer,
        factor: float = 1.0 / 3,
        total_iters: int = 5,
        last_epoch: int = -1,
    ) -> None:
        if not 0 < factor <= 1:
            raise BadInput(f"ConstantLR cannot have factor={factor}", expected="0 < factor <= 1")
        self.factor, self.total_iters = factor, total_iters
        super().__init__(optimizer, last_epoch)

    def _factor(self, epoch: int) -> float:
        return self.factor if epoch < self.total_iters else 1.0


class LambdaLR(LRScheduler):
    """The first rate times a function of the epoch; one for all groups, or one for each."""

    def __init__(
        self,
        optimizer: Optimizer,
        lr_lambda: Callable[[int], float] | list[Callable[[int], float]],
        last_epoch: int = -1,
    ) -> None:
        count = len(groups_of(optimizer, "LambdaLR"))
        listed = list(lr_lambda) if isinstance(lr_lambda, list | tuple) else [lr_lambda] * count
        if len(listed) != count or not all(callable(one) for one in listed):
            raise BadInput(
                f"LambdaLR was given {len(listed)} functions for {count} groups",
                expected="one, or one for each group",
            )
        self.lr_lambdas = listed
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        pairs = zip(self.base_lrs, self.lr_lambdas, strict=True)
        return [
            base * check_factor("LambdaLR", "factor", function(self.last_epoch))
            for base, function in pairs
        ]


class CosineAnnealingLR(LRScheduler):
    """Half a cosine from the first rate to `eta_min` in `T_max` epochs, and back."""

    def __init__(
        self, optimizer: Optimizer, T_max: int, eta_min: float = 0.0, last_epoch: int = -1
    ) -> None:
        self.T_max = check_count("CosineAnnealingLR", "T_max", T_max)
        self.eta_min = check_factor("CosineAnnealingLR", "eta_min", eta_min)
        super().__init__(optimizer, last_epoch)

    def _height(self, epoch: int) -> float:
        return (1 + math.cos(math.pi * epoch / self.T_max)) / 2

    def get_lr(self) -> list[float]:
        if self.last_epoch == 0:
            return self._rates
        now, before = self._height(self.last_epoch), self._height(self.last_epoch - 1)
        if (self.last_epoch - 1 - self.T_max) % (2 * self.T_max) == 0:
            # At the minimum the rate cannot be multiplied: restart from the first rate.
            pairs = zip(self._rates, self.base_lrs, strict=True)
            return [rate + (base - self.eta_min) * now for rate, base in pairs]
        return [(rate - self.eta_min) * (now / before) + self.eta_min for rate in self._rates]

    def _closed_form(self) -> list[float]:
        height = self._height(self.last_epoch)
        return [self.eta_min + (base - self.eta_min) * height for base in self.base_lrs]
