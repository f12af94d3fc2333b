"""Decide, before anything is loaded, where each stage runs, in which dtype and under what budget.

A budget that cannot be kept raises an error; it is never ignored.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from holdfast.base.config import Config
from holdfast.base.errors import BadInput, Unsupported
from holdfast.base.units import format_bytes, parse_bytes
from holdfast.pipeline.devices.device import (
    DeviceBudget,
    choose,
    decide_budget,
    open_device,
    parse,
)
from holdfast.pipeline.model.sources import Source
from holdfast.pipeline.run.progress import STAGES
from holdfast.topology import Topology, discover

if TYPE_CHECKING:
    import torch

    from holdfast.pipeline.devices.torch_devices import Device
    from holdfast.pipeline.run.stages import Family

PRECISIONS = ("auto", "fp32", "bf16", "fp16")

# Probes that find GPUs without importing torch.
_PROBES = ("linux", "pci", "kfd", "nvml", "psutil")


@dataclass(frozen=True, slots=True)
class PlacementRequest:
    """What the user asked for: device, budget and precision."""

    device: str | Mapping[str, str] = "auto"
    budget: str | int | None = None
    precision: str = "auto"
    topology: Topology | None = None

    def check(self) -> PlacementRequest:
        """Return self; raises BadInput for what is wrong whatever the model and machine."""
        if self.precision not in PRECISIONS:
            raise BadInput(
                f"unknown precision {self.precision!r}",
                expected=f"one of {', '.join(PRECISIONS)}",
            )
        strange = sorted(set(self.by_stage()) - set(STAGES))
        if strange:
            raise BadInput(f"unknown stage {strange[0]!r}", expected=f"one of {', '.join(STAGES)}")
        for name in self.by_stage().values():
            if name != "auto":
                parse(name)
        if self.budget is not None:
            parse_bytes(self.budget)
        return self

    def by_stage(self) -> Mapping[str, str]:
        """The device name for each named stage; raises BadInput for text that cannot be parsed."""
        if isinstance(self.device, Mapping):
            return self.device
        if "=" not in self.device:
            return dict.fromkeys(STAGES, self.device)
        pairs = [part.partition("=") for part in self.device.split(",")]
        once = len({stage.strip() for stage, _, _ in pairs}) == len(pairs)
        if not once or not all(stage.strip() and name.strip() for stage, _, name in pairs):
            raise BadInput(
                f"cannot read device {self.device!r}",
                expected='such as "cuda" or "text=cpu,denoise=cuda"',
            )
        return {stage.strip(): name.strip() for stage, _, name in pairs}


@dataclass(frozen=True, slots=True)
class Placement:
    """A device for each stage, a dtype for each component, and the reason in one line.

    `shares` maps device names to budgets. Networks of such a device share the budget and are
    streamed where they do not fit.
    """

    devices: dict[str, Device]
    dtypes: dict[str, torch.dtype]
    why: str
    shares: dict[str, DeviceBudget] = field(default_factory=dict)


def place(source: Source, family: Family, request: PlacementRequest) -> Placement:
    """Decide. Raises NotFound, BadInput, Unsupported or OutOfMemory; loads nothing.

    Sets the memory limit of the devices to the budget; without a budget, removes an earlier limit.
    """
    parts = {
        stage: [name for name in family.stages[stage] if name in source.components]
        for stage in STAGES
    }
    budget = None if request.budget is None else parse_bytes(request.budget)
    devices, why = _devices(source, request, parts, budget)
    dtypes = {
        name: devices[stage].precision(
            "fp32" if name in family.full_precision else request.precision
        )
        for stage, names in parts.items()
        for name in names
    }
    elements = source.elements()
    needs: Counter[str] = Counter()
    for stage, device in devices.items():
        needs[device.name] += sum(elements.get(n, 0) * dtypes[n].itemsize for n in parts[stage])
    places = {device.name: device for device in devices.values()}
    found = {name: decide_budget(device, needs[name], budget) for name, device in places.items()}
    shares = {name: one for name, one in found.items() if one is not None}
    _apply_budget(budget, source, places, needs, shares)
    lines = [one.why for one in shares.values() if one.why is not None]
    if lines:  # with a single device, the budget alone explains it
        why = lines[0] if len(places) == 1 else "; ".join([why, *lines])
    return Placement(devices, dtypes, why, shares)


def _devices(
    source: Source, request: PlacementRequest, parts: Mapping[str, list[str]], budget: int | None
) -> tuple[dict[str, Device], str]:
    wanted = request.by_stage()
    names = {stage: wanted.get(stage, "auto") for stage in STAGES}
    opened: dict[str, Device] = {}
    why = ""
    for name in dict.fromkeys(names.values()):
        if name == "auto":
            free = [part for stage in STAGES if names[stage] == "auto" for part in parts[stage]]
            machine = request.topology or discover(config=Config.load(probes=_PROBES))
            elements = source.elements()
            count = sum(elements.get(part, 0) for part in free)
            choice = choose(count, request.precision, machine, budget)
            opened[name], why = choice.device, choice.why
        else:
            opened[name] = open_device(name)
    chosen = {stage: opened[name] for stage, name in names.items()}
    if set(names.values()) == {"auto"}:
        return chosen, why
    if len(opened) == 1:
        return chosen, f"{chosen['text'].name}: asked for"
    asked = ", ".join(f"{stage} on {device.name}" for stage, device in chosen.items())
    return chosen, asked + (f" (auto is {why})" if why else "")


def _apply_budget(
    budget_bytes: int | None,
    source: Source,
    places: Mapping[str, Device],
    needs: Mapping[str, int],
    shares: Mapping[str, DeviceBudget],
) -> None:
    """Limit each device. Raises Unsupported where a device cannot be limited, or where weights
    that cannot be streamed do not fit. All limits are removed then.
    """
    done: list[Device] = []
    try:
        for name, device in places.items():
            device.limit(shares[name].budget_bytes if name in shares else budget_bytes)
            done.append(device)
        for name, need in needs.items():
            if budget_bytes is not None and name not in shares and need > budget_bytes:
                raise Unsupported(
                    f"cannot run {source.model!r} under a budget of {format_bytes(budget_bytes)}: "
                    f"{format_bytes(need)} of weights have to stay on {name}",
                    expected=f"a budget of at least {format_bytes(need)}",
                    hint="a larger budget, or half precision if it is full now",
                )
    except Unsupported:
        for device in done:
            device.limit(None)
        raise
