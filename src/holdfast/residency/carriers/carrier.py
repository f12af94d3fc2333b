"""The interface of a carrier: device memory, asynchronous copies and events.

Two lanes run in parallel: copies, and compute, which is what the caller queues. Decoding runs in
the compute lane: it needs the same units, so a third lane would gain nothing. A mark is an event in
one of the lanes. Only `settle` and `synchronize` block the host.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

if TYPE_CHECKING:
    import torch

    from holdfast.residency.packing.pack import Layout
    from holdfast.residency.plan import Rates
    from holdfast.residency.recording.journal import Journal

Mark = Any  # each carrier has its own
Parts: TypeAlias = "Sequence[tuple[torch.Tensor, Layout, torch.Tensor]]"


class Carrier(Protocol):
    """Moves bytes to one device. Device memory is uint8 tensors."""

    @property
    def name(self) -> str:
        """The name of the device, such as "cuda:0"."""
        ...

    @property
    def device(self) -> torch.device:
        """The torch device of the tensors that `empty` returns."""
        ...

    log: Journal | None  # records every copy and decode
    peak_bytes: int  # peak of tensor memory since it was set to 0

    @property
    def pinned(self) -> bool:
        """Whether slabs should be pinned for fast copies to this device."""
        ...

    @property
    def node(self) -> int | None:
        """The NUMA node next to the device."""
        ...

    def empty(self, nbytes: int) -> torch.Tensor:
        """Allocate device memory. Raises OutOfMemory."""
        ...

    def copy(
        self, pairs: Sequence[tuple[torch.Tensor, torch.Tensor]], after: Sequence[Mark]
    ) -> Mark:
        """Queue copies of (device target, host source) pairs after the marks in `after`."""
        ...

    def decode(self, parts: Parts) -> Mark:
        """Queue decoding of (payload, layout, target), all on the device, in the compute lane."""
        ...

    def decoding(self, parts: Parts) -> Callable[[], Mark]:
        """A function that decodes these parts each time it is called; faster than `decode`."""
        ...

    def mark(self, timed: bool = False) -> Mark:
        """Record an event in the compute lane."""
        ...

    def wait(self, mark: Mark) -> None:
        """Make the compute lane wait for a mark."""
        ...

    def drain(self) -> None:
        """Make the compute lane wait for all copies queued so far."""
        ...

    def settle(self, mark: Mark) -> None:
        """Block the host until a mark has passed."""
        ...

    def synchronize(self) -> None:
        """Block the host until all queued work is done."""
        ...

    def between_ms(self, start: Mark, end: Mark) -> float:
        """Milliseconds between two timed marks that have passed."""
        ...

    def computing(self) -> AbstractContextManager[None]:
        """Wraps every pass, for carriers that must observe operations."""
        ...

    def current_lane(self) -> AbstractContextManager[Any] | None:
        """A context that makes another thread use this thread's stream; None without streams."""
        ...

    def others_bytes(self) -> int:
        """Tensor memory of this process on the device, as far as is known."""
        ...

    def others_peak_bytes(self, reset: bool = False) -> int:
        """Peak of `others_bytes` since the last reset."""
        ...

    def outside_bytes(self) -> int:
        """Device memory of this process outside of tensors: the driver's own."""
        ...

    def workspace_bytes(self) -> int:
        """Workspace that one library call may want beside its result; 0 if none."""
        ...

    def has_room(self, pieces: Sequence[int]) -> bool:
        """Whether blocks of these sizes can all be allocated now; found by trying."""
        ...

    def gaps_bytes(self) -> int:
        """Free memory lost to fragmentation, after `tidy`."""
        ...

    def failures(self) -> int:
        """How often an allocation has failed so far, even if a library hid the error."""
        ...

    def total_bytes(self) -> int:
        """All device memory available to this process."""
        ...

    def slack_bytes(self, budget_bytes: int) -> int:
        """What a budget of that size loses to rounding in the allocator."""
        ...

    def limit(self, budget_bytes: int | None, loading: bool = False) -> None:
        """Make allocations of this process above the budget fail; None lifts the limit.

        `loading`: a model will run for the first time; leaves room for its kernels.
        """
        ...

    def tidy(self) -> None:
        """Free the allocator's cache."""
        ...

    def rates(self, packed: bool = True) -> Rates:
        """Measured rates, cached; without `packed` only that of the link."""
        ...
