"""Which number format is best for a network on a device: what cannot be seen first, then speed.

Covers: what a device computes with, about how long a step takes in each format, the reason in one
line.
Promise: only reads its arguments, but for one short measurement of each format that is kept.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from holdfast.residency.carriers.carrier import Carrier
from holdfast.residency.carriers.simulated import Simulated
from holdfast.residency.prediction.fitted import Choice, Fit, seconds
from holdfast.residency.prediction.profile import Profile
from holdfast.residency.prediction.rates import Facts, facts_of, price, simulated_price, total_ms
from holdfast.residency.prediction.tape import Op

FORMATS = {
    "fp32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "fp8": torch.float8_e4m3fn,
}


def word(dtype: torch.dtype) -> str:
    """A format as people write it."""
    if dtype.itemsize == 1:
        return "fp8"
    return next(
        (name for name, d in FORMATS.items() if d == dtype), str(dtype).removeprefix("torch.")
    )


@dataclass(frozen=True, slots=True)
class Formats:
    """What a device computes with. `half` is the half precision it likes best, None if none."""

    half: torch.dtype | None
    names: tuple[str, ...]

    @classmethod
    def of(cls, carrier: Carrier) -> Formats:
        """The formats of a device, by the rules of specification 002 for real ones."""
        if isinstance(carrier, Simulated):
            return cls(None, ("fp32", "bf16", "fp16"))  # as fast in all of them
        if carrier.device.type == "cpu":
            return cls(None, ("fp32",))
        from holdfast.residency.rules import current

        names = ["fp32"]
        bf16 = current.should_use_bf16(carrier.device)
        fp16 = current.should_use_fp16(carrier.device)
        names += ["bf16"] if bf16 else []
        names += ["fp16"] if fp16 else []
        names += ["fp8"] if current.supports_fp8_compute(carrier.device) else []
        half = torch.bfloat16 if bf16 else torch.float16 if fp16 else None
        return cls(half, tuple(names))


def choose(
    answer: Fit,
    profile: Profile,
    facts: Facts,
    carrier: Carrier,
    stored: torch.dtype | None,
) -> dict[str, Any]:
    """The fields of a Fit about formats: all that could be used, the best and why."""
    present = answer.precision or "fp32"
    names = list(dict.fromkeys([present, *Formats.of(carrier).names]))
    choices = tuple(
        _choice(answer, profile, carrier, name, stored)
        if name != present
        else Choice(name, answer.fits, answer.step_ms, _loses(name, stored))
        for name in names
    )
    best = _best(choices, present, stored)
    return {
        "choices": choices,
        "best_precision": best.precision,
        "why": _why(best, choices, stored),
    }


def _loses(name: str, stored: torch.dtype | None) -> bool:
    """Whether a format can be seen in pictures: one byte does, unless the weights had no more."""
    return name == "fp8" and (stored is None or stored.itemsize > 1)


def _risky(name: str, stored: torch.dtype | None) -> bool:
    """fp16 cannot hold all that bf16 and fp32 weights are used to."""
    return name == "fp16" and stored != torch.float16


def _sound(name: str, stored: torch.dtype | None) -> bool:
    """Whether a format holds the weights as they are, or as well as anyone can see."""
    full = stored is None or stored == torch.float32
    return name == "fp32" or FORMATS[name] == stored or (name == "bf16" and full)


def _best(choices: tuple[Choice, ...], present: str, stored: torch.dtype | None) -> Choice:
    """The fastest of the best kind that fits."""
    fitting = [choice for choice in choices if choice.fits and choice.step_ms is not None]
    if not fitting:
        return next(choice for choice in choices if choice.precision == present)
    sound = [choice for choice in fitting if _sound(choice.precision, stored)]
    plain = [choice for choice in fitting if not choice.loses_quality]
    kind = sound or plain or fitting
    # Two hundredths are no reason to change what the weights are.
    fastest = min(choice.step_ms or 0.0 for choice in kind)
    near = [choice for choice in kind if (choice.step_ms or 0.0) <= fastest * 1.02]
    return next((choice for choice in near if choice.precision == present), near[0])


def _why(best: Choice, choices: tuple[Choice, ...], stored: torch.dtype | None) -> str:
    others = []
    for choice in choices:
        if choice.precision == best.precision:
            continue
        if not choice.fits or choice.step_ms is None:
            others.append(f"{choice.precision} does not fit")
            continue
        text = f"{choice.precision} would take about {seconds(choice.step_ms)}"
        if choice.loses_quality:
            text += " and lose quality"
        elif _risky(choice.precision, stored):
            text += " and may overflow"
        others.append(text)
    return best.precision + (f" ({', '.join(others)})" if others else "")


def _choice(
    answer: Fit, profile: Profile, carrier: Carrier, name: str, stored: torch.dtype | None
) -> Choice:
    """An estimate: the time of computing and of the link, as far above them as the plan is."""
    old, new = FORMATS[answer.precision or "fp32"], FORMATS[name]
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
    facts = facts_of(carrier)
    link_ms = streamed / facts.rates.link_gb_s / 1e6
    slower = (answer.step_ms or 1.0) / (answer.floor_ms or 1.0) if answer.step_ms else 1.0
    least = (answer.smallest_bytes or 0) - answer.reserve_bytes - (answer.activation_bytes or 0)
    fits = max(0, least) * scale <= room
    return Choice(
        name, fits, max(compute_ms, link_ms) * slower if fits else None, _loses(name, stored)
    )


def _compute_ms(answer: Fit, profile: Profile, carrier: Carrier, new: torch.dtype) -> float:
    """The time of computing in another format, by the prices of operations in both."""
    old = FORMATS[answer.precision or "fp32"]
    old = torch.bfloat16 if old.itemsize == 1 else old
    if isinstance(carrier, Simulated):
        prices: Callable[[Op], float] = simulated_price(carrier)
    else:
        prices = price(facts_of(carrier, (old, new)))
    before = total_ms(profile, prices)
    after = total_ms(profile, lambda op: prices(_in(op, old, new)))
    return (answer.resident_ms or 0.0) * (after / before if before else 1.0)


def _in(op: Op, old: torch.dtype, new: torch.dtype) -> Op:
    """The same operation in another format."""
    inputs = tuple((shape, new if dtype == old else dtype) for shape, dtype in op.inputs)
    outputs = tuple((shape, new if dtype == old else dtype) for shape, dtype in op.outputs)
    return Op(op.name, inputs, outputs, op.fresh)
