"""The interface of a carrier: device memory, asynchronous copies and events.

Two lanes run in parallel: copies, and compute, which is what the caller queues. Decoding runs in
the compute lane: it needs the same units, so a third lane would gain nothing. A mark is an event in
one of the lanes. Only `settle` and `synchronize` block the host.

`traffic` counts the bytes that were copied to each device. Counters outlive their carriers.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

if TYPE_CHECKING:
    import torch

    from holdfast.residency.packing.pack import Layout
    from holdfast.residency.plan import Rates
    from holdfast.residency.recording.journal import Journal

Mark = Any  # each carrier has its own
Parts: TypeAlias = "Sequence[tuple[torch.Tensor, Layout, torch.Tensor]]"


class Carrier(Protocol):
    """Moves bytes to one device. Device memory is uint8 tensors.

    Carriers inherit what is the same for devices without streams, libraries and a driver.
    """

    name: str  # such as "cuda:0"
    device: torch.device  # of the tensors that `empty` returns
    pinned: bool = False  # whether slabs should be pinned for fast copies to this device
    node: int | None = None  # the NUMA node next to the device
    is_compact: bool = True  # whether free memory serves blocks of any size, however it is spread
    log: Journal | None = None  # records every copy and decode
    peak_bytes: int = 0  # peak of tensor memory since it was set to 0

    def empty(self, nbytes: int) -> torch.Tensor:
        """Allocate device memory. Raises OutOfMemory."""
        ...

    def copy(
        self, pairs: Sequence[tuple[torch.Tensor, torch.Tensor]], after: Sequence[Mark]
    ) -> Mark:
        """Queue copies of (device target, host source) pairs after the marks in `after`."""

    def decode(self, parts: Parts) -> Mark:
        """Queue decoding of (payload, layout, target), all on the device, in the compute lane."""

    def decoding(self, parts: Parts) -> Callable[[], Mark]:
        """A function that decodes these parts each time it is called; perhaps faster."""
        return functools.partial(self.decode, parts)

    def mark(self, timed: bool = False) -> Mark:
        """Record an event in the compute lane."""

    def wait(self, mark: Mark) -> None:
        """Make the compute lane wait for a mark."""

    def drain(self) -> None:
        """Make the compute lane wait for all copies queued so far."""

    def settle(self, mark: Mark) -> None:
        """Block the host until a mark has passed."""
        self.synchronize()

    def synchronize(self) -> None:
        """Block the host until all queued work is done."""

    def between_ms(self, start: Mark, end: Mark) -> float:
        """Milliseconds between two timed marks that have passed."""
        ...

    def computing(self) -> AbstractContextManager[None]:
        """Wraps every pass, for carriers that must observe operations."""
        return nullcontext()

    def current_lane(self) -> AbstractContextManager[Any] | None:
        """A context that makes another thread use this thread's stream; None without streams."""
        return None

    def others_bytes(self) -> int:
        """Tensor memory of this process on the device, as far as is known."""
        ...

    def others_peak_bytes(self, reset: bool = False) -> int:
        """Peak of `others_bytes` since the last reset."""
        ...

    def outside_bytes(self) -> int:
        """Device memory of this process outside of tensors: the driver's own."""
        return 0

    def workspace_bytes(self) -> int:
        """Workspace that one library call may want beside its result; 0 if none."""
        return 0

    def has_room(self, pieces: Sequence[int]) -> bool:
        """Whether blocks of these sizes can all be allocated now; found by trying."""
        return True

    def gaps_bytes(self) -> int:
        """Free memory lost to fragmentation, after `tidy`."""
        return 0

    def failures(self) -> int:
        """How often an allocation has failed so far, even if a library hid the error."""
        return 0

    def total_bytes(self) -> int:
        """All device memory available to this process."""
        ...

    def slack_bytes(self, budget_bytes: int) -> int:
        """What a budget of that size loses to rounding in the allocator."""
        return 0

    def budget_around(self, nbytes: int) -> int:
        """The smallest budget that has `nbytes` left beside its slack."""
        budget, wanted = 0, nbytes
        while budget != wanted:  # rounding takes more of a larger budget
            budget, wanted = wanted, nbytes + self.slack_bytes(wanted)
        return budget

    def limit(self, budget_bytes: int | None, loading: bool = False) -> None:
        """Make allocations above the budget fail; `loading` leaves room for kernels."""

    def tidy(self) -> None:
        """Free the allocator's cache."""

    def rates(self, packed: bool = True) -> Rates:
        """Measured rates, cached; without `packed` only that of the link."""
        ...


@dataclass(slots=True)
class Traffic:
    """Traffic to one device. `link_gb_s` is None until it was measured."""

    device: str
    copied_bytes: int = 0
    link_gb_s: float | None = None


_counters: dict[str, Traffic] = {}


def traffic_to(device: str) -> Traffic:
    """The counter of a device, shared by all carriers to it."""
    return _counters.setdefault(device, Traffic(device))


def traffic() -> list[Traffic]:
    """All counters, sorted by device name."""
    return [_counters[device] for device in sorted(_counters)]
