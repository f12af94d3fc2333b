"""Decide which pages would lie better elsewhere.

Covers: pages far from what uses them, domains that are nearly full.
Leaves to others: looking and moving (balance), where a new allocation goes (placement).
Promise: `propose` only reads its arguments; no move it proposes brings its target near full, and
where all are done again and again nothing is left to propose.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from holdfast.base.errors import BadInput, Unsupported
from holdfast.base.units import format_bytes
from holdfast.memory.svm.model import PAGE_BYTES, Domain, Layout, Placement
from holdfast.memory.svm.placement import KEPT_BYTES, place

# A domain is nearly full where less than this is free: a share of it, and never less than bytes.
LOW_SHARE = 0.05
LOW_BYTES = 2 * KEPT_BYTES

Rule = Literal["locality", "pressure"]


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """One allocation at one moment."""

    key: int  # the generation of its handle
    size: int
    pages: dict[int, int]  # by domain
    placement: Placement
    cpus: tuple[int, ...] = ()  # that use it; none where nobody knows
    page_bytes: int = PAGE_BYTES

    def bytes_in(self, domain: int) -> int:
        """Bytes of its pages in a domain."""
        return self.pages.get(domain, 0) * self.page_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """Pages of one allocation that would lie better elsewhere."""

    key: int
    from_domain: int
    to_domain: int
    bytes: int
    rule: Rule
    reason: str
    # What its user gets there of what it gets now: twice the bandwidth, or memory twice as near, is
    # 2.0; below 1 is worse, None is unknown.
    gain: float | None = None
    measured: bool = False  # by bandwidths that were measured, else by the kernel's distances


def propose(
    layout: Layout, states: Sequence[State], *, resting: Collection[int] = ()
) -> tuple[Proposal, ...]:
    """Moves that would help, in the order to do them; none of an allocation that is `resting`.

    First pages that are far from what uses their allocation, largest first; then one allocation
    out of each domain that is nearly full. Each counts on those before it. What somebody put into
    a domain by its number stays there.
    """
    books = _Books(layout, states)
    movable = [s for s in states if s.key not in resting and not s.placement.pinned]
    found = list(_homewards(books, movable))
    taken = {proposal.key for proposal in found}
    found += _relief(books, [state for state in movable if state.key not in taken])
    return tuple(found)


def low_bytes(domain: Domain) -> int:
    """What has to be free in a domain that is not nearly full."""
    return max(LOW_BYTES, int((domain.total_bytes or 0) * LOW_SHARE))


def home_of(layout: Layout, state: State) -> tuple[Domain, str] | None:
    """The domain beside what uses an allocation, and the reason; None where there is no such one.

    One that is interleaved was spread on purpose, and has none.
    """
    if state.placement.mode == "interleave":
        return None
    if state.placement.near is not None:
        try:
            placed = place(layout, 0, near=state.placement.near)  # 0 bytes fit anywhere
        except (BadInput, Unsupported):  # a card that is not there any more
            return None
        [home] = (d for d in layout.domains if d.id in placed.domains)
        return home, placed.reason
    beside = [d for d in layout.domains if set(d.cpus) & set(state.cpus)]
    if len(beside) != 1:
        return None
    return beside[0], f"the CPUs that use it are those of {beside[0].name}"


class _Books:
    """What is free in the domains, and held by us, as if the proposals so far were done."""

    def __init__(self, layout: Layout, states: Sequence[State]) -> None:
        self.layout = layout
        self.free = {d.id: d.free_bytes for d in layout.domains if d.free_bytes is not None}
        self.held = {d.id: sum(s.bytes_in(d.id) for s in states) for d in layout.domains}

    def takes(self, target: Domain, count: int) -> bool:
        """Whether so many more bytes leave a domain with enough; not where that is unknown."""
        return target.id in self.free and self.free[target.id] - count >= low_bytes(target)

    def nearly_full(self, domain: Domain) -> bool:
        return domain.id in self.free and self.free[domain.id] < low_bytes(domain)

    def ours(self, domain: Domain) -> bool:
        """Whether it would not be nearly full without us."""
        return self.free[domain.id] + self.held[domain.id] >= low_bytes(domain)

    def enter(self, source: int, target: int, count: int) -> None:
        for domain, more in ((source, count), (target, -count)):
            self.held[domain] -= more
            if domain in self.free:
                self.free[domain] += more


def _homewards(books: _Books, states: Sequence[State]) -> Iterator[Proposal]:
    """Pages that are remote from what uses them, largest first, as long as there is room."""
    remote = [
        (state, source, *home)
        for state in states
        if (home := home_of(books.layout, state)) is not None
        for source in books.layout.domains
        if source is not home[0] and state.bytes_in(source.id)
    ]
    for state, source, home, why in sorted(remote, key=lambda r: -r[0].bytes_in(r[1].id)):
        count = state.bytes_in(source.id)
        if not books.takes(home, count):
            continue
        far, near = (_distance(books.layout, home, d) for d in (source, home))
        reason = (
            f"{format_bytes(count)} are on {source.name} (distance {far}), and {why} (distance "
            f"{near}), which has {format_bytes(books.free[home.id])} free"
        )
        books.enter(source.id, home.id, count)
        yield Proposal(
            key=state.key,
            from_domain=source.id,
            to_domain=home.id,
            bytes=count,
            rule="locality",
            reason=reason,
            **_gain(books.layout, home, source, home),
        )


def _relief(books: _Books, states: Sequence[State]) -> Iterator[Proposal]:
    """For each domain that is nearly full, the largest of ours in it that has a place to go."""
    left = list(states)
    for source in books.layout.domains:
        if not books.nearly_full(source):
            continue
        for state in sorted(left, key=lambda s: -s.bytes_in(source.id)):
            count = state.bytes_in(source.id)
            home = (home_of(books.layout, state) or (None,))[0]
            if not count or (home is source and not books.ours(source)):
                continue
            target = next((d for d in _nearest(books, source) if books.takes(d, count)), None)
            if target is not None:
                left.remove(state)
                yield _out_of(books, state, source, target, home)
                break


def _out_of(
    books: _Books, state: State, source: Domain, target: Domain, home: Domain | None
) -> Proposal:
    count = state.bytes_in(source.id)
    reason = (
        f"{source.name} has {format_bytes(books.free[source.id])} free, and should keep "
        f"{format_bytes(low_bytes(source))}; {target.name} is the nearest with room for "
        f"{format_bytes(count)}: it has {format_bytes(books.free[target.id])} free"
    )
    books.enter(source.id, target.id, count)
    return Proposal(
        key=state.key,
        from_domain=source.id,
        to_domain=target.id,
        bytes=count,
        rule="pressure",
        reason=reason,
        **(_gain(books.layout, home, source, target) if home else {}),
    )


def _nearest(books: _Books, source: Domain) -> list[Domain]:
    """The other domains, nearest first; memory of a GPU is no place to put things away."""
    others = [d for d in books.layout.domains if d is not source and d.kind != "gpu"]
    layout, free = books.layout, books.free
    return sorted(
        others, key=lambda d: (layout.distance(source.id, d.id) or 255, -free.get(d.id, 0))
    )


def _gain(layout: Layout, user: Domain, source: Domain, target: Domain) -> dict[str, Any]:
    measured = layout.topology.measurements if layout.topology else ()
    reads = [m for m in measured if m.mode == "read" and m.target == user.name]
    rates = {m.source: m.bandwidth_gb_s for m in reads}
    before, after = rates.get(source.name), rates.get(target.name)
    if before and after:
        return {"gain": round(after / before, 2), "measured": True}
    far, near = layout.distance(user.id, source.id), layout.distance(user.id, target.id)
    return {"gain": round(far / near, 2) if far and near else None}


def _distance(layout: Layout, source: Domain, target: Domain) -> str:
    return str(layout.distance(source.id, target.id) or "unknown")
