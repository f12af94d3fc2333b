"""`Autobalance`: propose or apply the moves of the policy, once or from a thread.

A move that fails is recorded in the history, not raised. After `stop` the thread touches no memory.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

from holdfast.base.errors import BadInput, HoldfastError, UseAfterFree
from holdfast.base.threads import Team
from holdfast.base.units import format_bytes, parse_bytes
from holdfast.memory.svm import choice
from holdfast.memory.svm.interface import Allocation, Provider
from holdfast.memory.svm.model import Migration, Stop
from holdfast.memory.svm.policy import AllocationState, Proposal, low_bytes, propose
from holdfast.topology.render import words

REST_ROUNDS = 3  # an allocation is left alone for so many rounds after a move or a failure
HISTORY = 1024
_TICK_S = 0.25  # how often the thread checks whether the main thread has ended

Status = Literal["moved", "partly", "failed", "skipped"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The result of applying a proposal."""

    proposal: Proposal
    status: Status
    why: str | None = None  # unless all of it was moved
    migration: Migration | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """One round: the moves proposed, and the moves done."""

    number: int
    seconds: float  # since the Autobalance was made
    proposals: tuple[Proposal, ...] = ()
    outcomes: tuple[Outcome, ...] = ()  # empty if moves are only proposed
    error: str | None = None  # that ended it early

    @property
    def moved_bytes(self) -> int:
        """Bytes in the pages that were moved."""
        return sum(o.migration.bytes_moved for o in self.outcomes if o.migration is not None)


def look(provider: Provider) -> tuple[AllocationState, ...]:
    """The state of every allocation that is referenced and has no operation in progress."""
    found = []
    for handle in provider.ledger.handles() if provider.balances else ():
        with contextlib.suppress(UseAfterFree):  # another thread freed it just now
            record = provider.ledger.record(handle)
            if record.busy is None:
                found.append(_state(provider, handle, record.grant.cpus if record.grant else None))
    return tuple(found)


def _state(
    provider: Provider, handle: Allocation, bound: Collection[int] | None
) -> AllocationState:
    if provider.simulated:  # its CPUs run no work: use those of the placement
        bound = handle.placement.cpus
    where = provider.where(handle)
    return AllocationState(
        key=handle.generation,
        size=handle.size,
        pages=where.pages,
        placement=handle.placement,
        cpus=tuple(sorted(provider.running_on() if bound is None else bound)),
        page_bytes=where.page_bytes,
    )


