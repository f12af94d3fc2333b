"""The models that this process has loaded, whoever keeps them.

Covers: modules under a budget, models of the manager, networks of pipelines, those of the XLA nodes
and of ComfyUI; their names in requests.
Leaves to others: what a plan needs at least (least), changing budgets (acting).
Promise: only looks, and only at what is in this process already: nothing is imported, nothing is
kept alive, no device is asked. A keeper that fails in the middle of a change is left out once.
"""

from __future__ import annotations

import itertools
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from holdfast.dashboard.snapshot import Keeper, LinkUse, ModelUse
from holdfast.dashboard.sources import asked, of

_numbers = itertools.count(1)
_names: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
_known: weakref.WeakKeyDictionary[Any, _Known] = weakref.WeakKeyDictionary()


@dataclass(frozen=True, slots=True)
class _Known:
    """What stays the same while a plan is at work."""

    plan: Any
    weight_bytes: int
    streamed_bytes: int


def models() -> tuple[ModelUse, ...]:
    """Everything that is loaded, the largest first."""
    found: list[ModelUse] = []
    keepers: tuple[Callable[[], Iterable[ModelUse]], ...]
    keepers = (_managed, _manager, _networks, _xla, _comfyui)
    for keeper in keepers:
        found += asked(lambda keeper=keeper: list(keeper()), [])
    return tuple(sorted(found, key=lambda one: (-one.weight_bytes, one.id)))


def name_in_requests(thing: Any, kind: str) -> str:
    """A name for an object that stays the same for as long as it lives."""
    name = _names.get(thing)
    if name is None:  # several may look at once: the first to name it does so for all
        name = _names.setdefault(thing, f"{kind}-{next(_numbers)}")
    return name


# ---- modules under a budget


def everyone() -> list[Any]:
    """The modules under a budget."""
    ask = of("holdfast.residency.managing", "everyone")
    return [] if ask is None else ask()


def find(model_id: str) -> Any:
    """The module under a budget that has this name in requests; None where there is none."""
    return next((one for one in everyone() if _names.get(one) == model_id), None)


def _managed() -> Iterable[ModelUse]:
    owners = owners_of_managed()
    for one in everyone():
        yield managed_use(one, owners.get(one))


def managed_use(managed: Any, owner: tuple[str, str] | None = None) -> ModelUse:
    """A module under a budget; `owner` is its pipeline's model, and what it is there."""
    known = _unchanging(managed)
    group, plan = managed.group, known.plan
    keeper: Keeper = "residency" if owner is None else "pipeline"
    return ModelUse(
        id=name_in_requests(managed, "managed"),
        name=managed.name if owner is None else f"{owner[0]} {owner[1]}",
        device=group.carrier.name,
        keeper=keeper,
        weight_bytes=known.weight_bytes,
        resident_bytes=managed.held_bytes,
        streamed_bytes=known.streamed_bytes,
        link_bytes=0 if plan is None else plan.streamed_bytes,
        budget_bytes=group.budget_bytes,
        smallest_bytes=asked(lambda: _smallest(group), None),
        adjustable=True,
        group=name_in_requests(group, "group"),
        passes=managed.passes,
        running=managed.running,
        predicted_ms=None if plan is None else managed.predicted_ms(),
    )


def _unchanging(managed: Any) -> _Known:
    plan, known = managed.plan, _known.get(managed)
    if known is None or plan is None or known.plan is not plan:
        streamed = 0 if plan is None else sum(_streamed(plan))
        known = _known[managed] = _Known(plan, managed.weight_bytes, streamed)
    return known


def _streamed(plan: Any) -> Iterator[int]:
    """Bytes of weights that cross the link in one pass, as they are used."""
    return (plan.chunks[v.chunk].raw_bytes for v in plan.visits if v.slot is not None)


def _smallest(group: Any) -> int | None:
    from holdfast.dashboard.least import known_budget_bytes

    return known_budget_bytes(group)


def owners_of_managed() -> dict[Any, tuple[str, str]]:
    """Where a module under a budget belongs to a pipeline: the model, and what it is there."""
    ask = of("holdfast.pipeline.runs", "networks")
    return {one.managed: (one.model, one.name) for one in ask() if one.managed} if ask else {}


# ---- the others


def _simple(
    thing: Any, name: str, device: str, keeper: Keeper, weights: int, resident: int, streamed: int
) -> ModelUse:
    """A model without a budget of its own."""
    return ModelUse(
        id=thing if isinstance(thing, str) else name_in_requests(thing, keeper),
        name=name,
        device=device,
        keeper=keeper,
        weight_bytes=weights,
        resident_bytes=resident,
        streamed_bytes=streamed,
        link_bytes=streamed,
        budget_bytes=None,
        smallest_bytes=None,
        adjustable=False,
        group=None,
        passes=0,
        running=False,
        predicted_ms=None,
    )


def _manager() -> Iterable[ModelUse]:
    """What `load_models_gpu` has loaded."""
    listed = of("holdfast.residency.models.loaded", "current_loaded_models")
    for entry in list(listed or ()):
        patcher = entry.model
        if patcher is not None:
            total, here = patcher.model_size(), patcher.loaded_size()
            name, device = type(patcher.model).__name__, str(entry.device)
            yield _simple(patcher, name, device, "manager", total, here, total - here)


def _networks() -> Iterable[ModelUse]:
    """Networks of pipelines that are on their device as a whole."""
    ask = of("holdfast.pipeline.runs", "networks")
    for one in ask() if ask is not None else ():
        if one.managed is None:
            nbytes, name = one.nbytes, f"{one.model} {one.name}"
            yield _simple(one, name, one.device, "pipeline", nbytes, nbytes, 0)


def _xla() -> Iterable[ModelUse]:
    """Those that the TPU nodes keep."""
    ask = of("holdfast.nodes.xla", "loaded")
    for name, nbytes in ask() if ask is not None else ():
        yield _simple(f"xla-{name}", name, "xla", "xla", nbytes or 0, nbytes or 0, 0)


def _comfyui() -> Iterable[ModelUse]:
    """Those that ComfyUI has loaded."""
    if "comfy.model_management" not in sys.modules:
        return
    ask = of("holdfast.nodes.host.models", "patchers")
    for one in ask() if ask is not None else ():
        total = int(one.model_size())
        here = min(int(one.loaded_size()), total)
        name, device = type(one.model).__name__, str(one.load_device)
        yield _simple(one, name, device, "comfyui", total, here, total - here)


# ---- the ways to their devices


def links() -> tuple[LinkUse, ...]:
    """Ways that weights went so far."""
    ask = of("holdfast.residency.carriers.traffic", "traffic")
    return tuple(
        LinkUse(one.device, one.copied_bytes, one.link_gb_s)
        for one in (ask() if ask is not None else ())
    )
