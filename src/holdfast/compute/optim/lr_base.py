"""What learning-rate schedulers share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.base.errors import BadInput, Misuse
from holdfast.compute.optim.optimizer import Optimizer


class Rates:
    """The optimizer whose rates a scheduler sets, and the scheduler's state."""

    optimizer: Optimizer
    _last: list[float]

    @property
    def _rates(self) -> list[float]:
        return [group["lr"] for group in self.optimizer.param_groups]

    def get_last_lr(self) -> list[float]:
        """The rates that were set last."""
        return self._last

    def state_dict(self) -> dict[str, Any]:
        """Everything but the optimizer and functions."""
        return {
            key: value
            for key, value in vars(self).items()
            if key != "optimizer"
            and not any(map(callable, value if isinstance(value, list) else [value]))
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from a state. Raises BadInput if it is none."""
        if not isinstance(state_dict, Mapping):
            raise BadInput(
                f"a {type(state_dict).__name__} is no state of {type(self).__name__}",
                expected="what state_dict() gives",
            )
        vars(self).update(state_dict)


def groups_of(optimizer: Any, scheduler: str) -> list[dict[str, Any]]:
    """The parameter groups of an optimizer. Raises BadInput."""
    if not isinstance(optimizer, Optimizer):
        raise BadInput(
            f"{scheduler} was given a {type(optimizer).__name__}", expected="an optimizer"
        )
    return optimizer.param_groups


def one_per_group(name: str, value: Any, count: int) -> list[Any]:
    """One value for each group, from a list or a single one. Raises BadInput."""
    listed = list(value) if isinstance(value, list | tuple) else [value] * count
    if len(listed) != count:
        raise BadInput(
            f"{name} has {len(listed)} values for {count} groups",
            expected="one, or one for each group",
        )
    return listed


def check_count(scheduler: str, name: str, value: Any) -> Any:
    """Return a number of epochs. Raises BadInput if it is below 1."""
    if not isinstance(value, int | float) or not value >= 1:
        raise BadInput(f"{scheduler} cannot have {name}={value!r}", expected="at least 1")
    return value


def check_factor(scheduler: str, name: str, value: Any) -> Any:
    """Return a factor. Raises BadInput if it is not a number."""
    value = value.item() if hasattr(value, "item") else value
    if not isinstance(value, int | float):
        raise BadInput(f"{scheduler} cannot have {name}={value!r}", expected="a number")
    return value


class LRScheduler(Rates):
    """Sets the `lr` of every group; subclasses define `get_lr`."""

    def __init__(self, optimizer: Optimizer, last_epoch: int = -1) -> None:
        self.optimizer = optimizer
        for group in groups_of(optimizer, type(self).__name__):
            if last_epoch == -1:
                group.setdefault("initial_lr", group["lr"])
            elif "initial_lr" not in group:
                raise Misuse(
                    f"{type(self).__name__} cannot go on from epoch {last_epoch}: the optimizer "
                    "does not know its first rate",
                    expected="an optimizer whose state was loaded before",
                )
        self.base_lrs = [group["initial_lr"] for group in optimizer.param_groups]
        self.last_epoch = last_epoch
        self.step()

    def get_lr(self) -> list[float]:
        """The rate of each group for `last_epoch`, from the current rates."""
        raise NotImplementedError

    def _closed_form(self) -> list[float]:
        """The rate of each group for `last_epoch`, independent of the current rates."""
        return self.get_lr()

    def step(self, epoch: int | None = None) -> None:
        """Advance by one epoch, or to `epoch`."""
        self.last_epoch = self.last_epoch + 1 if epoch is None else epoch
        self._last = list(self.get_lr() if epoch is None else self._closed_form())
        for group, rate in zip(self.optimizer.param_groups, self._last, strict=True):
            group["lr"] = rate
