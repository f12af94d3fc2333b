"""How fast a device takes bytes: a few copies and decodes, timed by its own marks."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from holdfast.residency.pack import pack
from holdfast.residency.plan import Rates
from holdfast.residency.slabs import slab

if TYPE_CHECKING:
    from holdfast.residency.carriers.carrier import Carrier

_SAMPLE_BYTES = 64 << 20
_REPEATS = 5


def measured_rates(carrier: Carrier) -> Rates:
    """Link and decoder, from samples of 64 MB (less where there is less room)."""
    host = slab(_SAMPLE_BYTES, pinned=carrier.pinned)
    target = carrier.empty(_SAMPLE_BYTES)
    link = _gb_s(carrier, lambda after: carrier.copy([(target, host)], after), _SAMPLE_BYTES)
    return Rates(link_gb_s=link, decode_gb_s=_decode_gb_s(carrier, target) or link * 4)


def _decode_gb_s(carrier: Carrier, scratch: torch.Tensor) -> float | None:
    numbers = torch.randn(scratch.numel() // 4, device=carrier.device) * 0.02
    packed = pack(numbers.to(torch.bfloat16).view(torch.uint8), "bf16")
    if packed is None:
        return None
    layout, payload = packed
    target = scratch[: layout.raw_bytes]
    return _gb_s(
        carrier, lambda after: carrier.decode([(payload, layout, target)], after), layout.raw_bytes
    )


def _gb_s(carrier: Carrier, work: Callable[[list[Any]], Any], nbytes: int) -> float:
    """Of the middle one of some repeats; the first, which builds things, does not count."""
    times: list[float] = []
    for _ in range(_REPEATS + 1):
        start = carrier.mark(timed=True)
        carrier.wait(work([start]))
        end = carrier.mark(timed=True)
        carrier.settle(end)
        times.append(carrier.between_ms(start, end))
    return nbytes / max(statistics.median(times[1:]), 1e-6) / 1e6
