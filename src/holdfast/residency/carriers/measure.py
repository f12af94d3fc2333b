"""Measures the link and decoder rates of a device with a few copies and decodes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from holdfast.base.errors import OutOfMemory
from holdfast.base.units import format_bytes
from holdfast.residency.packing.pack import pack
from holdfast.residency.plan import Rates
from holdfast.residency.stream.slabs import slab

if TYPE_CHECKING:
    from holdfast.residency.carriers.carrier import Carrier

_SAMPLES_BYTES = (64 << 20, 16 << 20, 4 << 20)  # the largest that fits is used
_REPEATS = 3
_AT_ONCE = 4


def measure_rates(carrier: Carrier, packed: bool = True) -> Rates:
    """Rates of the link and, with `packed`, the decoder, by small samples. Raises OutOfMemory."""
    for nbytes in _SAMPLES_BYTES[:-1]:
        with contextlib.suppress(OutOfMemory, torch.OutOfMemoryError):
            return _rates(carrier, nbytes, packed)
    try:
        return _rates(carrier, _SAMPLES_BYTES[-1], packed)
    except torch.OutOfMemoryError as exc:
        raise OutOfMemory(
            f"cannot find out how fast {carrier.name} is: it has no room for a sample",
            expected=f"{format_bytes(8 * _SAMPLES_BYTES[-1])} of free memory inside of the budget",
            hint="a larger budget",
        ) from exc


def _rates(carrier: Carrier, nbytes: int, packed: bool) -> Rates:
    host = slab(nbytes, pinned=carrier.pinned)
    target = carrier.empty(nbytes)
    copies = [(target, host)] * _AT_ONCE
    link = _gb_s(carrier, copies, lambda after: carrier.copy(copies, after), nbytes)
    if not packed:
        return Rates(link_gb_s=link)
    return Rates(link_gb_s=link, decode_gb_s=_decode_gb_s(carrier, copies) or link * 4)


def _decode_gb_s(carrier: Carrier, copies: list[tuple[torch.Tensor, torch.Tensor]]) -> float | None:
    scratch = copies[0][0]
    values = torch.randn(scratch.numel() // 2, device=carrier.device) * 0.02
    packed = pack(values.to(torch.bfloat16).view(torch.uint8), "bf16")
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
    """The best rate of some repeats, queued behind copies: the device never waits for the host."""
    times: list[float] = []
    for _ in range(_REPEATS + 1):
        carrier.wait(carrier.copy(before, [carrier.mark()]))
        start = carrier.mark(timed=True)
        carrier.wait(work([start]))
        end = carrier.mark(timed=True)
        carrier.settle(end)
        times.append(carrier.between_ms(start, end))
    return nbytes * _AT_ONCE / max(min(times), 1e-6) / 1e6
