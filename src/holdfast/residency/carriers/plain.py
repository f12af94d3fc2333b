"""Devices without streams: operations run in the order of the calls."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import psutil
import torch

from holdfast.base.errors import OutOfMemory
from holdfast.base.units import format_bytes
from holdfast.residency.carriers.carrier import Carrier, Parts, traffic_to
from holdfast.residency.carriers.measure import measure_rates
from holdfast.residency.packing.pack import unpack
from holdfast.residency.plan import Rates


class Plain(Carrier):
    """A carrier whose copies are synchronous."""

    def __init__(self, name: str) -> None:
        self.device = torch.device(name)
        self.name = name
        self._api: Any = torch.mps if self.device.type == "mps" else None
        self._rates: dict[bool, Rates] = {}  # by whether the decoder was measured
        self._traffic = traffic_to(name)

    def empty(self, nbytes: int) -> torch.Tensor:
        try:
            with torch.inference_mode(False):
                return torch.empty(nbytes, dtype=torch.uint8, device=self.device)
        except RuntimeError as exc:  # torch has one error for all that goes wrong here
            raise OutOfMemory(
                f"cannot take {format_bytes(nbytes)} on {self.name} for weights",
                expected="that much free memory",
            ) from exc

    def copy(self, pairs: Sequence[tuple[torch.Tensor, torch.Tensor]], after: Sequence[Any]) -> Any:
        start = self.mark(timed=self.log is not None)
        for target, source in pairs:
            target.copy_(source)
        nbytes = sum(t.numel() for t, _ in pairs)
        self._traffic.copied_bytes += nbytes
        return self._record_end("copy", nbytes, start)

    def decode(self, parts: Parts) -> Any:
        start = self.mark(timed=self.log is not None)
        for payload, layout, target in parts:
            unpack(payload, layout, target)
        return self._record_end("decode", sum(t.numel() for *_, t in parts), start)

    def _record_end(self, kind: str, nbytes: int, start: Any) -> Any:
        end = self.mark(timed=self.log is not None)
        if self.log is not None:
            self.log.note_lane(kind, nbytes, start, end)
        return end

    def mark(self, timed: bool = False) -> Any:
        """The host time; a timed mark synchronizes first."""
        if timed:
            self.synchronize()
        return time.perf_counter()

    def synchronize(self) -> None:
        if self._api is not None:
            self._api.synchronize()

    def between_ms(self, start: Any, end: Any) -> float:
        return (end - start) * 1000

    def others_bytes(self) -> int:
        """Metal's count; 0 on the CPU, where nothing counts."""
        return 0 if self._api is None else self._api.current_allocated_memory()

    def others_peak_bytes(self, reset: bool = False) -> int:
        """The current bytes: no peak is recorded."""
        now = self.others_bytes()
        self.peak_bytes = max(self.peak_bytes, now)
        return now

    def total_bytes(self) -> int:
        """Metal's recommended maximum, or host RAM."""
        if self._api is not None:
            return self._api.recommended_max_memory()
        return psutil.virtual_memory().total

    def slack_bytes(self, budget_bytes: int) -> int:
        """2 %, as memory is not counted exactly here."""
        return budget_bytes // 50

    def limit(self, budget_bytes: int | None, loading: bool = False) -> None:
        """Set as a fraction of Metal's recommended maximum; the CPU has no limit."""
        if self._api is not None:
            most = self._api.recommended_max_memory()
            self._api.set_per_process_memory_fraction(
                1.7 if budget_bytes is None else min(1.7, budget_bytes / most)
            )

    def tidy(self) -> None:
        if self._api is not None:
            self._api.empty_cache()

    def rates(self, packed: bool = True) -> Rates:
        found = self._rates.get(True) or self._rates.get(packed)
        if found is None:
            found = self._rates[packed] = measure_rates(self, packed)
            self._traffic.link_gb_s = found.link_gb_s
        return found
