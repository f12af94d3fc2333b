"""How fast a device takes bytes: a few copies and decodes, timed by its own marks."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from holdfast.residency.packing.pack import pack
from holdfast.residency.plan import Rates
from holdfast.residency.slabs import slab

if TYPE_CHECKING:
    from holdfast.residency.carriers.carrier import Carrier

_SAMPLE_BYTES = 64 << 20
_REPEATS = 3
_AT_ONCE = 4


def measured_rates(carrier: Carrier) -> Rates:
    """Link and decoder, from samples of 64 MB."""
    host = slab(_SAMPLE_BYTES, pinned=carrier.pinned)
    target = carrier.empty(_SAMPLE_BYTES)
    copies = [(target, host)] * _AT_ONCE
    link = _gb_s(carrier, copies, lambda after: carrier.copy(copies, after), _SAMPLE_BYTES)
    return Rates(link_gb_s=link, decode_gb_s=_decode_gb_s(carrier, copies) or link * 4)


def _decode_gb_s(carrier: Carrier, copies: list[tuple[torch.Tensor, torch.Tensor]]) -> float | None:
    scratch = copies[0][0]
    numbers = torch.randn(scratch.numel() // 2, device=carrier.device) * 0.02
    packed = pack(numbers.to(torch.bfloat16).view(torch.uint8), "bf16")
    if packed is None:
        return None
    layout, payload = packed
    decode = carrier.decoding([(payload, layout, scratch[: layout.raw_bytes])] * _AT_ONCE)
    return _gb_s(carrier, copies, lambda _: decode(), layout.raw_bytes)


def _gb_s(
    carrier: Carrier,
    before: list[tuple[torch.Tensor, torch.Tensor]],
    work: Callable[[list[Any]], Any],
    nbytes: int,
) -> float:
    """The best of some repeats.

    The work is queued behind some copies, so that the device has all of it when it begins: a host
    can be slower than a device.
    """
    times: list[float] = []
    for _ in range(_REPEATS + 1):
        carrier.wait(carrier.copy(before, [carrier.mark()]))
        start = carrier.mark(timed=True)
        carrier.wait(work([start]))
        end = carrier.mark(timed=True)
        carrier.settle(end)
        times.append(carrier.between_ms(start, end))
    return nbytes * _AT_ONCE / max(min(times), 1e-6) / 1e6
