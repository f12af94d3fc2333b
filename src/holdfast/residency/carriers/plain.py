"""Devices without streams: everything happens in the order it is asked for."""

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
from holdfast.residency.carriers.measure import measured_rates
from holdfast.residency.carriers.traffic import way_to
from holdfast.residency.packing.pack import unpack
from holdfast.residency.plan import Rates
from holdfast.residency.recording.journal import Journal


class Plain:
    """Copies that are done when they return."""

    pinned = False
    node = None

    def __init__(self, name: str) -> None:
        self.device = torch.device(name)
        self.name = name
        self._api: Any = torch.mps if self.device.type == "mps" else None
        self._rates: dict[bool, Rates] = {}  # by whether the decoder was measured
        self._way = way_to(name)
        self.log: Journal | None = None
        self.peak_bytes = 0

    def empty(self, nbytes: int) -> torch.Tensor:
        """Memory of torch."""
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
        self._way.copied_bytes += nbytes
        return self._done("copy", nbytes, start)

    def decode(self, parts: Parts) -> Any:
        """At once."""
        start = self.mark(timed=self.log is not None)
        for payload, layout, target in parts:
            unpack(payload, layout, target)
        return self._done("decode", sum(t.numel() for *_, t in parts), start)

    def decoding(self, parts: Parts) -> Callable[[], Any]:
        """Nothing is gained by knowing them."""
        return functools.partial(self.decode, parts)

    def _done(self, kind: str, nbytes: int, start: Any) -> Any:
        end = self.mark(timed=self.log is not None)
        if self.log is not None:
            self.log.lane(kind, nbytes, start, end)
        return end

    def mark(self, timed: bool = False) -> Any:
        """The time; a device that runs behind is waited for where the time matters."""
        if timed:
            self.synchronize()
        return time.perf_counter()

    def wait(self, mark: Any) -> None:
        """Everything asked for before comes before."""

    def drain(self) -> None:
        """Everything asked for before comes before."""

    def settle(self, mark: Any) -> None:
        """Waits for all there is."""
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
        """Nothing to watch."""
        yield

    def current_lane(self) -> Any:
        """There is one."""
        return None

    def others_bytes(self) -> int:
        """What Metal has given; nobody counts on the CPU."""
        return 0 if self._api is None else self._api.current_allocated_memory()

    def others_peak_bytes(self, reset: bool = False) -> int:
        """No peak is kept: what is taken now."""
        now = self.others_bytes()
        self.peak_bytes = max(self.peak_bytes, now)
        return now

    def outside_bytes(self) -> int:
        """None is known."""
        return 0

    def workspace_bytes(self) -> int:
        """None is known."""
        return 0

    def has_room(self, pieces: Sequence[int]) -> bool:
        """Nobody asks where there are no workspaces."""
        return True

    def gaps_bytes(self) -> int:
        """None are known."""
        return 0

    def failures(self) -> int:
        """Nobody counts."""
        return 0

    def total_bytes(self) -> int:
        """What Metal recommends to take; the memory of the host."""
        if self._api is not None:
            return self._api.recommended_max_memory()
        return psutil.virtual_memory().total

    def slack_bytes(self, budget_bytes: int) -> int:
        """A fiftieth, as nobody counts exactly here."""
        return budget_bytes // 50

    def limit(self, budget_bytes: int | None, loading: bool = False) -> None:
        """Metal takes a fraction of what it recommends; the CPU has no limit."""
        if self._api is not None:
            most = self._api.recommended_max_memory()
            self._api.set_per_process_memory_fraction(
                1.7 if budget_bytes is None else min(1.7, budget_bytes / most)
            )

    def tidy(self) -> None:
        """Give cached memory back."""
        if self._api is not None:
            self._api.empty_cache()

    def rates(self, packed: bool = True) -> Rates:
        """Measured once."""
        found = self._rates.get(True) or self._rates.get(packed)
        if found is None:
            found = self._rates[packed] = measured_rates(self, packed)
            self._way.link_gb_s = found.link_gb_s
        return found
