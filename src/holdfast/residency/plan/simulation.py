"""Simulates a pass with a plan to compute how long it takes; reads no clock."""

from __future__ import annotations

import math

from holdfast.residency.plan.model import Plan, Problem, Rates


def simulate(problem: Problem, plan: Plan, passes: int = 2) -> float:
    """Milliseconds of one pass in the steady state, with prefetching across passes."""
    if not plan.visits:
        return problem.compute_ms
    starts: list[list[int]] = [[] for _ in problem.uses]
    ends: list[list[int]] = [[] for _ in problem.uses]
    for number, visit in enumerate(plan.visits):
        starts[visit.first].append(number)
        if visit.decoded is None:  # others free their slot as soon as they are decoded
            ends[visit.last].append(number)
    computing = [use.compute_ms for use in problem.uses]
    freed = [-math.inf] * len(plan.visits)  # when the visit last freed its slot
    link = now = begun = 0.0
    for _ in range(passes):
        begun = now
        for beginning, compute_ms, ending in zip(starts, computing, ends, strict=True):
            for visit in beginning:
                link, now = _arrive(problem.rates, plan, visit, freed, link, now)
            now += compute_ms
            for visit in ending:
                freed[visit] = now
    return now - begun


def _arrive(
    rates: Rates, plan: Plan, number: int, freed: list[float], link: float, now: float
) -> tuple[float, float]:
    """Bring in a visit: when the link is free again, and when compute can continue."""
    visit = plan.visits[number]
    chunk = plan.chunks[visit.chunk]
    if visit.slot is not None:
        begin = link
        for earlier in visit.slot.after:
            if freed[earlier] > begin:
                begin = freed[earlier]
        link = begin + chunk.payload_bytes / rates.link_gb_s / 1e6 + rates.copy_ms
        now = max(now, link)
    if visit.decoded is not None:
        now += chunk.raw_bytes / rates.decode_gb_s / 1e6 + rates.copy_ms
        freed[number] = now
    return link, now
