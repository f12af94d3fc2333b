"""Copies pageable host memory to a device through two small pinned buffers.

A driver copies pageable memory with one thread, piece by piece. Here many threads fill one buffer
while the other is copied to the device.
"""

from __future__ import annotations

import torch

from holdfast.residency.carriers.carrier import Carrier, Mark
from holdfast.residency.model_management.models.pinned import pin_memory
from holdfast.residency.packing.pack import Layout, pack
from holdfast.residency.stream.slabs import slab

PIECE_BYTES = 64 << 20


class Staging:
    """Two pinned buffers for one carrier, freed with this object."""

    def __init__(self, carrier: Carrier) -> None:
        self._carrier = carrier
        self._buffers: list[torch.Tensor] = []
        self._sent: list[Mark] = [None, None]
        self._turn = 0

    def over(self, raw: torch.Tensor) -> torch.Tensor:
        """Copy `raw` (1-D uint8) to the device, before the next computation. Raises OutOfMemory."""
        carrier = self._carrier
        if not carrier.pinned or raw.device.type != "cpu" or raw.is_pinned():
            return raw.to(carrier.device)
        target = carrier.empty(raw.numel())
        begin = [carrier.mark()]  # queued computation may still read this memory
        for start in range(0, raw.numel(), PIECE_BYTES):
            piece = raw[start : start + PIECE_BYTES]
            self._send(piece, target[start : start + piece.numel()], begin)
        carrier.drain()
        return target

    def pack(self, raw: torch.Tensor, kind: str) -> tuple[Layout, torch.Tensor] | None:
        """`packing.pack` on the device, which is much faster than on the host."""
        return pack(self.over(raw), kind)

    def _send(self, piece: torch.Tensor, target: torch.Tensor, after: list[Mark]) -> None:
        self._turn = 1 - self._turn
        if not self._buffers:
            self._buffers = [slab(PIECE_BYTES).zero_() for _ in range(2)]
            for buffer in self._buffers:
                pin_memory(buffer)
        if self._sent[self._turn] is not None:
            self._carrier.settle(self._sent[self._turn])
        buffer = self._buffers[self._turn][: piece.numel()]
        buffer.copy_(piece)
        self._sent[self._turn] = self._carrier.copy([(target, buffer)], after)
