"""Bytes that go to a device through two pinned buffers."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from holdfast.residency.carriers.simulated import Simulated
from holdfast.residency.stream import staging
from holdfast.residency.stream.staging import Staging


class Pinning(Simulated):
    """Wants pinned memory, as a card does; and copies as late as it may."""

    pinned = True

    def __init__(self) -> None:
        super().__init__(eager=0.0)
        self.sizes: list[int] = []

    def copy(self, pairs: Any, after: Any) -> Any:
        self.sizes += [source.numel() for _, source in pairs]
        return super().copy(pairs, after)


@pytest.mark.parametrize("pieces", [0.5, 1, 2, 5.25])
def test_all_bytes_arrive_in_pieces_whatever_is_in_the_buffers_meanwhile(monkeypatch, pieces):
    monkeypatch.setattr(staging, "PIECE_BYTES", 4096)
    carrier = Pinning()
    way = Staging(carrier)
    for seed in range(3):
        generator = torch.Generator().manual_seed(seed)
        raw = torch.randint(0, 256, (int(4096 * pieces),), dtype=torch.uint8, generator=generator)
        there = way.over(raw)
        carrier.synchronize()
        assert torch.equal(there, raw)
    assert max(carrier.sizes) <= 4096
    assert sum(carrier.sizes) == 3 * int(4096 * pieces)


def test_where_nothing_is_pinned_torch_brings_it():
    raw = torch.arange(10, dtype=torch.uint8)
    assert torch.equal(Staging(Simulated()).over(raw), raw)
