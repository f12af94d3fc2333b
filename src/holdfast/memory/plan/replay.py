"""Replays the events of a recording through an allocator: how much memory would it have taken?

A replay needs no memory of its own, and the same recording always gives the same bytes. Only ALLOC
and FREE events of blocks of at least one byte count. A block that is still alive when the recording
ends is freed after the last event.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

from holdfast.base.errors import BadInput, NotFound
from holdfast.base.units import format_bytes, format_seconds
from holdfast.memory.plan.packing import Span, max_live
from holdfast.memory.plan.planned_allocator import Planned, StepPlan
from holdfast.memory.plan.simulators import SIMULATORS
from holdfast.memory.pools.pool import Pool
from holdfast.memory.profile.recording import Recording
from holdfast.memory.resources.adaptors import Statistics
from holdfast.memory.resources.resource import Virtual

POOL, PLAN = "holdfast pool", "holdfast plan"


class Allocator(Protocol):
    """A resource that reports the most it took from the system."""

    def allocate(self, size: int) -> int: ...

    def free(self, address: int) -> None: ...

    @property
    def peak_reserved_bytes(self) -> int: ...


@dataclass(frozen=True)
class Requests:
    """Blocks numbered in the order of their allocation.

    `moves` holds n where block n is allocated, and ~n (that is -1 - n) where it is freed. Every
    block is freed in the end.
    """

    sizes: tuple[int, ...]  # bytes of each block
    moves: tuple[int, ...]

    @cached_property
    def spans(self) -> tuple[Span, ...]:
        """The lifetime of each block, in indices of `moves`."""
        starts, ends = [0] * len(self.sizes), [0] * len(self.sizes)
        for at, move in enumerate(self.moves):
            if move >= 0:
                starts[move] = at
            else:
                ends[~move] = at
        return tuple(map(Span, starts, ends, self.sizes))

    @cached_property
    def max_live_bytes(self) -> int:
        """The most requested bytes alive at once: no allocator takes less."""
        return max_live(self.spans)


@dataclass(frozen=True)
class Outcome:
    """The result of one allocator for a recording."""

    name: str
    peak_reserved_bytes: int
    max_live_bytes: int
    blocks: int
    seconds: float  # for all requests
    prepare_seconds: float = 0.0  # to make the plan, before the first request

    @property
    def ratio(self) -> float:
        """Peak reserved bytes over the most bytes alive at once: 1.0 wastes nothing."""
        return self.peak_reserved_bytes / self.max_live_bytes

    @property
    def request_ns(self) -> float:
        """Nanoseconds per block, allocation and free together."""
        return self.seconds * 1e9 / self.blocks


def requests(recording: Recording, place: int | None = None) -> Requests:
    """The blocks of one place (an index), or of all. Raises BadInput if there are none."""
    blocks = recording.pair()
    chosen = [
        (begin, end)
        for begin, end in zip(blocks.begins, blocks.ends, strict=True)
        if recording.sizes[begin] > 0 and place in (None, recording.places[begin])
    ]
    if not chosen:
        raise _empty(recording, place)
    # At one event a block ends before another one begins.
    moves = [(begin, 1, number) for number, (begin, _) in enumerate(chosen)]
    moves += [(end, 0, number) for number, (_, end) in enumerate(chosen)]
    sizes = tuple(recording.sizes[begin] for begin, _ in chosen)
    return Requests(sizes, tuple(n if begins else ~n for _, begins, n in sorted(moves)))


def spans(recording: Recording, place: int | None = None) -> tuple[Span, ...]:
    """The lifetimes of a recording's blocks; see `Requests.spans`."""
    return requests(recording, place).spans


def replay(
    recording: Recording | Requests, allocator: Allocator, name: str | None = None
) -> Outcome:
    """Run the recorded requests through `allocator`, in the same order."""
    wanted = recording if isinstance(recording, Requests) else requests(recording)
    seconds = _run(wanted, allocator)
    return Outcome(
        name or type(allocator).__name__,
        allocator.peak_reserved_bytes,
        wanted.max_live_bytes,
        len(wanted.sizes),
        seconds,
    )


