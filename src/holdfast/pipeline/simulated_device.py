"""A device for machines without one: the CPU computes, memory and link are made up.

Promise: pictures are those of the CPU, bit for bit; a budget is kept to the byte by what residency
moves and what networks compute, and the times that are predicted are those of its own clock.
"""

from __future__ import annotations

from holdfast.pipeline.torch_devices import Cpu
from holdfast.residency.carriers import simulated
from holdfast.residency.carriers.carrier import Carrier


class Simulated(Cpu):
    """The CPU, with a carrier that counts and refuses as a card would."""

    streams = "always"

    def __init__(self, index: int | None = None) -> None:
        super().__init__(index)
        self._carrier = simulated.Simulated()

    @property
    def name(self) -> str:
        """As the user writes it."""
        return "simulated"

    def carrier(self) -> Carrier:
        """The one it has."""
        return self._carrier

    def unusable(self) -> str | None:
        """Only an index is."""
        return None if self.index in (None, 0) else "there is one simulated device"

    def free_bytes(self) -> int | None:
        """What is left of its capacity, which has no end until there is a budget."""
        return None

    def limit(self, budget_bytes: int | None) -> None:
        """What is beyond it is refused."""
        self._carrier.limit(budget_bytes)

    def used_bytes(self) -> int | None:
        """Weights, and what networks computed."""
        return self._carrier.held_bytes + self._carrier.computed_bytes

    def reset_peak(self) -> None:
        """Begin a new measurement."""
        self._carrier.peak_bytes = self.used_bytes() or 0

    def peak_bytes(self) -> int | None:
        """The most of both at once."""
        return self._carrier.peak_bytes
