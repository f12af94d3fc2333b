"""Chooses the precision of a network on a device: first no visible loss, then speed.

Measures the speed of each dtype once per device; the result is cached on disk.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from holdfast.residency.carriers.carrier import Carrier
from holdfast.residency.carriers.simulated import Simulated
from holdfast.residency.predict.answer import Fit, PrecisionChoice, format_duration
from holdfast.residency.predict.dry_run import Spec, TracedOp
from holdfast.residency.predict.profile import Profile
from holdfast.residency.predict.rates import (
    get_facts,
    price_by_rates,
    price_by_simulation,
    total_ms,
)

PRECISIONS = {
    "fp32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "fp8": torch.float8_e4m3fn,
}


def format_precision(dtype: torch.dtype) -> str:
    """The short name of a dtype: "bf16"."""
    if dtype.itemsize == 1:
        return "fp8"
    return next(
        (name for name, d in PRECISIONS.items() if d == dtype), str(dtype).removeprefix("torch.")
    )


@dataclass(frozen=True, slots=True)
class DeviceDtypes:
    """The precisions a device computes in. `half` is its preferred half precision, or None."""

    half: torch.dtype | None
    names: tuple[str, ...]

    @classmethod
    def of(cls, carrier: Carrier) -> DeviceDtypes:
        """The precisions of a device; for real devices by the rules of specification 002."""
        if isinstance(carrier, Simulated):
            return cls(None, ("fp32", "bf16", "fp16"))  # equally fast in all of them
        if carrier.device.type == "cpu":
            return cls(None, ("fp32",))
        from holdfast.residency.model_management.rules import current

        rules = {
            "bf16": current.should_use_bf16,
            "fp16": current.should_use_fp16,
            "fp8": current.supports_fp8_compute,
        }
        names = ["fp32", *(name for name, rule in rules.items() if rule(carrier.device))]
        half = next((PRECISIONS[name] for name in ("bf16", "fp16") if name in names), None)
        return cls(half, tuple(names))


def choose(
    answer: Fit, profile: Profile, carrier: Carrier, stored: torch.dtype | None
) -> dict[str, Any]:
    """The fields of a Fit about precisions: the choices, the best, and why."""
    present = answer.precision or "fp32"
    names = list(dict.fromkeys([present, *DeviceDtypes.of(carrier).names]))
    choices = tuple(
        _choice(answer, profile, carrier, name, stored)
        if name != present
        else PrecisionChoice(name, answer.fits, answer.step_ms, _loses_quality(name, stored))
        for name in names
    )
    best = _best(choices, present, stored)
    why = _why(best, choices, stored)
    return {"choices": choices, "best_precision": best.precision, "why": why}


def _loses_quality(name: str, stored: torch.dtype | None) -> bool:
    """Whether a precision changes images visibly: fp8 does, unless the weights are stored so."""
    return name == "fp8" and (stored is None or stored.itemsize > 1)


def _keeps_weights(name: str, stored: torch.dtype | None) -> bool:
    """Whether a precision holds the weights exactly, or without visible loss."""
    full = stored is None or stored == torch.float32
    return name == "fp32" or PRECISIONS[name] == stored or (name == "bf16" and full)


def _best(
    choices: tuple[PrecisionChoice, ...], present: str, stored: torch.dtype | None
) -> PrecisionChoice:
    """The fastest that fits, of those with the least loss."""
    fitting = [choice for choice in choices if choice.fits and choice.step_ms is not None]
    if not fitting:
        return next(choice for choice in choices if choice.precision == present)
    sound = [choice for choice in fitting if _keeps_weights(choice.precision, stored)]
    plain = [choice for choice in fitting if not choice.loses_quality]
    kind = sound or plain or fitting
    # A gain of 2 % is no reason to convert the weights.
    fastest = min(choice.step_ms or 0.0 for choice in kind)
    near = [choice for choice in kind if (choice.step_ms or 0.0) <= fastest * 1.02]
    return next((choice for choice in near if choice.precision == present), near[0])


def _why(
    best: PrecisionChoice, choices: tuple[PrecisionChoice, ...], stored: torch.dtype | None
) -> str:
    others = []
    for choice in choices:
        if choice.precision == best.precision:
            continue
        if not choice.fits or choice.step_ms is None:
            others.append(f"{choice.precision} does not fit")
            continue
        text = f"{choice.precision} would take about {format_duration(choice.step_ms)}"
        if choice.loses_quality:
            text += " and lose quality"
        elif choice.precision == "fp16" and stored != torch.float16:  # its range is smaller
            text += " and may overflow"
        others.append(text)
    return best.precision + (f" ({', '.join(others)})" if others else "")


def _choice(
    answer: Fit, profile: Profile, carrier: Carrier, name: str, stored: torch.dtype | None
) -> PrecisionChoice:
    """Estimate a precision: compute or link time, scaled by how far the plan is above its floor."""
    old, new = PRECISIONS[answer.precision or "fp32"], PRECISIONS[name]
    scale = new.itemsize / old.itemsize
    computing = torch.bfloat16 if new.itemsize == 1 else new
    compute_ms = _compute_ms(answer, profile, carrier, computing)
    beside = (answer.activation_bytes or 0) * computing.itemsize / max(2, old.itemsize)
    weights = answer.weight_bytes * scale
    rings = (answer.ring_bytes or 0) * scale
    room = answer.budget_bytes - answer.reserve_bytes - beside
    streamed = 0.0 if weights <= room else weights - max(0.0, room - rings)
    if new.itemsize == 2 and answer.packed and answer.link_bytes and answer.streamed_bytes:
        streamed *= answer.link_bytes / answer.streamed_bytes
    facts = get_facts(carrier)
    link_ms = streamed / facts.rates.link_gb_s / 1e6
    slower = (answer.step_ms or 1.0) / (answer.floor_ms or 1.0) if answer.step_ms else 1.0
    least = (answer.smallest_bytes or 0) - answer.reserve_bytes - (answer.activation_bytes or 0)
    fits = max(0, least) * scale <= room
    return PrecisionChoice(
        name,
        fits,
        max(compute_ms, link_ms) * slower if fits else None,
        _loses_quality(name, stored),
    )


def _compute_ms(answer: Fit, profile: Profile, carrier: Carrier, new: torch.dtype) -> float:
    """The compute time in another dtype, by the estimated times of the operations in both."""
    old = PRECISIONS[answer.precision or "fp32"]
    old = torch.bfloat16 if old.itemsize == 1 else old
    if isinstance(carrier, Simulated):
        prices: Callable[[TracedOp], float] = price_by_simulation(carrier)
    else:
        prices = price_by_rates(get_facts(carrier, (old, new)))
    before = total_ms(profile, prices)

    def cast(specs: Sequence[Spec]) -> tuple[Spec, ...]:
        return tuple((shape, new if dtype == old else dtype) for shape, dtype in specs)

    def price(op: TracedOp) -> float:
        return prices(TracedOp(op.name, cast(op.inputs), cast(op.outputs), op.fresh))

    after = total_ms(profile, price)
    return (answer.resident_ms or 0.0) * (after / before if before else 1.0)