def names() -> list[str]:
    """The allocators that `compare` knows, ours first."""
    return [POOL, PLAN, *SIMULATORS]


def compare(
    recording: Recording | Requests,
    names: Iterable[str] | None = None,
    progress: Callable[[int, int, str], object] | None = None,
) -> list[Outcome]:
    """The outcome of each allocator, in the order of `names` (None: all of them).

    `progress` is called with how many are done, of how many, and the name of the next.
    Raises NotFound for a name that is not in `names()`.
    """
    wanted = recording if isinstance(recording, Requests) else requests(recording)
    chosen = list(_known() if names is None else names)
    for name in chosen:
        if name not in _known():
            raise NotFound(
                f"there is no allocator {name!r} to compare with",
                expected=f"one of {', '.join(_known())}",
            )
    outcomes = []
    for done, name in enumerate(chosen):
        if progress is not None:
            progress(done, len(chosen), name)
        outcomes.append(_outcome(wanted, name))
    return outcomes


def table(outcomes: Sequence[Outcome]) -> str:
    """The outcomes as text, one line each."""
    heads = ("allocator", "peak reserved", "÷ max live", "per block")
    rows = [
        (o.name, format_bytes(o.peak_reserved_bytes), f"{o.ratio:.3f}", _per_block(o))
        for o in outcomes
    ]
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    lines = [_line(heads, widths), *(_line(row, widths) for row in rows)]
    if outcomes:
        first = outcomes[0]
        lines.insert(
            0, f"{first.blocks:,} blocks, {format_bytes(first.max_live_bytes)} alive at most\n"
        )
    slow = max((o.prepare_seconds for o in outcomes), default=0)
    if slow:
        lines.append(f"\nThe plan took {format_seconds(slow)} to make.")
    return "\n".join(lines)


def _per_block(outcome: Outcome) -> str:
    """The time per block; none for a simulator, whose own speed means nothing."""
    return "–" if outcome.name in SIMULATORS else f"{outcome.request_ns:,.0f} ns"


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    first, *rest = (f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=True))
    return "  ".join((cells[0].ljust(len(first)), *rest)).rstrip()


_known = names  # for use where a parameter hides `names`


def _run(wanted: Requests, allocator: Any) -> float:
    allocate, free, sizes = allocator.allocate, allocator.free, wanted.sizes
    addresses = [0] * len(sizes)
    start = time.perf_counter()
    for move in wanted.moves:
        if move >= 0:
            addresses[move] = allocate(sizes[move])
        else:
            free(addresses[~move])
    return time.perf_counter() - start


def _outcome(wanted: Requests, name: str) -> Outcome:
    if name == PLAN:
        return _plan_outcome(wanted)
    return replay(wanted, Pool(Virtual()) if name == POOL else SIMULATORS[name](), name)


def _plan_outcome(wanted: Requests) -> Outcome:
    """The whole recording as one step whose plan was made before it began."""
    start = time.perf_counter()
    plan = StepPlan.of([(span.size, span.start, span.end) for span in wanted.spans])
    ready = time.perf_counter()
    memory = Statistics(Virtual())
    planned = Planned(memory, plan)
    with planned.step():
        seconds = _run(wanted, planned)
    peak = memory.counter.peak_bytes
    blocks = len(wanted.sizes)
    return Outcome(PLAN, peak, wanted.max_live_bytes, blocks, seconds, ready - start)


def _empty(recording: Recording, place: int | None) -> BadInput:
    what = "the recording holds no blocks" if len(recording) else "the recording is empty"
    if place is not None and place < len(recording.places_table):
        where = recording.places_table[place]
        what = f"the recording holds no blocks of {where.source} on {where.device}"
    return BadInput(
        f"there is nothing to replay: {what}",
        expected="at least one block of one byte or more",
    )
