"""Several modules under one budget on one device: together they never hold more than it leaves."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

from holdfast.residency.carriers.carrier import Carrier
from holdfast.residency.managed.occupancy import Occupancy
from holdfast.residency.recording.journal import Journal

if TYPE_CHECKING:
    import torch


class Member(Protocol):
    """A managed module for its group; `Managed` describes the members."""

    name: str
    door: threading.RLock
    occupancy: Occupancy

    @property
    def running(self) -> bool: ...
    @property
    def held_bytes(self) -> int: ...
    @property
    def weight_bytes(self) -> int: ...
    def allowance(self) -> int: ...
    def let_go(self, reason: str) -> None: ...
    def shed(self, used: Sequence[torch.Tensor]) -> bool: ...
    def names(self) -> list[str]: ...
    def kept_bytes(self) -> dict[str, int]: ...
    def note_stays(self) -> None: ...


class Group:
    """Modules that share a budget. `budget_bytes` None means the whole device."""

    def __init__(self, carrier: Carrier, budget_bytes: int | None, node: int | None = None) -> None:
        self.carrier = carrier
        self.node = carrier.node if node is None else node
        self.journal = Journal(carrier)
        self.members: list[Member] = []
        self._order: list[Member] = []
        self._asked: tuple[float, int] | None = None  # when, and what the device has in all
        self._unsettled = False  # whether a new budget waits for the end of a pass
        self._settling = threading.RLock()
        self.budget_bytes = budget_bytes
        self._limit_bytes = budget_bytes  # the limit set on the device
        self.weights_bytes: int | None = None  # limit for each member's weights

    def join(self, member: Member) -> None:
        """Add a member; the first one sets the limit of the device."""
        self.members.append(member)
        self._limit(self.budget_bytes)

    def set_budget(self, budget_bytes: int | None) -> None:
        """From the next pass on; what does not fit any more leaves at once, if it does not run.

        A pass under way ends inside of the larger of the two budgets. Any thread may call this.
        """
        with self._settling:
            held = self._limit_bytes  # a pass under way may have begun inside of that
            self.budget_bytes = budget_bytes
            self._unsettled = True
            if held is not None and (budget_bytes is None or budget_bytes > held):
                self._limit(budget_bytes)
            self.settle()

    def _limit(self, budget_bytes: int | None, loading: bool = False) -> None:
        self._limit_bytes = budget_bytes
        self.carrier.limit(budget_bytes, loading)

    def grant(self, weights_bytes: int | None) -> None:
        """Limit the weights of each member, beside the budget; from the next pass on."""
        self.weights_bytes = weights_bytes
        self._unsettled = True
        self.settle()

    def settle(self) -> None:
        """Apply a new budget once no member runs."""
        if not self._unsettled:
            return
        with self._at_rest() as resting:
            if not resting:
                return
            for member in list(self.members):
                if member.allowance() < member.held_bytes:
                    member.let_go("the budget shrank")
            self.tidy(loading=False)
            if self.budget_bytes is None:
                self._limit(None)
            self._unsettled = False

    def rest(self, reason: str) -> int:
        """Have all members leave the device, unless one runs; how many did. For any thread."""
        with self._at_rest() as resting:
            holding = [member for member in self.members if resting and member.held_bytes]
            for member in holding:
                member.let_go(reason)
            if holding:
                self.carrier.tidy()
        return len(holding)

    @contextlib.contextmanager
    def _at_rest(self) -> Iterator[bool]:
        """In the block no member begins a pass; yields whether none is running."""
        with contextlib.ExitStack() as stack:
            stack.enter_context(self._settling)
            members = list(self.members)
            for member in members:
                stack.enter_context(member.door)
            resting = not any(member.running for member in members)
            me = threading.get_ident()
            if resting and any(one.occupancy.thread not in (None, me) for one in members):
                self.carrier.synchronize()  # streams of other threads do not wait for ours
            yield resting

    def leave(self, member: Member) -> None:
        """Remove a member; with the last one, the limit of the device."""
        if member in self.members:
            self.members.remove(member)
        if not self.members:
            self._limit(None)
        self.carrier.tidy()

    def tidy(self, loading: bool) -> None:
        """Have nothing cached and the budget hold; `loading` before what has never run."""
        self.carrier.tidy()
        if self.budget_bytes is not None:
            self._limit(self.budget_bytes, loading)

    def follow(self, order: Sequence[Member]) -> None:
        """Set the order in which the members run repeatedly."""
        self._order = list(order)

    @property
    def held_bytes(self) -> int:
        """Device memory of all members."""
        return sum(member.held_bytes for member in self.members)

    @property
    def room_bytes(self) -> int:
        """What the budget leaves for weights and activations."""
        budget = self.budget_bytes
        if budget is None:  # asked once a second, as a driver may take milliseconds
            now = time.monotonic()
            if self._asked is None or now - self._asked[0] > 1.0:
                self._asked = (now, self.carrier.total_bytes())
            budget = self._asked[1]
        return budget - self.carrier.outside_bytes() - self.carrier.slack_bytes(budget)

    @contextlib.contextmanager
    def running(self, member: Member) -> Iterator[None]:
        """Before one member runs, evict others until it has the room it can use."""
        wanted = min(member.weight_bytes, member.allowance())
        others = [m for m in self._by_next_use(member) if m.held_bytes and not m.running]
        while others and wanted + sum(m.held_bytes for m in others) > member.allowance():
            others.pop(0).let_go(f"room for {member.name}")
        yield

    def make_room(self, member: Member, used: Sequence[torch.Tensor]) -> bool:
        """Free device memory for a member that lacks some; False if there is none to free.

        The only place that decides who leaves: idle members, the one that is needed last first;
        then weights of the member itself that no open layer has; then those of members that it
        runs inside of. Memory of `used` stays.
        """
        others = self._by_next_use(member)
        idle = [m for m in others if m.held_bytes and not m.running]
        if idle:
            idle[0].let_go(f"room for {member.name}")
            self.carrier.tidy()
            return True
        return member.shed(used) or any(
            m.shed(used) for m in others if m.occupancy.is_inside_here()
        )

    def _by_next_use(self, member: Member) -> list[Member]:
        """The other members, the one needed latest first."""
        others = [m for m in self.members if m is not member]
        if member not in self._order:
            return others
        at = self._order.index(member)
        ahead = [*self._order[at + 1 :], *self._order[:at]]
        return sorted(others, key=lambda m: -ahead.index(m) if m in ahead else -len(ahead))
