"""Several modules under one budget on one device.

Covers: who may hold how much, who has to leave for whom, the order of their next uses.
Leaves to others: each module by itself (managed).
Promise: together they never hold more than the budget leaves.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from holdfast.residency.carriers.carrier import Carrier
from holdfast.residency.journal import Journal

if TYPE_CHECKING:
    from holdfast.residency.managed import Managed


class Group:
    """The modules that share a budget. `budget_bytes` None is all the device has."""

    def __init__(self, carrier: Carrier, budget_bytes: int | None, node: int | None = None) -> None:
        self.carrier = carrier
        self.node = node
        self.journal = Journal(carrier)
        self.members: list[Managed] = []
        self._order: list[Managed] = []
        self.budget_bytes = budget_bytes
        carrier.limit(budget_bytes)

    def set_budget(self, budget_bytes: int | None) -> None:
        """From the next pass on; what does not fit any more leaves at once."""
        shrinks = budget_bytes is not None and (
            self.budget_bytes is None or budget_bytes < self.budget_bytes
        )
        self.budget_bytes = budget_bytes
        if shrinks:
            for member in self.members:
                if member.allowance() < member.held_bytes:
                    member.let_go("the budget shrank")
            self.carrier.tidy()
        self.carrier.limit(budget_bytes)

    def leave(self, member: Managed) -> None:
        """One member goes; with the last, the limit of the device."""
        if member in self.members:
            self.members.remove(member)
        if not self.members:
            self.carrier.limit(None)
        self.carrier.tidy()

    def follow(self, order: Sequence[Managed]) -> None:
        """Say in which order the members will run, over and over."""
        self._order = list(order)

    @property
    def held_bytes(self) -> int:
        """What all members hold on the device."""
        return sum(member.held_bytes for member in self.members)

    @property
    def room_bytes(self) -> int:
        """What the budget leaves for weights and what is computed."""
        budget = self.budget_bytes
        if budget is None:
            budget = self.carrier.total_bytes()
        return budget - self.carrier.outside_bytes() - self.carrier.slack_bytes(budget)

    @contextlib.contextmanager
    def running(self, member: Managed) -> Iterator[None]:
        """While one member runs, the others make the room it can use."""
        wanted = min(member.weight_bytes, member.allowance())
        others = [m for m in self._by_next_use(member) if m.held_bytes]
        while others and wanted + sum(m.held_bytes for m in others) > member.allowance():
            others.pop(0).let_go(f"room for {member.name}")
        yield

    def _by_next_use(self, member: Managed) -> list[Managed]:
        """The other members, the one that is needed last first."""
        others = [m for m in self.members if m is not member]
        if member not in self._order:
            return others
        at = self._order.index(member)
        ahead = [*self._order[at + 1 :], *self._order[:at]]
        return sorted(others, key=lambda m: -ahead.index(m) if m in ahead else -len(ahead))