class Autobalance(contextlib.AbstractContextManager["Autobalance"]):
    """Looks up where the pages of one provider are, and proposes moves or does them.

        balance = memory.autobalance()
        for move in balance.propose():
            print(move.reason)

        with memory.autobalance(apply=True, every_s=5, limit_bytes="1GB"):
            ...                                       # a thread runs a round every 5 s

    With `apply` moves are done, else only proposed. A round moves at most `limit_bytes`.
    A round looks up every page, which takes a while for many GB: choose a long `every_s`. While an
    allocation is moved it cannot be freed: that raises InUse, as for any migration. The thread runs
    until `stop`, or until the main thread ends.
    """

    def __init__(
        self,
        provider: Provider | str | None = None,
        *,
        apply: bool = False,
        every_s: float | None = None,
        limit_bytes: int | str | None = None,
    ) -> None:
        """Raises BadInput for a bad `every_s` or `limit_bytes`, and as `svm.provider` does."""
        is_pause = isinstance(every_s, int | float) and 0 < every_s < threading.TIMEOUT_MAX
        if every_s is not None and not is_pause:
            raise BadInput(
                f"cannot look every {every_s!r} s", expected="a number of seconds above 0, or None"
            )
        self.limit_bytes = None if limit_bytes is None else parse_bytes(limit_bytes)
        self.provider = provider if isinstance(provider, Provider) else choice.provider(provider)
        self.apply, self.every_s = apply, every_s
        self._rounds: deque[Round] = deque(maxlen=HISTORY)
        self._number = self._moves = self._moved_bytes = 0
        self._rests: dict[int, int] = {}  # by generation: last round the allocation is left alone
        self._began = time.monotonic()
        self._one = threading.RLock()  # one round at a time
        self._team: Team | None = None
        self._stopping = threading.Event()

    def propose(self) -> tuple[Proposal, ...]:
        """Propose moves; does nothing, and counts no round."""
        with self._one:
            resting = [key for key, last in self._rests.items() if last > self._number]
        return propose(self.provider.discover(), look(self.provider), resting=resting)

    def round(self) -> Round:
        """Propose moves once; with `apply`, do them in that order.

        Moves that fail are in the result. Ctrl-C is handled between the chunks of a move; what was
        done until then is in the history.
        """
        return self._round(None)

    def _round(self, stop: Stop | None) -> Round:
        with self._one:
            proposals: tuple[Proposal, ...] = ()
            outcomes: list[Outcome] = []
            error: str | None = "interrupted"
            try:
                proposals = self.propose()
                for proposal in proposals if self.apply else ():
                    outcomes.append(self._do(proposal, outcomes, stop))
                error = None
            except Exception as exc:
                error = f"{type(exc).__name__}: {exc}"
                raise
            finally:
                self._keep(proposals, outcomes, error)
            return self._rounds[-1]

    def _keep(
        self, proposals: tuple[Proposal, ...], outcomes: list[Outcome], error: str | None
    ) -> None:
        self._number += 1
        for outcome in outcomes:
            stopped = outcome.migration is not None and outcome.migration.interrupted
            if outcome.status != "skipped" and not stopped:
                self._rests[outcome.proposal.key] = self._number + REST_ROUNDS
        self._rests = {key: last for key, last in self._rests.items() if last > self._number}
        done = Round(
            number=self._number,
            seconds=round(time.monotonic() - self._began, 6),
            proposals=proposals,
            outcomes=tuple(outcomes),
            error=error,
        )
        self._moves += sum(bool(o.migration and o.migration.pages_moved) for o in outcomes)
        self._moved_bytes += done.moved_bytes
        self._rounds.append(done)

    def _do(self, proposal: Proposal, before: list[Outcome], stop: Stop | None) -> Outcome:
        why = self._obstacle(proposal, before, stop)
        handles = [] if why else self.provider.ledger.handles()
        handle = next((one for one in handles if one.generation == proposal.key), None)
        if handle is None:
            return Outcome(proposal=proposal, status="skipped", why=why or "it was freed meanwhile")
        source, target = proposal.from_domain, proposal.to_domain
        try:
            done = self.provider.migrate(handle, source, target, stop=stop)
        except UseAfterFree:
            return Outcome(proposal=proposal, status="skipped", why="it was freed meanwhile")
        except (HoldfastError, OSError) as exc:
            return Outcome(proposal=proposal, status="failed", why=str(exc))
        return _outcome(proposal, done)

    def _obstacle(self, proposal: Proposal, before: list[Outcome], stop: Stop | None) -> str | None:
        """Why a move is skipped: memory may have changed since it was proposed."""
        if stop is not None and stop():
            return "autobalance was stopped"
        moved = sum(o.migration.bytes_moved for o in before if o.migration is not None)
        if self.limit_bytes is not None and moved + proposal.bytes > self.limit_bytes:
            return (
                f"{format_bytes(proposal.bytes)} after {format_bytes(moved)} is more than the "
                f"{format_bytes(self.limit_bytes)} that a round may move"
            )
        target = self.provider.discover().domain(proposal.to_domain)
        if target is None or target.free_bytes is None:
            return f"the free memory of domain {proposal.to_domain} is unknown now"
        if target.free_bytes - proposal.bytes < low_bytes(target):
            return f"{target.name} has {format_bytes(target.free_bytes)} free by now"
        return None

    @property
    def running(self) -> bool:
        return self._team is not None

    def start(self) -> Autobalance:
        """Start the thread: a round every `every_s` seconds, the first at once. Raises BadInput."""
        if self.every_s is None:
            raise BadInput(
                "cannot start a thread without every_s",
                expected="seconds between two rounds",
                hint="memory.autobalance(every_s=5)",
            )
        with self._one:
            if self._team is not None:
                return self
            self._stopping = threading.Event()
            self._team = Team()
        try:
            self._team.start(self._watch, self.every_s, self._stopping)
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """Stop the thread; a move in progress stops after its chunk.

        Returns when the thread has ended, also after Ctrl-C, which is raised then.
        """
        team = self._team
        if team is None:
            return
        self._stopping.set()
        try:
            team.__exit__(None, None, None)
        finally:
            self._team = None

    def __enter__(self) -> Autobalance:
        return self.start() if self.every_s is not None else self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _watch(self, every_s: float, stopping: threading.Event) -> None:
        """The thread. It must end by itself with the main thread, which joins it at exit."""

        def over() -> bool:
            return stopping.is_set() or not threading.main_thread().is_alive()

        while not over():
            with contextlib.suppress(Exception):  # it is in the history
                self._round(over)
            due = time.monotonic() + every_s
            while not over() and (left := due - time.monotonic()) > 0:
                stopping.wait(min(left, _TICK_S))

    @property
    def history(self) -> tuple[Round, ...]:
        """The rounds so far, oldest first; the last 1024 of them."""
        return tuple(self._rounds)

    def text(self) -> str:
        """A summary for people."""
        made_up = ", a made-up machine" if self.provider.simulated else ""
        moves = f"{words.count(self._moves, 'move')} of {format_bytes(self._moved_bytes)}"
        does = moves if self.apply else "moves are only proposed"
        lines = [f"{self.provider.name}{made_up}: {words.count(self._number, 'round')}, {does}"]
        last = self._rounds[-1] if self._rounds else None
        if last is not None and last.error:
            lines.append(f"the last round failed: {last.error}")
        elif last is not None and not last.proposals:
            lines.append("nothing to move in the last round")
        elif last is not None:
            results = {id(o.proposal): o for o in last.outcomes}
            lines += [_line(p, results.get(id(p))) for p in last.proposals]
        return "\n".join(lines)


autobalance = Autobalance


def _outcome(proposal: Proposal, done: Migration) -> Outcome:
    if done.complete:
        return Outcome(proposal=proposal, status="moved", migration=done)
    left = [f"{count} pages: {reason}" for reason, count in done.not_moved.items()]
    if done.interrupted:
        left.append("autobalance was stopped")
    status: Status = "partly" if done.pages_moved else "failed"
    return Outcome(proposal=proposal, status=status, why="; ".join(left), migration=done)


def _line(proposal: Proposal, outcome: Outcome | None) -> str:
    status = "proposed" if outcome is None else outcome.status
    why = f" ({outcome.why})" if outcome is not None and outcome.why else ""
    what = "the bandwidth" if proposal.measured else "as near"
    gain = "" if proposal.gain is None else f"; {proposal.gain:g} times {what}"
    return (
        f"{status}{why}: allocation {proposal.key}, {format_bytes(proposal.bytes)} from domain "
        f"{proposal.from_domain} to {proposal.to_domain}: {proposal.reason}{gain}"
    )
