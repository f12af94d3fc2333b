"""Models loaded in this process: managed modules, the model manager, pipelines, XLA nodes, ComfyUI.

Only reads modules that are already imported; keeps nothing alive and queries no device. A source
that fails in the middle of a change is skipped once.
"""

from __future__ import annotations

import itertools
import sys
import weakref
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from holdfast.dashboard.snapshot.min_budget import known_budget_bytes
from holdfast.dashboard.snapshot.snapshot import Keeper, LinkUse, ModelUse
from holdfast.dashboard.snapshot.sources import call, get, try_call

_numbers = itertools.count(1)
_names: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
_known: weakref.WeakKeyDictionary[Any, _Known] = weakref.WeakKeyDictionary()


@dataclass(frozen=True, slots=True)
class _Known:
    """Values that stay the same while a plan is used."""

    plan: Any
    weight_bytes: int
    streamed_bytes: int


def models() -> tuple[ModelUse, ...]:
    """All loaded models, the largest first."""
    found: list[ModelUse] = []
    for keeper in (_list_managed, _manager, _networks, _xla, _comfyui):
        found += try_call(lambda keeper=keeper: list(keeper()), [])
    return tuple(sorted(found, key=lambda one: (-one.weight_bytes, one.id)))


def request_id(thing: Any, kind: str) -> str:
    """An id for an object, stable while it lives."""
    name = _names.get(thing)
    if name is None:  # setdefault: several threads may look at once
        name = _names.setdefault(thing, f"{kind}-{next(_numbers)}")
    return name


# ---- modules under a budget


def everyone() -> list[Any]:
    """The modules under a budget."""
    return call("holdfast.residency.managed.manage", "everyone", [])


def find(model_id: str) -> Any:
    """The module under a budget with this request id, or None."""
    return next((one for one in everyone() if _names.get(one) == model_id), None)


def _list_managed() -> Iterable[ModelUse]:
    owners = owners_of_managed()
    return (managed_use(one, owners.get(one)) for one in everyone())


def managed_use(managed: Any, owner: tuple[str, str] | None = None) -> ModelUse:
    """A module under a budget; `owner` is (model, component) of its pipeline."""
    known = _plan_constants(managed)
    group, plan = managed.group, known.plan
    keeper: Keeper = "residency" if owner is None else "pipeline"
    return ModelUse(
        id=request_id(managed, "managed"),
        name=managed.name if owner is None else f"{owner[0]} {owner[1]}",
        device=group.carrier.name,
        keeper=keeper,
        weight_bytes=known.weight_bytes,
        resident_bytes=managed.held_bytes,
        streamed_bytes=known.streamed_bytes,
        link_bytes=0 if plan is None else plan.streamed_bytes,
        budget_bytes=group.budget_bytes,
        smallest_bytes=try_call(lambda: known_budget_bytes(group), None),
        adjustable=True,
        group=request_id(group, "group"),
        passes=managed.passes,
        running=managed.running,
        predicted_ms=None if plan is None else managed.predicted_ms(),
    )


def _plan_constants(managed: Any) -> _Known:
    plan, known = managed.plan, _known.get(managed)
    if known is None or plan is None or known.plan is not plan:
        streamed = 0
        if plan is not None:
            visits = (v for v in plan.visits if v.slot is not None)
            streamed = sum(plan.chunks[v.chunk].raw_bytes for v in visits)
        known = _known[managed] = _Known(plan, managed.weight_bytes, streamed)
    return known


def owners_of_managed() -> dict[Any, tuple[str, str]]:
    """(model, component) of managed modules that belong to pipelines."""
    networks = call("holdfast.pipeline.run.live_runs", "networks")
    return {one.managed: (one.model, one.name) for one in networks if one.managed}


# ---- the others


def _simple(
    thing: Any, name: str, device: str, keeper: Keeper, weights: int, resident: int, streamed: int
) -> ModelUse:
    """A model without a budget of its own."""
    return ModelUse(
        id=thing if isinstance(thing, str) else request_id(thing, keeper),
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
    """Models loaded by `load_models_gpu`."""
    listed = get("holdfast.residency.model_management.models.loaded", "current_loaded_models")
    for entry in list(listed or ()):
        patcher = entry.model
        if patcher is not None:
            total, here = patcher.model_size(), patcher.loaded_size()
            name, device = type(patcher.model).__name__, str(entry.device)
            yield _simple(patcher, name, device, "manager", total, here, total - here)


def _networks() -> Iterable[ModelUse]:
    """Networks of pipelines without a budget."""
    for one in call("holdfast.pipeline.run.live_runs", "networks"):
        if one.managed is None:
            nbytes, name = one.nbytes, f"{one.model} {one.name}"
            yield _simple(one, name, one.device, "pipeline", nbytes, nbytes, 0)


def _xla() -> Iterable[ModelUse]:
    """Models kept by the TPU nodes."""
    for name, nbytes in call("holdfast.nodes.xla", "list_loaded"):
        yield _simple(f"xla-{name}", name, "xla", "xla", nbytes or 0, nbytes or 0, 0)


def _comfyui() -> Iterable[ModelUse]:
    """Models loaded by ComfyUI."""
    if "comfy.model_management" not in sys.modules:
        return
    for one in call("holdfast.nodes.host.models", "patchers"):
        total = int(one.model_size())
        here = min(int(one.loaded_size()), total)
        name, device = type(one.model).__name__, str(one.load_device)
        yield _simple(one, name, device, "comfyui", total, here, total - here)


# ---- links


def links() -> tuple[LinkUse, ...]:
    """Links to devices, with the bytes of weights sent so far."""
    found = call("holdfast.residency.carriers.carrier", "traffic")
    return tuple(LinkUse(one.device, one.copied_bytes, one.link_gb_s) for one in found)
