"""The interface of a carrier: memory on both sides, copies that run ahead, and marks in time.

Two lanes run beside each other: copies, and computing, which is what the caller does. Decoding is
computing: beside it, it would take the same units and gain nothing. A mark is a moment in one of
the lanes. Only `settle` and `synchronize` make the host wait.
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
        """The device as users write it."""
        ...

    @property
    def device(self) -> torch.device:
        """Where the tensors of `empty` lie."""
        ...

    log: Journal | None  # is told about every copy and decode
    peak_bytes: int  # the most that tensors held since somebody set it to 0

    @property
    def pinned(self) -> bool:
        """Whether slabs should be pinned for fast copies."""
        ...

    @property
    def node(self) -> int | None:
        """The NUMA node next to the device."""
        ...

    def empty(self, nbytes: int) -> torch.Tensor:
        """Device memory. Raises OutOfMemory, and nothing was taken then."""
        ...

    def copy(
        self, pairs: Sequence[tuple[torch.Tensor, torch.Tensor]], after: Sequence[Mark]
    ) -> Mark:
        """Copy (target on the device, source on the host) pairs, once the marks are passed."""
        ...

    def decode(self, parts: Parts) -> Mark:
        """Unpack (payload, layout, target), all on the device, before what is computed next."""
        ...

    def decoding(self, parts: Parts) -> Callable[[], Mark]:
        """`decode` of parts that will come again and again, each time by calling what it gives."""
        ...

    def mark(self, timed: bool = False) -> Mark:
        """This moment of the computing."""
        ...

    def wait(self, mark: Mark) -> None:
        """What is computed from here on comes after the mark."""
        ...

    def drain(self) -> None:
        """What is computed from here on comes after all copies so far."""
        ...

    def settle(self, mark: Mark) -> None:
        """The host waits for a mark."""
        ...

    def synchronize(self) -> None:
        """The host waits for everything."""
        ...

    def between_ms(self, start: Mark, end: Mark) -> float:
        """Milliseconds between two timed marks that have passed."""
        ...

    def computing(self) -> AbstractContextManager[None]:
        """Around every pass: for devices that have to watch what is computed."""
        ...

    def current_lane(self) -> AbstractContextManager[Any] | None:
        """What makes another thread compute where this one does; None if there is one place."""
        ...

    def others_bytes(self) -> int:
        """Device memory of this process that did not come from `empty`, as far as is known."""
        ...

    def others_peak_bytes(self, reset: bool = False) -> int:
        """The most of it since the last reset, if `empty` and its memory were left alone."""
        ...

    def outside_bytes(self) -> int:
        """What the device takes for this process beside tensors: the driver's own memory."""
        ...

    def workspace_bytes(self) -> int:
        """What one operation of a library may want beside its result; 0 where none wants any."""
        ...

    def has_room(self, pieces: Sequence[int]) -> bool:
        """Whether memory of those sizes can be taken at once now. It is tried."""
        ...

    def gaps_bytes(self) -> int:
        """Memory that is free and cannot be had in larger pieces, after `tidy`."""
        ...

    def failures(self) -> int:
        """How often it refused memory so far, whoever got that to know."""
        ...

    def total_bytes(self) -> int:
        """All that the device has for this process."""
        ...

    def slack_bytes(self, budget_bytes: int) -> int:
        """What a budget of that size loses to rounding in the device's allocator."""
        ...

    def limit(self, budget_bytes: int | None, loading: bool = False) -> None:
        """Have the device refuse more than that to this process.

        `loading` says that something will run for the first time, and leaves room for its kernels.
        """
        ...

    def tidy(self) -> None:
        """Give cached memory back to the device."""
        ...

    def rates(self, packed: bool = True) -> Rates:
        """How fast it is: measured, and kept for the next time; without `packed` the link alone."""
        ...
