"""Decide which pages to move: those far from their users, and those in nearly full domains.

`propose` only reads its arguments. No move makes its target nearly full, and applying the moves
again and again ends with none to propose.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from holdfast.base.errors import BadInput, Unsupported
from holdfast.base.units import format_bytes
from holdfast.memory.svm.model import PAGE_BYTES, Domain, Layout, Placement
from holdfast.memory.svm.placement import KEPT_BYTES, place

# A domain is nearly full if less than this is free: a share of its memory, at least LOW_BYTES.
LOW_SHARE = 0.05
LOW_BYTES = 2 * KEPT_BYTES

Rule = Literal["locality", "pressure"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocationState:
    """Where one allocation is at one moment."""

    key: int  # the generation of its handle
    size: int
    pages: dict[int, int]  # by domain
    placement: Placement
    cpus: tuple[int, ...] = ()  # that use it; empty if unknown
    page_bytes: int = PAGE_BYTES

    def bytes_in(self, domain: int) -> int:
        return self.pages.get(domain, 0) * self.page_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """A move of pages of one allocation to a better domain."""

    key: int
    from_domain: int
    to_domain: int
    bytes: int
    rule: Rule
    reason: str
    # For the user of the memory: 2.0 is twice the bandwidth, or half the distance; None is unknown.
    gain: float | None = None
    measured: bool = False  # gain by measured bandwidth, else by the kernel's distances


def propose(
    layout: Layout, states: Sequence[AllocationState], *, resting: Collection[int] = ()
) -> tuple[Proposal, ...]:
    """Propose moves, in the order to do them; allocations in `resting` (keys) are left alone.

    First pages that are far from the users of their allocation, largest first; then one allocation
    out of each nearly full domain. Each move assumes that those before it are done. Allocations
    whose domain was named by the caller stay.
    """
    forecast = _Forecast(layout, states)
    movable = [s for s in states if s.key not in resting and not s.placement.pinned]
    found = list(_propose_local(forecast, movable))
    taken = {proposal.key for proposal in found}
    found += _propose_relief(forecast, [state for state in movable if state.key not in taken])
    return tuple(found)


def low_bytes(domain: Domain) -> int:
    """A domain with less than this free is nearly full."""
    return max(LOW_BYTES, int((domain.total_bytes or 0) * LOW_SHARE))


def home_of(layout: Layout, state: AllocationState) -> tuple[Domain, str] | None:
    """The one domain beside the users of an allocation, and why; None if it is spread."""
    if state.placement.mode == "interleave":
        return None
    if state.placement.near is not None:
        try:
            placed = place(layout, 0, near=state.placement.near)  # 0 bytes fit anywhere
        except (BadInput, Unsupported):  # a GPU that is gone
            return None
        [home] = (d for d in layout.domains if d.id in placed.domains)
        return home, placed.reason
    beside = [d for d in layout.domains if set(d.cpus) & set(state.cpus)]
    if len(beside) != 1:
        return None
    return beside[0], f"the CPUs that use it are those of {beside[0].name}"


class _Forecast:
    """Free bytes and our own bytes by domain, as if the proposals so far were done."""

    def __init__(self, layout: Layout, states: Sequence[AllocationState]) -> None:
        self.layout = layout
        self.free = {d.id: d.free_bytes for d in layout.domains if d.free_bytes is not None}
        self.held = {d.id: sum(s.bytes_in(d.id) for s in states) for d in layout.domains}

    def takes(self, target: Domain, count: int) -> bool:
        """Whether `count` more bytes leave a domain above nearly full; False if unknown."""
        return target.id in self.free and self.free[target.id] - count >= low_bytes(target)

    def nearly_full(self, domain: Domain) -> bool:
        return domain.id in self.free and self.free[domain.id] < low_bytes(domain)

    def ours(self, domain: Domain) -> bool:
        """Whether it is nearly full because of our own allocations."""
        return self.free[domain.id] + self.held[domain.id] >= low_bytes(domain)

    def propose(
        self, state: AllocationState, ends: tuple[Domain, Domain], user: Domain | None, **why: Any
    ) -> Proposal:
        """A move from one end to the other, which is done from now on."""
        source, target = ends
        count = state.bytes_in(source.id)
        for domain, more in ((source.id, count), (target.id, -count)):
            self.held[domain] -= more
            if domain in self.free:
                self.free[domain] += more
        why |= _gain(self.layout, user, source, target) if user else {}
        return Proposal(
            key=state.key, from_domain=source.id, to_domain=target.id, bytes=count, **why
        )


def _propose_local(forecast: _Forecast, states: Sequence[AllocationState]) -> Iterator[Proposal]:
    """Move remote pages to the domain of their users, largest first, while there is room."""
    remote = [
        (state, source, *home)
        for state in states
        if (home := home_of(forecast.layout, state)) is not None
        for source in forecast.layout.domains
        if source is not home[0] and state.bytes_in(source.id)
    ]
    for state, source, home, why in sorted(remote, key=lambda r: -r[0].bytes_in(r[1].id)):
        count = state.bytes_in(source.id)
        if not forecast.takes(home, count):
            continue
        far, near = (_distance(forecast.layout, home, d) for d in (source, home))
        reason = (
            f"{format_bytes(count)} are on {source.name} (distance {far}), and {why} (distance "
            f"{near}), which has {format_bytes(forecast.free[home.id])} free"
        )
        yield forecast.propose(state, (source, home), home, rule="locality", reason=reason)


def _propose_relief(forecast: _Forecast, states: Sequence[AllocationState]) -> Iterator[Proposal]:
    left = list(states)
    for source in forecast.layout.domains:
        if not forecast.nearly_full(source):
            continue
        for state in sorted(left, key=lambda s: -s.bytes_in(source.id)):
            count = state.bytes_in(source.id)
            home = (home_of(forecast.layout, state) or (None,))[0]
            if not count or (home is source and not forecast.ours(source)):
                continue
            target = next((d for d in _nearest(forecast, source) if forecast.takes(d, count)), None)
            if target is not None:
                left.remove(state)
                yield _move_out(forecast, state, source, target, home)
                break


def _move_out(
    forecast: _Forecast, state: AllocationState, source: Domain, target: Domain, home: Domain | None
) -> Proposal:
    count = state.bytes_in(source.id)
    reason = (
        f"{source.name} has {format_bytes(forecast.free[source.id])} free, and should keep "
        f"{format_bytes(low_bytes(source))}; {target.name} is the nearest with room for "
        f"{format_bytes(count)}: it has {format_bytes(forecast.free[target.id])} free"
    )
    return forecast.propose(state, (source, target), home, rule="pressure", reason=reason)


def _nearest(forecast: _Forecast, source: Domain) -> list[Domain]:
    others = [d for d in forecast.layout.domains if d is not source and d.kind != "gpu"]
    layout, free = forecast.layout, forecast.free
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
