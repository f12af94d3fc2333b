"""Finds the fastest plan for a problem and a number of bytes, and the smallest number that works.

"Allowance" is the device memory for weights: kept chunks and both rings.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from holdfast.base.errors import OutOfMemory
from holdfast.base.units import format_bytes
from holdfast.residency.plan.course import Course, Span, list_ring_sizes, make_course
from holdfast.residency.plan.model import Chunk, Plan, Problem, Rates, Visit
from holdfast.residency.stream.ring import ALIGNMENT, RingSlot, find_offsets, lay_out

_PATIENCE = 3  # stop after so many larger rings without gain


def make(
    problem: Problem, allowance_bytes: int, keep_bytes: int | None = None, what: str = "the model"
) -> Plan:
    """Make the fastest plan that takes at most `allowance_bytes` for weights.

    `keep_bytes` limits the kept weights further. Raises OutOfMemory that names the smallest
    allowance that works.
    """
    course = make_course(problem)
    whole = plan_resident(course)
    limit = allowance_bytes if keep_bytes is None else min(allowance_bytes, keep_bytes)
    if whole.device_bytes <= limit:
        return whole
    found = _try_rings(course, allowance_bytes, keep_bytes)
    if not found:
        # Chunks of several layers need a larger ring than any single layer.
        course = make_course(replace(problem, chunk_bytes=1))
        found = _try_rings(course, allowance_bytes, keep_bytes)
    if not found:
        least = _search_smallest_bytes(course, keep_bytes)
        if least <= allowance_bytes:
            # Keeping more weights can leave too little ring space.
            found = _try_rings(course, least, keep_bytes)
        if not found:
            raise OutOfMemory(
                f"cannot run {what} with {format_bytes(max(0, allowance_bytes))} for its weights",
                expected=f"at least {format_bytes(least)}: its largest layer and pinned weights",
                hint="a larger budget, smaller pictures, or fewer of them at once",
            )
    # A ring twice as large for a thousandth of the time is not worth its bytes.
    fastest = min(plan.step_ms for plan in found)
    return min(
        (p for p in found if p.step_ms <= fastest * 1.001), key=lambda plan: plan.device_bytes
    )


def _try_rings(course: Course, allowance_bytes: int, keep_bytes: int | None) -> list[Plan]:
    """Plans with larger and larger rings while that helps, with kept chunks packed or decoded."""
    found: list[Plan] = []
    rings = list_ring_sizes(course)
    for packed in list_packing_options(course.chunks):
        best, idle = math.inf, 0
        for ring_bytes in rings:
            plan = plan_streaming(course, allowance_bytes, ring_bytes, packed, keep_bytes)
            if plan is None:
                continue
            found.append(plan)
            idle = 0 if plan.step_ms < best * 0.999 else idle + 1
            best = min(best, plan.step_ms)
            if idle == _PATIENCE:
                break
    return found


def find_smallest_bytes(problem: Problem, keep_bytes: int | None = None) -> int:
    """The smallest allowance that works."""
    return _search_smallest_bytes(make_course(replace(problem, chunk_bytes=1)), keep_bytes)


def _search_smallest_bytes(course: Course, keep_bytes: int | None) -> int:
    chunks = course.chunks
    ways = [
        (ring, packed)
        for ring in list_ring_sizes(course)
        for packed in list_packing_options(chunks)
    ]
    whole = plan_resident(course).device_bytes
    low, high = 0, 2 * sum(c.raw_bytes + c.payload_bytes for c in chunks) + ALIGNMENT
    if keep_bytes is None or whole <= keep_bytes:
        high = min(high, whole)
    while high - low > ALIGNMENT:
        middle = (low + high) // 2
        if any(_is_feasible(course, middle, *way, keep_bytes) for way in ways):
            high = middle
        else:
            low = middle
    return high


def list_packing_options(chunks: Sequence[Chunk]) -> tuple[bool, ...]:
    """Values to try for "kept chunks stay packed"."""
    return (False, True) if any(chunk.packed for chunk in chunks) else (False,)


# ---- one plan


def plan_resident(course: Course) -> Plan:
    """The plan in which every weight stays."""
    chunks, compute = course.chunks, course.compute_ms
    every = frozenset(range(len(chunks)))
    kept = sum(chunk.raw_bytes for chunk in chunks)
    return Plan(chunks, every, frozenset(), (), 0, 0, kept, 0, compute, compute)


def plan_streaming(
    course: Course, allowance_bytes: int, ring_bytes: int, packed: bool, keep_bytes: int | None
) -> Plan | None:
    """A plan with a ring of that size, or None if it does not fit."""
    split = _split(course, allowance_bytes, ring_bytes, packed, keep_bytes)
    if split is None:
        return None
    key = (ring_bytes, split.kept, split.kept_packed)
    if key not in course.made:  # the same for packed and decoded if nothing stays
        course.made[key] = _lay_out_plan(course, ring_bytes, split)
    return course.made[key]


def _is_feasible(
    course: Course, allowance_bytes: int, ring_bytes: int, packed: bool, keep_bytes: int | None
) -> bool:
    """Whether `plan_streaming` finds a plan, without making it."""
    split = _split(course, allowance_bytes, ring_bytes, packed, keep_bytes)
    if split is None:
        return False
    chunks, decoded_bytes = course.chunks, course.stays(ring_bytes).decoded_bytes
    payloads = [(chunks[c].payload_bytes, first, last) for c, first, last in split.streamed]
    raws = [(chunks[c].raw_bytes, first, last) for c, first, last in split.decoding]
    return (
        find_offsets(payloads, ring_bytes) is not None
        and find_offsets(raws, decoded_bytes) is not None
    )


def _lay_out_plan(course: Course, ring_bytes: int, split: _Split) -> Plan | None:
    """The plan for this split, or None if some spans do not fit into their ring."""
    chunks, stays = course.chunks, course.stays(ring_bytes)
    streamed, decoding = split.streamed, split.decoding
    slots = lay_out([(chunks[c].payload_bytes, f, n) for c, f, n in streamed], ring_bytes)
    if slots is None:
        return None
    places = lay_out([(chunks[c].raw_bytes, f, n) for c, f, n in decoding], stays.decoded_bytes)
    if places is None:
        return None
    passing = [span for span in stays.spans if span[0] not in split.kept]
    number = {span: i for i, span in enumerate(passing)}
    slot_of = _number_slots(number, streamed, slots)
    place_of = _number_slots(number, decoding, places)
    visits = tuple(Visit(*span, slot_of.get(span), place_of.get(span)) for span in passing)
    kept_bytes = sum(chunks[i].raw_bytes for i in split.kept)
    kept_bytes += sum(chunks[i].payload_bytes for i in split.kept_packed)
    streamed_bytes = sum(chunks[c].payload_bytes for c, _, _ in streamed)
    link_ms = streamed_bytes / course.problem.rates.link_gb_s / 1e6
    plan = Plan(
        chunks=chunks,
        kept=split.kept,
        kept_packed=split.kept_packed,
        visits=visits,
        ring_bytes=ring_bytes if streamed else 0,
        decoded_bytes=stays.decoded_bytes if decoding else 0,
        kept_bytes=kept_bytes,
        streamed_bytes=streamed_bytes,
        step_ms=0.0,
        floor_ms=max(course.compute_ms, link_ms),
    )
    return replace(plan, step_ms=simulate(course.problem, plan))


def _number_slots(
    number: dict[Span, int], holders: Sequence[Span], slots: Sequence[RingSlot]
) -> dict[Span, RingSlot]:
    """The slot of each span that has one, with `after` as indices of visits."""
    visits = [number[span] for span in holders]
    return {
        span: RingSlot(slot.offset, slot.nbytes, tuple(visits[i] for i in slot.after))
        for span, slot in zip(holders, slots, strict=True)
    }


# ---- what stays


@dataclass(frozen=True, slots=True)
class _Split:
    """Chunks that are kept decoded and packed, and the spans that need each ring."""

    kept: frozenset[int]
    kept_packed: frozenset[int]
    streamed: list[Span]
    decoding: list[Span]


def _split(
    course: Course, allowance_bytes: int, ring_bytes: int, packed: bool, keep_bytes: int | None
) -> _Split | None:
    """Choose what stays besides a ring of that size; None if the rings do not fit."""
    chunks, stays = course.chunks, course.stays(ring_bytes)
    room = allowance_bytes - course.held_bytes - ring_bytes - stays.decoded_bytes
    if room < 0:
        return None
    if keep_bytes is not None:
        room = max(0, min(room, keep_bytes - course.held_bytes))
    stay = _choose_kept(course, stays.spans, room, packed)
    kept = course.pinned | {i for i in stay if not (packed and chunks[i].packed)}
    return _Split(
        kept,
        frozenset(stay - kept),
        [s for s in stays.spans if s[0] not in stay],
        [s for s in stays.spans if chunks[s[0]].packed and s[0] not in kept],
    )


def _choose_kept(course: Course, spans: Sequence[Span], room_bytes: int, packed: bool) -> set[int]:
    """Chunks that stay: first those streamed several times, then others spread over the pass."""
    size = [chunk.payload_bytes if packed else chunk.raw_bytes for chunk in course.chunks]
    times = Counter(index for index, _, _ in spans)
    several = [index for index, count in times.items() if count > 1]
    stay: set[int] = set()
    for index in sorted(several, key=lambda i: (-times[i], size[i])):
        if size[index] <= room_bytes:
            stay.add(index)
            room_bytes -= size[index]
    rest = [span for span in spans if span[0] not in stay]
    streamed_target = max(0, sum(size[c] for c, _, _ in rest) - room_bytes)
    clock = course.clock
    total_ms = clock[-1] or 1.0
    streamed = 0
    for index, _, last in rest:
        due = streamed_target * clock[last + 1] / total_ms
        if streamed + size[index] / 2 <= due or size[index] > room_bytes:
            streamed += size[index]
        else:
            stay.add(index)
            room_bytes -= size[index]
    left = [index for index, _, _ in rest if index not in stay and size[index] <= room_bytes]
    for index in sorted(left, key=lambda index: -size[index]):
        if index not in stay and size[index] <= room_bytes:
            stay.add(index)
            room_bytes -= size[index]
    return stay


# ---- how long a pass takes


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
