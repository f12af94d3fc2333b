"""Devices without streams: operations run in the order of the calls."""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import psutil
import torch

from holdfast.base.errors import OutOfMemory
from holdfast.base.units import format_bytes
from holdfast.residency.carriers.carrier import Parts
from holdfast.residency.carriers.measure import measure_rates
from holdfast.residency.carriers.traffic import traffic_to
from holdfast.residency.packing.pack import unpack
from holdfast.residency.plan import Rates
from holdfast.residency.recording.journal import Journal


class Plain:
    """A carrier whose copies are synchronous."""

    pinned = False
    node = None

    def __init__(self, name: str) -> None:
        self.device = torch.device(name)
        self.name = name
        self._api: Any = torch.mps if self.device.type == "mps" else None
        self._rates: dict[bool, Rates] = {}  # by whether the decoder was measured
        self._traffic = traffic_to(name)
        self.log: Journal | None = None
        self.peak_bytes = 0

    def empty(self, nbytes: int) -> torch.Tensor:
        """From torch's allocator."""
        try:
            with torch.inference_mode(False):
                return torch.empty(nbytes, dtype=torch.uint8, device=self.device)
        except RuntimeError as exc:  # torch has one error for all that goes wrong here
            raise OutOfMemory(
                f"cannot take {format_bytes(nbytes)} on {self.name} for weights",
                expected="that much free memory",
            ) from exc

    def copy(self, pairs: Sequence[tuple[torch.Tensor, torch.Tensor]], after: Sequence[Any]) -> Any:
        """At once."""
        start = self.mark(timed=self.log is not None)
        for target, source in pairs:
            target.copy_(source)
        nbytes = sum(t.numel() for t, _ in pairs)
        self._traffic.copied_bytes += nbytes
        return self._record_end("copy", nbytes, start)

    def decode(self, parts: Parts) -> Any:
        """At once."""
        start = self.mark(timed=self.log is not None)
        for payload, layout, target in parts:
            unpack(payload, layout, target)
        return self._record_end("decode", sum(t.numel() for *_, t in parts), start)

    def decoding(self, parts: Parts) -> Callable[[], Any]:
        """No faster than `decode` here."""
        return functools.partial(self.decode, parts)

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

    def wait(self, mark: Any) -> None:
        """Nothing to do: operations run in order."""

    def drain(self) -> None:
        """Nothing to do: operations run in order."""

    def settle(self, mark: Any) -> None:
        """Waits for all queued work."""
        self.synchronize()

    def synchronize(self) -> None:
        """Wait for the device."""
        if self._api is not None:
            self._api.synchronize()

    def between_ms(self, start: Any, end: Any) -> float:
        """By the host's clock."""
        return (end - start) * 1000

    @contextlib.contextmanager
    def computing(self) -> Iterator[None]:
        """Nothing to observe."""
        yield

    def current_lane(self) -> Any:
        """There are no streams."""
        return None

    def others_bytes(self) -> int:
        """Metal's count; 0 on the CPU, where nothing counts."""
        return 0 if self._api is None else self._api.current_allocated_memory()

    def others_peak_bytes(self, reset: bool = False) -> int:
        """The current bytes: no peak is recorded."""
        now = self.others_bytes()
        self.peak_bytes = max(self.peak_bytes, now)
        return now

    def outside_bytes(self) -> int:
        """Unknown."""
        return 0

    def workspace_bytes(self) -> int:
        """Unknown."""
        return 0

    def has_room(self, pieces: Sequence[int]) -> bool:
        """Only asked where there are workspaces."""
        return True

    def gaps_bytes(self) -> int:
        """Unknown."""
        return 0

    def failures(self) -> int:
        """Not counted."""
        return 0

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
        """Free Metal's cache."""
        if self._api is not None:
            self._api.empty_cache()

    def rates(self, packed: bool = True) -> Rates:
        """Measured once."""
        found = self._rates.get(True) or self._rates.get(packed)
        if found is None:
            found = self._rates[packed] = measure_rates(self, packed)
            self._traffic.link_gb_s = found.link_gb_s
        return found
