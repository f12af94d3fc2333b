"""Schedulers with phases, on a plateau, or in sequence."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from typing import Any

from holdfast.base.errors import BadInput, Misuse
from holdfast.compute.optim.lr_base import LRScheduler, Rates, groups_of, one_per_group
from holdfast.compute.optim.optimizer import Optimizer


class OneCycleLR(LRScheduler):
    """Up to `max_lr` and down again in `total_steps`; momentum inversely (Smith 2018)."""

    def __init__(
        self,
        optimizer: Optimizer,
        max_lr: float | list[float],
        total_steps: int | None = None,
        epochs: int | None = None,
        steps_per_epoch: int | None = None,
        pct_start: float = 0.3,
        anneal_strategy: str = "cos",
        cycle_momentum: bool = True,
        base_momentum: float = 0.85,
        max_momentum: float = 0.95,
        div_factor: float = 25.0,
        final_div_factor: float = 1e4,
        three_phase: bool = False,
        last_epoch: int = -1,
    ) -> None:
        if total_steps is None and epochs is not None and steps_per_epoch is not None:
            total_steps = epochs * steps_per_epoch
        if not total_steps or total_steps < 0 or anneal_strategy not in ("cos", "linear"):
            raise BadInput(
                f"OneCycleLR was given total_steps={total_steps}, epochs={epochs}, "
                f"steps_per_epoch={steps_per_epoch}, anneal_strategy={anneal_strategy!r}",
                expected="a number of steps, or epochs and steps for each; cos or linear",
            )
        if not 0 <= pct_start <= 1:
            raise BadInput(f"OneCycleLR cannot have pct_start={pct_start}", expected="0 to 1")
        self.total_steps, self.anneal_strategy = total_steps, anneal_strategy
        self.cycle_momentum = cycle_momentum
        highest = one_per_group("max_lr", max_lr, len(groups_of(optimizer, "OneCycleLR")))
        low, high = base_momentum, max_momentum
        self._starts = [rate / div_factor for rate in highest]
        ends = [start / final_div_factor for start in self._starts]
        first = float(pct_start * total_steps) - 1
        self._phases: list[tuple[float, Any, Any, float, float]] = [
            (first, self._starts, highest, high, low)
        ]
        if three_phase:
            second = float(2 * pct_start * total_steps) - 2
            self._phases.append((second, highest, self._starts, low, high))
            self._phases.append((total_steps - 1, self._starts, ends, high, high))
        else:
            self._phases.append((total_steps - 1, highest, ends, low, high))
        if last_epoch == -1:
            for group, start in zip(optimizer.param_groups, self._starts, strict=True):
                group["initial_lr"] = start
        super().__init__(optimizer, last_epoch)

    def _between(self, start: float, end: float, share: float) -> float:
        if self.anneal_strategy == "linear":
            return (end - start) * share + start
        return end + (start - end) / 2.0 * (math.cos(math.pi * share) + 1)

    def get_lr(self) -> list[float]:
        if self.last_epoch > self.total_steps:
            raise Misuse(
                f"OneCycleLR is at step {self.last_epoch} of {self.total_steps}",
                expected="no more steps than total_steps",
            )
        last = [end for end, *_ in self._phases[:-1]]
        place = bisect_left(last, self.last_epoch)
        end, starts, ends, before, after = self._phases[place]
        begin = last[place - 1] if place else 0.0
        # A phase of length 0 is at its end.
        share = (self.last_epoch - begin) / (end - begin) if end != begin else 1.0
        self._set_momentum(self._between(before, after, share))
        return [self._between(a, b, share) for a, b in zip(starts, ends, strict=True)]

    def _set_momentum(self, value: float) -> None:
        for group in self.optimizer.param_groups if self.cycle_momentum else ():
            if "betas" in group:
                group["betas"] = (value, *group["betas"][1:])
            elif "momentum" in group:
                group["momentum"] = value


class ReduceLROnPlateau(Rates):
    """Multiply by `factor` when a metric has not improved for `patience` epochs."""

    def __init__(
        self,
        optimizer: Optimizer,
        mode: str = "min",
        factor: float = 0.1,
        patience: int = 10,
        threshold: float = 1e-4,
        threshold_mode: str = "rel",
        cooldown: int = 0,
        min_lr: float | list[float] = 0,
        eps: float = 1e-8,
    ) -> None:
        if factor >= 1 or mode not in ("min", "max") or threshold_mode not in ("rel", "abs"):
            raise BadInput(
                f"ReduceLROnPlateau was given factor={factor}, mode={mode!r}, "
                f"threshold_mode={threshold_mode!r}",
                expected="a factor below 1, mode min or max, threshold_mode rel or abs",
            )
        count = len(groups_of(optimizer, "ReduceLROnPlateau"))
        self.optimizer = optimizer
        self.mode, self.factor, self.patience = mode, factor, patience
        self.threshold, self.threshold_mode = threshold, threshold_mode
        self.cooldown, self.eps = cooldown, eps
        self.min_lrs = one_per_group("min_lr", min_lr, count)
        self.best = math.inf if mode == "min" else -math.inf
        self.num_bad_epochs = self.cooldown_counter = self.last_epoch = 0
        self._last = self._rates

    def step(self, metrics: Any, epoch: int | None = None) -> None:
        """Report the metric of an epoch."""
        now = metrics.item() if hasattr(metrics, "item") else metrics
        if not isinstance(now, int | float):
            raise BadInput(
                f"ReduceLROnPlateau cannot look at a {type(metrics).__name__}",
                expected="a number, such as the loss of an epoch",
                hint="scheduler.step(loss)",
            )
        self.last_epoch = self.last_epoch + 1 if epoch is None else epoch
        if self._better(now):
            self.best, self.num_bad_epochs = now, 0
        else:
            self.num_bad_epochs += 1
        if self.cooldown_counter > 0:
            self.cooldown_counter -= 1
            self.num_bad_epochs = 0
        if self.num_bad_epochs > self.patience:
            for group, least in zip(self.optimizer.param_groups, self.min_lrs, strict=True):
                reduced = max(group["lr"] * self.factor, least)
                if group["lr"] - reduced > self.eps:
                    group["lr"] = reduced
            self.cooldown_counter, self.num_bad_epochs = self.cooldown, 0
        self._last = self._rates

    def _better(self, now: float) -> bool:
        sign = 1 if self.mode == "min" else -1
        if self.threshold_mode == "rel":
            return sign * now < sign * self.best * (1 - sign * self.threshold)
        return sign * now < sign * self.best - self.threshold


class SequentialLR(LRScheduler):
    """Schedulers in sequence; each starts at its milestone."""

    def __init__(
        self,
        optimizer: Optimizer,
        schedulers: list[LRScheduler],
        milestones: list[int],
        last_epoch: int = -1,
    ) -> None:
        if not schedulers or len(milestones) != len(schedulers) - 1:
            raise BadInput(
                f"SequentialLR was given {len(schedulers)} schedulers and {len(milestones)} "
                "milestones",
                expected="one milestone between each two schedulers",
            )
        if any(s.optimizer is not optimizer for s in schedulers):
            raise BadInput(
                "SequentialLR was given a scheduler of another optimizer",
                expected="schedulers of the optimizer it is given",
            )
        self.optimizer, self._schedulers, self._milestones = optimizer, schedulers, milestones
        self.last_epoch = last_epoch + 1
        # Each scheduler has set the rate when it was made; only the first may.
        for group in optimizer.param_groups:
            group["lr"] = group["initial_lr"]
        for scheduler in schedulers:
            scheduler.last_epoch -= 1
        schedulers[0].step()
        self._last = schedulers[0].get_last_lr()

    def step(self, epoch: int | None = None) -> None:
        """Advance by one epoch."""
        self.last_epoch += 1
        place = bisect_right(self._milestones, self.last_epoch)
        scheduler = self._schedulers[place]
        begins = place > 0 and self._milestones[place - 1] == self.last_epoch
        scheduler.step(0 if begins else None)
        self._last = scheduler.get_last_lr()

    def state_dict(self) -> dict[str, Any]:
        """The state of every scheduler."""
        kept = {k: v for k, v in vars(self).items() if k not in ("optimizer", "_schedulers")}
        return {**kept, "_schedulers": [s.state_dict() for s in self._schedulers]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from a state."""
        rest = dict(state_dict)
        for scheduler, state in zip(self._schedulers, rest.pop("_schedulers"), strict=True):
            scheduler.load_state_dict(state)
        vars(self).update(rest)
