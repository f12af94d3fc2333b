"""Predicts the size of packed weights from a sample, or for normally distributed weights.

The sizes are exact for weights with the same distribution of exponents.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from holdfast.residency.packing import codec_torch
from holdfast.residency.packing.layouts import decide
from holdfast.residency.packing.pack import kind_of
from holdfast.residency.predict.profile import ProfiledStretch

_ELEMENTS = 1 << 18
_SPREAD = 0.02


@dataclass(frozen=True, slots=True)
class Packing:
    """The effect of packing on weights of one dtype."""

    dtype: torch.dtype
    schemes: tuple[str, ...]
    histogram: tuple[int, ...] | None  # None: this dtype is not packed
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
        assumption = "all weights pack like a sample of them"
        if sample is None:
            assumption = f"{kind} weights pack like normally distributed ones"
            values = torch.randn(_ELEMENTS, generator=torch.Generator().manual_seed(0)) * _SPREAD
            sample = values.to(dtype).view(torch.uint8)
        words = sample[: sample.numel() // 2 * 2].view(torch.int16)
        counted = tuple(int(n) for n in codec_torch.histogram(words, kind))
        return cls(dtype, tuple(schemes), counted, (assumption,))

    def payload_bytes(self, stretch: ProfiledStretch) -> int | None:
        """The packed size of a stretch of weights; None if it is not packed."""
        if stretch.is_buffer or stretch.dtype != self.dtype or self.histogram is None:
            return None
        elements = stretch.raw_bytes // 2
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
