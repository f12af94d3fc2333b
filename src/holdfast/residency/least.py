"""The smallest budget for a call that did not fit, found without running it.

Covers: following the call on the meta device, what it computes and the least its weights need.
Leaves to others: following (profile), the least for weights (plan).
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from torch import nn

from holdfast.base.errors import HoldfastError
from holdfast.residency import plan
from holdfast.residency.prediction.profile import Profile, profile
from holdfast.residency.prediction.shapes import Call
from holdfast.residency.trace import Order

if TYPE_CHECKING:
    from holdfast.residency.passes import Passes


def least_budget_bytes(
    managed: Passes, entry: str, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> int | None:
    """A budget under which the call runs; None where it cannot be followed without weights."""
    found = _followed(managed, entry, args, kwargs)
    if found is None:
        return None
    uses = tuple(plan.Use(layer.weights, 1.0) for layer in found.layers)
    order = Order(tuple(layer.path for layer in found.layers), uses, found.staying)
    weights = plan.smallest_bytes(managed.problem(order), managed.keep_bytes)
    group = managed.group
    budget = managed.carrier.total_bytes() if group.budget_bytes is None else group.budget_bytes
    beside = found.activation_bytes + found.input_bytes
    return weights + beside + budget - group.room_bytes


def _followed(
    managed: Passes, entry: str, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Profile | None:
    module = managed.module
    with _as_it_was(module, managed.entries):
        try:
            inputs = _named(getattr(module, entry), args, kwargs)
        except TypeError:
            return None
        # Libraries look into masks, which have no values here; what is computed is the same.
        bare = {name: value for name, value in inputs.items() if "mask" not in name}
        for some in (inputs, bare):
            with suppress(HoldfastError):
                return profile(module, Call(entry, some))
    return None


@contextmanager
def _as_it_was(module: nn.Module, entries: Sequence[str]) -> Iterator[None]:
    """The module with its own methods: a double would have those that manage the original."""
    hidden = {name: module.__dict__.pop(name) for name in entries if name in module.__dict__}
    try:
        yield
    finally:
        module.__dict__.update(hidden)


def _named(call: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """All arguments by name. Raises TypeError where some have none."""
    if not args:
        return dict(kwargs)
    bound = inspect.signature(call).bind_partial(*args)
    for parameter in bound.signature.parameters.values():
        if parameter.kind is inspect.Parameter.VAR_POSITIONAL and parameter.name in bound.arguments:
            raise TypeError(parameter.name)
    return bound.arguments | dict(kwargs)
