"""Decide which weights stay on a device, and where and when the others pass through it.

Covers: groups of weights, keep-set, order and addresses in the rings, how long a pass will take,
the smallest budget that works.
Leaves to others: what is used when (trace), moving bytes (stream), time on real devices (rates).
Promise: everything here only reads its arguments; the same arguments give the same plan.

Words: a *weight* is a stretch of bytes that moves as one. A *use* is one run of a layer. A *chunk*
is a group of weights that are used one after the other, and is kept or streamed as a whole. A
*visit* is one stay of a chunk in the ring, from its first use to its last. Packed chunks cross the
link as their payload, and their first use begins with decoding them into a second ring.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from holdfast.base.errors import OutOfMemory
from holdfast.base.units import format_bytes
from holdfast.residency.ring import ALIGNMENT, Slot, aligned, lay_out

CHUNK_BYTES = 96 << 20  # each costs the host some calls
RING_BYTES = tuple(size << 20 for size in (64, 128, 256, 384, 512, 768, 1024))
_GAPS = 4  # of chunks that do not fit together in a ring without any
_PATIENCE = 3  # rings in a row that are no better
_RING_TIMES = (1.0, 1.25, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0)  # of what one layer needs


@dataclass(frozen=True, slots=True)
class Weight:
    """A stretch of bytes that moves as one: `raw_bytes` in use, `payload_bytes` over the link."""

    raw_bytes: int
    payload_bytes: int
    packed: bool = False


@dataclass(frozen=True, slots=True)
class Use:
    """One run of a layer: the numbers of its weights, and the time until the next layer begins."""

    weights: tuple[int, ...]
    compute_ms: float


@dataclass(frozen=True, slots=True)
class Rates:
    """How fast a device is beside its computing."""

    link_gb_s: float
    decode_gb_s: float = 1000.0
    copy_ms: float = 0.008  # what each copy costs besides its bytes


@dataclass(frozen=True, slots=True)
class Chunk:
    """Weights that are kept or streamed together; offsets are those inside of it."""

    weights: tuple[int, ...]
    raw_offsets: tuple[int, ...]
    payload_offsets: tuple[int, ...]
    raw_bytes: int
    payload_bytes: int
    packed: bool

    @property
    def kept_bytes(self) -> int:
        """What it takes on the device when it stays there decoded."""
        return self.raw_bytes


@dataclass(frozen=True, slots=True)
class Visit:
    """A stay of a chunk, from the beginning of use `first` to the end of use `last`.

    `slot` is its place in the ring (None for a chunk that is kept packed), `decoded` its place in
    the ring of decoded chunks (None for one that is not packed).
    """

    chunk: int
    first: int
    last: int
    slot: Slot | None
    decoded: Slot | None


@dataclass(frozen=True, slots=True)
class Plan:
    """What stays, what passes through, and how long one pass will take."""

    chunks: tuple[Chunk, ...]
    kept: frozenset[int]  # chunks that stay decoded
    kept_packed: frozenset[int]  # chunks that stay as payload and are decoded for each use
    visits: tuple[Visit, ...]
    ring_bytes: int
    decoded_bytes: int
    kept_bytes: int
    streamed_bytes: int  # over the link in one pass
    step_ms: float
    floor_ms: float  # computing, or what crosses the link, whichever is longer

    @property
    def device_bytes(self) -> int:
        """What all of it takes on the device."""
        return self.kept_bytes + self.ring_bytes + self.decoded_bytes


@dataclass(frozen=True, slots=True)
class Problem:
    """What a plan is made for. `pinned` are weights that can only stay."""

    weights: tuple[Weight, ...]
    uses: tuple[Use, ...]
    rates: Rates
    pinned: frozenset[int] = frozenset()
    chunk_bytes: int = CHUNK_BYTES

    @property
    def compute_ms(self) -> float:
        """A pass in which no weight has to be waited for."""
        return sum(use.compute_ms for use in self.uses)


def make(
    problem: Problem, allowance_bytes: int, keep_bytes: int | None = None, what: str = "the model"
) -> Plan:
    """The fastest plan that takes at most `allowance_bytes` for weights.

    `keep_bytes` says how much to keep at most, whatever the allowance would let stay.
    Raises OutOfMemory that names the smallest allowance that works.
    """
    chunks = _chunks(problem)
    whole = _resident(problem, chunks)
    limit = allowance_bytes if keep_bytes is None else min(allowance_bytes, keep_bytes)
    if whole.device_bytes <= limit:
        return whole
    found = _ways(problem, chunks, allowance_bytes, keep_bytes)
    if not found:
        # Chunks of several layers need more of the ring than any layer does.
        fine = replace(problem, chunk_bytes=1)
        parts = _chunks(fine)
        found = _ways(fine, parts, allowance_bytes, keep_bytes)
        least = smallest_bytes(problem, keep_bytes)
        if not found and least <= allowance_bytes:
            # What more room keeps can leave the others without a place in any ring.
            found = _ways(fine, parts, least, keep_bytes)
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


def _ways(
    problem: Problem,
    chunks: tuple[Chunk, ...],
    allowance_bytes: int,
    keep_bytes: int | None,
) -> list[Plan]:
    """Plans with rings of several sizes, with packed and with decoded chunks that stay.

    Larger rings are tried as long as they help.
    """
    found: list[Plan] = []
    for packed in _packing(chunks):
        best, idle = math.inf, 0
        for ring_bytes in _rings(problem, chunks):
            plan = _streaming(problem, chunks, allowance_bytes, ring_bytes, packed, keep_bytes)
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
    fine = replace(problem, chunk_bytes=1)
    chunks = _chunks(fine)
    rings = _rings(fine, chunks)
    ways = [(ring, packed) for ring in rings for packed in _packing(chunks)]
    whole = _resident(fine, chunks).device_bytes
    low, high = 0, 2 * sum(c.raw_bytes + c.payload_bytes for c in chunks) + ALIGNMENT
    if keep_bytes is None or whole <= keep_bytes:
        high = min(high, whole)
    while high - low > ALIGNMENT:
        middle = (low + high) // 2
        if any(_streaming(fine, chunks, middle, *way, keep_bytes) for way in ways):
            high = middle
        else:
            low = middle
    return high


def _packing(chunks: Sequence[Chunk]) -> tuple[bool, ...]:
    """Whether what stays can stay packed."""
    return (False, True) if any(chunk.packed for chunk in chunks) else (False,)


# ---- chunks and visits


def _chunks(problem: Problem) -> tuple[Chunk, ...]:
    """Weights in the order of their first use, grouped; those used several times stand alone."""
    times: dict[int, int] = {}
    for use in problem.uses:
        for index in dict.fromkeys(use.weights):
            times[index] = times.get(index, 0) + 1
    groups: list[list[int]] = []
    group: list[int] = []
    size = 0
    for index in times:
        weight = problem.weights[index]
        if times[index] > 1 or index in problem.pinned:
            groups.append([index])
            continue
        mixed = bool(group) and problem.weights[group[0]].packed != weight.packed
        if not group or mixed or size + weight.raw_bytes > problem.chunk_bytes:
            group = []
            groups.append(group)
            size = 0
        group.append(index)
        size += weight.raw_bytes
    return tuple(_chunk(problem, group) for group in groups)


def _chunk(problem: Problem, group: Sequence[int]) -> Chunk:
    raw = payload = 0
    raw_offsets: list[int] = []
    payload_offsets: list[int] = []
    for index in group:
        raw_offsets.append(raw)
        payload_offsets.append(payload)
        raw += aligned(problem.weights[index].raw_bytes)
        payload += aligned(problem.weights[index].payload_bytes)
    packed = problem.weights[group[0]].packed
    return Chunk(tuple(group), tuple(raw_offsets), tuple(payload_offsets), raw, payload, packed)


def _pinned_chunks(problem: Problem, chunks: Sequence[Chunk]) -> list[int]:
    return [i for i, chunk in enumerate(chunks) if problem.pinned.intersection(chunk.weights)]


def _spans(problem: Problem, chunks: Sequence[Chunk], near: int) -> list[tuple[int, int, int]]:
    """(chunk, first use, last use), in order; uses with less than `near` bytes between are one."""
    home = {weight: i for i, chunk in enumerate(chunks) for weight in chunk.weights}
    spans: list[tuple[int, int, int]] = []
    last: dict[int, int] = {}  # chunk -> its latest span
    seen_bytes = 0  # of chunks begun so far
    at: dict[int, int] = {}
    for number, use in enumerate(problem.uses):
        for index in dict.fromkeys(home[weight] for weight in use.weights):
            span = last.get(index)
            if span is not None and seen_bytes - at[index] <= near:
                spans[span] = (index, spans[span][1], number)
            else:
                last[index] = len(spans)
                spans.append((index, number, number))
                seen_bytes += chunks[index].raw_bytes
            at[index] = seen_bytes
    return spans


# ---- plans


def _rings(problem: Problem, chunks: Sequence[Chunk]) -> list[int]:
    """Sizes of the ring worth trying, from what the hungriest layer needs."""
    pinned = set(_pinned_chunks(problem, chunks))
    home = {weight: i for i, chunk in enumerate(chunks) for weight in chunk.weights}
    needs = [
        sum(chunks[i].payload_bytes for i in {home[w] for w in use.weights} - pinned)
        for use in problem.uses
    ]
    least = max(needs, default=0)
    scaled = [aligned(int(least * times)) for times in _RING_TIMES]
    return sorted({*scaled, *(size for size in RING_BYTES if size > least * 1.1)})


def _resident(problem: Problem, chunks: tuple[Chunk, ...]) -> Plan:
    every = frozenset(range(len(chunks)))
    kept = sum(chunk.kept_bytes for chunk in chunks)
    compute = problem.compute_ms
    return Plan(chunks, every, frozenset(), (), 0, 0, kept, 0, compute, compute)


def _streaming(
    problem: Problem,
    chunks: tuple[Chunk, ...],
    allowance_bytes: int,
    ring_bytes: int,
    packed: bool,
    keep_bytes: int | None,
) -> Plan | None:
    """A plan with a ring of about that size, or None if it does not fit."""
    pinned = frozenset(_pinned_chunks(problem, chunks))
    spans = [s for s in _spans(problem, chunks, ring_bytes // 4) if s[0] not in pinned]
    held = sum(chunks[i].kept_bytes for i in pinned)
    decodes = [s for s in spans if chunks[s[0]].packed]
    decoded_bytes = _decoded_ring(problem, chunks, decodes)
    room = allowance_bytes - held - ring_bytes - decoded_bytes
    if room < 0:
        return None
    if keep_bytes is not None:
        room = max(0, min(room, keep_bytes - held))
    stay = _keep(problem, chunks, spans, room, packed)
    kept = pinned | {i for i in stay if not (packed and chunks[i].packed)}
    kept_packed = stay - kept
    streamed = [s for s in spans if s[0] not in stay]
    decoding = [s for s in spans if s[0] not in kept and chunks[s[0]].packed]
    slots = lay_out([(chunks[c].payload_bytes, f, n) for c, f, n in streamed], ring_bytes)
    places = lay_out([(chunks[c].raw_bytes, f, n) for c, f, n in decoding], decoded_bytes)
    if slots is None or places is None:
        return None
    staying = [span for span in spans if span[0] not in kept]
    slot_of = _numbered(staying, streamed, slots)
    place_of = _numbered(staying, decoding, places)
    visits = tuple(Visit(*span, slot_of.get(span), place_of.get(span)) for span in staying)
    kept_bytes = sum(chunks[i].kept_bytes for i in kept)
    kept_bytes += sum(chunks[i].payload_bytes for i in kept_packed)
    plan = Plan(
        chunks=chunks,
        kept=frozenset(kept),
        kept_packed=frozenset(kept_packed),
        visits=visits,
        ring_bytes=ring_bytes if streamed else 0,
        decoded_bytes=decoded_bytes if decoding else 0,
        kept_bytes=kept_bytes,
        streamed_bytes=sum(chunks[c].payload_bytes for c, _, _ in streamed),
        step_ms=0.0,
        floor_ms=0.0,
    )
    link_ms = plan.streamed_bytes / problem.rates.link_gb_s / 1e6
    return replace(plan, step_ms=simulate(problem, plan), floor_ms=max(problem.compute_ms, link_ms))


def _numbered(
    visits: Sequence[tuple[int, int, int]],
    holders: Sequence[tuple[int, int, int]],
    slots: Sequence[Slot],
) -> dict[tuple[int, int, int], Slot]:
    """The slot of each visit that has one, its `after` in numbers of visits."""
    number = {span: i for i, span in enumerate(visits)}
    return {
        span: Slot(slot.offset, slot.nbytes, tuple(number[holders[i]] for i in slot.after))
        for span, slot in zip(holders, slots, strict=True)
    }


def _decoded_ring(
    problem: Problem, chunks: Sequence[Chunk], spans: Sequence[tuple[int, int, int]]
) -> int:
    """What is in use at once, as chunks are decoded when their first layer begins.

    Where that leaves gaps which are too small, there is room for some chunks more.
    """
    open_bytes = [0] * (len(problem.uses) + 1)
    for chunk, first, last in spans:
        for number in range(first, last + 1):
            open_bytes[number] += chunks[chunk].raw_bytes
    stays = [(chunks[c].raw_bytes, first, last) for c, first, last in spans]
    largest = max((size for size, _, _ in stays), default=0)
    sizes = (max(open_bytes) + more * largest for more in range(_GAPS))
    return next((size for size in sizes if lay_out(stays, size) is not None), sum(open_bytes))


def _keep(
    problem: Problem,
    chunks: Sequence[Chunk],
    spans: Sequence[tuple[int, int, int]],
    room_bytes: int,
    packed: bool,
) -> set[int]:
    """Chunks that stay: first what would cross the link several times, then spread over time."""
    size = [chunk.payload_bytes if packed else chunk.kept_bytes for chunk in chunks]
    times: dict[int, int] = {}
    for index, _, _ in spans:
        times[index] = times.get(index, 0) + 1
    stay: set[int] = set()
    for index in sorted(times, key=lambda i: (-times[i], size[i])):
        if times[index] > 1 and size[index] <= room_bytes:
            stay.add(index)
            room_bytes -= size[index]
    rest = [span for span in spans if span[0] not in stay]
    streamed_target = max(0, sum(size[c] for c, _, _ in rest) - room_bytes)
    clock = list(_clock(problem))
    total_ms = clock[-1] or 1.0
    streamed = 0
    for index, _, last in rest:
        due = streamed_target * clock[last + 1] / total_ms
        if streamed + size[index] / 2 <= due or size[index] > room_bytes:
            streamed += size[index]
        else:
            stay.add(index)
            room_bytes -= size[index]
    for index, _, _ in sorted(rest, key=lambda span: -size[span[0]]):
        if index not in stay and size[index] <= room_bytes:
            stay.add(index)
            room_bytes -= size[index]
    return stay


def _clock(problem: Problem) -> Iterator[float]:
    """The time at the beginning of each use, and at the end of the last."""
    now = 0.0
    yield now
    for use in problem.uses:
        now += use.compute_ms
        yield now


# ---- time


def simulate(problem: Problem, plan: Plan, passes: int = 2) -> float:
    """Milliseconds of one pass in the steady state, with prefetching across passes."""
    if not plan.visits:
        return problem.compute_ms
    starts: dict[int, list[int]] = {}
    ends: dict[int, list[int]] = {}
    for number, visit in enumerate(plan.visits):
        starts.setdefault(visit.first, []).append(number)
        ends.setdefault(visit.last, []).append(number)
    freed = [-math.inf] * len(plan.visits)  # when its place in the ring was last free
    link = now = begun = 0.0
    for _ in range(passes):
        begun = now
        for number, use in enumerate(problem.uses):
            for visit in starts.get(number, ()):
                link, now = _arrive(problem.rates, plan, visit, freed, link, now)
            now += use.compute_ms
            for visit in ends.get(number, ()):
                if plan.visits[visit].decoded is None:
                    freed[visit] = now
    return now - begun


def _arrive(
    rates: Rates, plan: Plan, number: int, freed: list[float], link: float, now: float
) -> tuple[float, float]:
    """When the link is free again, and when computing has the visit and goes on."""
    visit = plan.visits[number]
    chunk = plan.chunks[visit.chunk]
    if visit.slot is not None:
        begin = max([link, *(freed[i] for i in visit.slot.after)])
        link = begin + chunk.payload_bytes / rates.link_gb_s / 1e6 + rates.copy_ms
        now = max(now, link)
    if visit.decoded is not None:
        now += chunk.raw_bytes / rates.decode_gb_s / 1e6 + rates.copy_ms
        freed[number] = now
    return link, now
