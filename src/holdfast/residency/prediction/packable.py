"""How small weights become when they are packed, told without packing them.

Covers: a sample of the weights, or weights like normal numbers where there is none.
Promise: the sizes are those that pack() would give to weights with that mixture of exponents.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from holdfast.residency.packing import pack_torch
from holdfast.residency.packing.pack import kind_of
from holdfast.residency.packing.pack_layout import decide
from holdfast.residency.prediction.profile import Part

_NUMBERS = 1 << 18
_SPREAD = 0.02


@dataclass(frozen=True, slots=True)
class Packing:
    """What packing does to weights of one format."""

    dtype: torch.dtype
    schemes: tuple[str, ...]
    histogram: tuple[int, ...] | None  # None: this format is not packed
    assumptions: tuple[str, ...]
    _sizes: dict[int, int | None] = field(default_factory=dict, compare=False, repr=False)

    @classmethod
    def of(
        cls, schemes: Sequence[str], dtype: torch.dtype, sample: torch.Tensor | None = None
    ) -> Packing:
        """For weights of `dtype`; `sample` are some of their bytes."""
        kind = kind_of(dtype)
        if kind is None:
            return cls(dtype, tuple(schemes), None, ())
        told = ("the rest of the weights packs as a sample of them does",)
        if sample is None:
            told = (f"{kind} weights pack as normal numbers do",)
            numbers = torch.randn(_NUMBERS, generator=torch.Generator().manual_seed(0)) * _SPREAD
            sample = numbers.to(dtype).view(torch.uint8)
        words = sample[: sample.numel() // 2 * 2].view(torch.int16)
        counted = tuple(int(n) for n in pack_torch.histogram(words, kind))
        return cls(dtype, tuple(schemes), counted, told)

    def payload_bytes(self, part: Part) -> int | None:
        """What crosses the link for a stretch of weights; None if it goes as it is."""
        if part.is_buffer or part.dtype != self.dtype or self.histogram is None:
            return None
        elements = part.raw_bytes // 2
        if elements not in self._sizes:
            self._sizes[elements] = self._size(elements)
        return self._sizes[elements]

    def _size(self, elements: int) -> int | None:
        assert self.histogram is not None
        whole = sum(self.histogram)
        scaled = [count * elements // whole for count in self.histogram]
        commonest = max(range(len(scaled)), key=lambda i: scaled[i])
        scaled[commonest] += elements - sum(scaled)
        decided = decide(scaled, kind_of(self.dtype) or "", self.schemes)
        return None if decided is None else decided[0].nbytes
