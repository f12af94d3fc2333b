"""Make the fastest plan that a problem and an allowance let be made.

Covers: keep-set, order and addresses in the rings, the smallest allowance that works.
Leaves to others: what all plans share (course), how long a pass takes (simulation).
Promise: the same arguments give the same plan; what cannot work raises and names what would.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from holdfast.base.errors import OutOfMemory
from holdfast.base.units import format_bytes
from holdfast.residency.plan.course import Course, Span, course_of, rings_of
from holdfast.residency.plan.model import Chunk, Plan, Problem, Visit
from holdfast.residency.plan.simulation import simulate
from holdfast.residency.ring import ALIGNMENT, Slot, find_offsets, lay_out

_PATIENCE = 3  # rings in a row that are no better


def make(
    problem: Problem, allowance_bytes: int, keep_bytes: int | None = None, what: str = "the model"
) -> Plan:
    """The fastest plan that takes at most `allowance_bytes` for weights.

    `keep_bytes` says how much to keep at most, whatever the allowance would let stay.
    Raises OutOfMemory that names the smallest allowance that works.
    """
    course = course_of(problem)
    whole = resident(course)
    limit = allowance_bytes if keep_bytes is None else min(allowance_bytes, keep_bytes)
    if whole.device_bytes <= limit:
        return whole
    found = _ways(course, allowance_bytes, keep_bytes)
    if not found:
        # Chunks of several layers need more of the ring than any layer does.
        course = course_of(replace(problem, chunk_bytes=1))
        found = _ways(course, allowance_bytes, keep_bytes)
    if not found:
        least = _smallest_bytes(course, keep_bytes)
        if least <= allowance_bytes:
            # What more room keeps can leave the others without a place in any ring.
            found = _ways(course, least, keep_bytes)
        if not found:
            raise OutOfMemory(
                f"cannot run {what} with {format_bytes(max(0, allowance_bytes))} for its weights",
                expected=f"at least {format_bytes(least)}: its largest layer and what always stays",
                hint="a larger budget, smaller pictures, or fewer of them at once",
            )
    # A ring that is twice as large for a thousandth of the time is not worth its bytes.
    fastest = min(plan.step_ms for plan in found)
    return min(
        (p for p in found if p.step_ms <= fastest * 1.001), key=lambda plan: plan.device_bytes
    )


def _ways(course: Course, allowance_bytes: int, keep_bytes: int | None) -> list[Plan]:
    """Plans with rings of several sizes, with packed and with decoded chunks that stay.

    Larger rings are tried as long as they help.
    """
    found: list[Plan] = []
    rings = rings_of(course)
    for packed in packing(course.chunks):
        best, idle = math.inf, 0
        for ring_bytes in rings:
            plan = streaming(course, allowance_bytes, ring_bytes, packed, keep_bytes)
            if plan is None:
                continue
            found.append(plan)
            idle = 0 if plan.step_ms < best * 0.999 else idle + 1
            best = min(best, plan.step_ms)
            if idle == _PATIENCE:
                break
    return found


def smallest_bytes(problem: Problem, keep_bytes: int | None = None) -> int:
    """The least that can be allowed for weights."""
    return _smallest_bytes(course_of(replace(problem, chunk_bytes=1)), keep_bytes)


def _smallest_bytes(course: Course, keep_bytes: int | None) -> int:
    chunks = course.chunks
    ways = [(ring, packed) for ring in rings_of(course) for packed in packing(chunks)]
    whole = resident(course).device_bytes
    low, high = 0, 2 * sum(c.raw_bytes + c.payload_bytes for c in chunks) + ALIGNMENT
    if keep_bytes is None or whole <= keep_bytes:
        high = min(high, whole)
    while high - low > ALIGNMENT:
        middle = (low + high) // 2
        if any(_works(course, middle, *way, keep_bytes) for way in ways):
            high = middle
        else:
            low = middle
    return high


def packing(chunks: Sequence[Chunk]) -> tuple[bool, ...]:
    """Whether what stays can stay packed."""
    return (False, True) if any(chunk.packed for chunk in chunks) else (False,)


# ---- one plan


def resident(course: Course) -> Plan:
    """The plan in which everything stays."""
    chunks, compute = course.chunks, course.compute_ms
    every = frozenset(range(len(chunks)))
    kept = sum(chunk.kept_bytes for chunk in chunks)
    return Plan(chunks, every, frozenset(), (), 0, 0, kept, 0, compute, compute)


def streaming(
    course: Course, allowance_bytes: int, ring_bytes: int, packed: bool, keep_bytes: int | None
) -> Plan | None:
    """A plan with a ring of about that size, or None if it does not fit."""
    shares = _shares(course, allowance_bytes, ring_bytes, packed, keep_bytes)
    if shares is None:
        return None
    key = (ring_bytes, shares.kept, shares.kept_packed)
    if key not in course.made:  # where nothing can stay, it is the same packed and not
        course.made[key] = _laid_out(course, ring_bytes, shares)
    return course.made[key]


def _works(
    course: Course, allowance_bytes: int, ring_bytes: int, packed: bool, keep_bytes: int | None
) -> bool:
    """Whether there is such a plan, without making it."""
    shares = _shares(course, allowance_bytes, ring_bytes, packed, keep_bytes)
    if shares is None:
        return False
    chunks, decoded_bytes = course.chunks, course.stays(ring_bytes).decoded_bytes
    payloads = [(chunks[c].payload_bytes, first, last) for c, first, last in shares.streamed]
    raws = [(chunks[c].raw_bytes, first, last) for c, first, last in shares.decoding]
    return (
        find_offsets(payloads, ring_bytes) is not None
        and find_offsets(raws, decoded_bytes) is not None
    )


def _laid_out(course: Course, ring_bytes: int, shares: _Shares) -> Plan | None:
    """The plan for these shares, or None if some have no place in their ring."""
    chunks, stays = course.chunks, course.stays(ring_bytes)
    streamed, decoding = shares.streamed, shares.decoding
    slots = lay_out([(chunks[c].payload_bytes, f, n) for c, f, n in streamed], ring_bytes)
    if slots is None:
        return None
    places = lay_out([(chunks[c].raw_bytes, f, n) for c, f, n in decoding], stays.decoded_bytes)
    if places is None:
        return None
    passing = [span for span in stays.spans if span[0] not in shares.kept]
    number = {span: i for i, span in enumerate(passing)}
    slot_of = _numbered(number, streamed, slots)
    place_of = _numbered(number, decoding, places)
    visits = tuple(Visit(*span, slot_of.get(span), place_of.get(span)) for span in passing)
    kept_bytes = sum(chunks[i].kept_bytes for i in shares.kept)
    kept_bytes += sum(chunks[i].payload_bytes for i in shares.kept_packed)
    streamed_bytes = sum(chunks[c].payload_bytes for c, _, _ in streamed)
    link_ms = streamed_bytes / course.problem.rates.link_gb_s / 1e6
    plan = Plan(
        chunks=chunks,
        kept=shares.kept,
        kept_packed=shares.kept_packed,
        visits=visits,
        ring_bytes=ring_bytes if streamed else 0,
        decoded_bytes=stays.decoded_bytes if decoding else 0,
        kept_bytes=kept_bytes,
        streamed_bytes=streamed_bytes,
        step_ms=0.0,
        floor_ms=max(course.compute_ms, link_ms),
    )
    return replace(plan, step_ms=simulate(course.problem, plan))


def _numbered(
    number: dict[Span, int], holders: Sequence[Span], slots: Sequence[Slot]
) -> dict[Span, Slot]:
    """The slot of each visit that has one, its `after` in numbers of visits."""
    numbers = [number[span] for span in holders]
    return {
        span: Slot(slot.offset, slot.nbytes, tuple(numbers[i] for i in slot.after))
        for span, slot in zip(holders, slots, strict=True)
    }


# ---- what stays


@dataclass(frozen=True, slots=True)
class _Shares:
    """What stays and what passes: chunks kept decoded and packed, spans that need a ring."""

    kept: frozenset[int]
    kept_packed: frozenset[int]
    streamed: list[Span]
    decoding: list[Span]


def _shares(
    course: Course, allowance_bytes: int, ring_bytes: int, packed: bool, keep_bytes: int | None
) -> _Shares | None:
    """What stays beside a ring of that size, or None if there is no room for the rings."""
    chunks, stays = course.chunks, course.stays(ring_bytes)
    room = allowance_bytes - course.held_bytes - ring_bytes - stays.decoded_bytes
    if room < 0:
        return None
    if keep_bytes is not None:
        room = max(0, min(room, keep_bytes - course.held_bytes))
    stay = _keep(course, stays.spans, room, packed)
    kept = course.pinned | {i for i in stay if not (packed and chunks[i].packed)}
    return _Shares(
        kept,
        frozenset(stay - kept),
        [s for s in stays.spans if s[0] not in stay],
        [s for s in stays.spans if chunks[s[0]].packed and s[0] not in kept],
    )


def _keep(course: Course, spans: Sequence[Span], room_bytes: int, packed: bool) -> set[int]:
    """Chunks that stay: first what would cross the link several times, then spread over time."""
    size = [chunk.payload_bytes if packed else chunk.kept_bytes for chunk in course.chunks]
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
