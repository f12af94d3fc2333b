"""What all plans of a problem share: chunks, where each is used, and the ring sizes to try.

A course caches its results; that changes none of them.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from holdfast.residency.plan.model import Chunk, Plan, Problem
from holdfast.residency.stream.ring import aligned, find_offsets

RING_BYTES = tuple(size << 20 for size in (64, 128, 256, 384, 512, 768, 1024))
_GAPS = 4  # spare chunks to try, as chunks may not fit without gaps
_RING_TIMES = (1.0, 1.25, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0)  # times the need of one layer

Span = tuple[int, int, int]  # chunk, first use, last use


@dataclass(frozen=True, slots=True)
class Stays:
    """Where unpinned chunks are used, and the ring that decoding all of them needs."""

    spans: tuple[Span, ...]
    decoded_bytes: int


@dataclass(frozen=True, slots=True)
class Course:
    """A problem with its chunks, computed once for all plans."""

    problem: Problem
    chunks: tuple[Chunk, ...]
    uses: tuple[tuple[int, ...], ...]  # the chunks of each use
    pinned: frozenset[int]
    held_bytes: int  # of pinned chunks
    recurring: bool  # whether an unpinned chunk has several uses
    clock: tuple[float, ...]  # the beginning of each use, and the end of the last
    compute_ms: float
    _stays: dict[int, Stays] = field(default_factory=dict, compare=False, repr=False)
    made: dict[Any, Plan | None] = field(default_factory=dict, compare=False, repr=False)

    def stays(self, ring_bytes: int) -> Stays:
        """The stays with a ring of that size; uses near each other become one stay."""
        near = ring_bytes // 4 if self.recurring else 0
        if near not in self._stays:
            spans = tuple(s for s in _spans(self, near) if s[0] not in self.pinned)
            self._stays[near] = Stays(spans, _decoded_ring(self, spans))
        return self._stays[near]


def make_course(problem: Problem) -> Course:
    """Group the weights of a problem into chunks and find their uses."""
    chunks = _chunks(problem)
    home = {weight: i for i, chunk in enumerate(chunks) for weight in chunk.weights}
    uses = tuple(tuple(dict.fromkeys(home[w] for w in use.weights)) for use in problem.uses)
    pinned = frozenset(
        i for i, chunk in enumerate(chunks) if not problem.pinned.isdisjoint(chunk.weights)
    )
    moving = [i for use in uses for i in use if i not in pinned]
    return Course(
        problem=problem,
        chunks=chunks,
        uses=uses,
        pinned=pinned,
        held_bytes=sum(chunks[i].raw_bytes for i in pinned),
        recurring=len(moving) > len(set(moving)),
        clock=tuple(itertools.accumulate((use.compute_ms for use in problem.uses), initial=0.0)),
        compute_ms=problem.compute_ms,
    )


# ---- chunks and their uses


def _chunks(problem: Problem) -> tuple[Chunk, ...]:
    """Group weights by first use; a weight with several uses is a chunk of its own."""
    times = Counter(index for use in problem.uses for index in dict.fromkeys(use.weights))
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
    weights = [problem.weights[index] for index in group]
    raws = itertools.accumulate((aligned(w.raw_bytes) for w in weights), initial=0)
    payloads = itertools.accumulate((aligned(w.payload_bytes) for w in weights), initial=0)
    *raw_offsets, raw = raws
    *payload_offsets, payload = payloads
    offsets = (tuple(raw_offsets), tuple(payload_offsets))
    return Chunk(tuple(group), *offsets, raw, payload, weights[0].packed)


def _spans(course: Course, near: int) -> list[Span]:
    """Spans in order; uses with at most `near` bytes between them are one span."""
    spans: list[Span] = []
    last: dict[int, int] = {}  # chunk -> index of its latest span
    seen_bytes = 0  # of chunks begun so far
    at: dict[int, int] = {}
    for number, use in enumerate(course.uses):
        for index in use:
            span = last.get(index)
            if span is not None and seen_bytes - at[index] <= near:
                spans[span] = (index, spans[span][1], number)
            else:
                last[index] = len(spans)
                spans.append((index, number, number))
                seen_bytes += course.chunks[index].raw_bytes
            at[index] = seen_bytes
    return spans


# ---- sizes of rings


def list_ring_sizes(course: Course) -> list[int]:
    """Ring sizes to try, from the need of the largest layer upwards."""
    needs = [
        sum(course.chunks[i].payload_bytes for i in use if i not in course.pinned)
        for use in course.uses
    ]
    least = max(needs, default=0)
    scaled = [aligned(int(least * times)) for times in _RING_TIMES]
    return sorted({*scaled, *(size for size in RING_BYTES if size > least * 1.1)})


def _decoded_ring(course: Course, spans: Sequence[Span]) -> int:
    """The ring for packed chunks: the most in use at once, and spare chunks because of gaps."""
    chunks = course.chunks
    stays = [(chunks[c].raw_bytes, first, last) for c, first, last in spans if chunks[c].packed]
    open_bytes = [0] * (len(course.uses) + 1)
    for size, first, last in stays:
        for number in range(first, last + 1):
            open_bytes[number] += size
    largest = max((size for size, _, _ in stays), default=0)
    sizes = (max(open_bytes) + more * largest for more in range(_GAPS))
    return next((size for size in sizes if find_offsets(stays, size) is not None), sum(open_bytes))
