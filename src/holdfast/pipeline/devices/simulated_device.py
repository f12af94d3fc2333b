"""A simulated device: the CPU computes, memory and link are simulated.

Pictures equal those of the CPU bit for bit. A budget is enforced to the byte for weights and
activations; predicted and measured times are those of the simulated clock.
"""

from __future__ import annotations

from holdfast.pipeline.devices.torch_devices import Cpu
from holdfast.residency.carriers import simulated
from holdfast.residency.carriers.carrier import Carrier


class Simulated(Cpu):
    """The CPU, with a carrier that counts memory and refuses more, as a card would."""

    streams = "always"

    def __init__(self, index: int | None = None) -> None:
        super().__init__(index)
        self._carrier = simulated.Simulated()

    @property
    def name(self) -> str:
        return "simulated"

    def carrier(self) -> Carrier:
        return self._carrier

    def unusable(self) -> str | None:
        return None if self.index in (None, 0) else "there is one simulated device"

    def free_bytes(self) -> int | None:
        """Unknown: the capacity is unlimited without a budget."""
        return None

    def limit(self, budget_bytes: int | None) -> None:
        self._carrier.limit(budget_bytes)

    def used_bytes(self) -> int | None:
        return self._carrier.held_bytes + self._carrier.computed_bytes

    def reset_peak(self) -> None:
        self._carrier.peak_bytes = self.used_bytes() or 0

    def peak_bytes(self) -> int | None:
        return self._carrier.peak_bytes
