"""Offsets for blocks with known lifetimes, so that a whole step fits into one small block.

Blocks that are alive at once never overlap. The result depends on the arguments alone, not on the
clock.

How: blocks are placed one after the other, each in a gap that is free for its whole lifetime. The
order decides how good the layout is. If a block does not fit below the best height so far, it and
its likes (same size and same length of life: the same tensor in every layer) move before one of the
blocks in the way, and placing goes on from there. Blocks so small that all of them together hardly
matter get a region of their own, so that a hundred thousand of them do not slow down the others.
"""

from __future__ import annotations

import random
from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from holdfast.base.errors import BadInput

ROUNDING = 512
EFFORT = 8_000_000  # one or two seconds
FEW_PAIRS = 200_000  # pairs of blocks alive at once; above, small blocks are packed apart
MANY_PAIRS = 12_000_000  # above, blocks are packed in one pass in order of time
SMALL_SHARE = 0.002  # of the lower bound: the most that all small blocks may take together
CLOSE = 1.005  # times the lower bound: good enough where small blocks are packed apart


class Span(NamedTuple):
    """A block: alive from `start` until just before `end`, in any unit of time."""

    start: int
    end: int
    size: int  # bytes


@dataclass(frozen=True)
class Packing:
    """The offset of each block, in the order of the blocks."""

    offsets: tuple[int, ...]
    size_bytes: int  # of the whole layout
    max_live_bytes: int  # most bytes alive at once, sizes rounded up: no layout takes less
    max_live_exact_bytes: int  # the same with the requested sizes

    @property
    def ratio(self) -> float:
        """Size over the lower bound: 1.0 is optimal."""
        return self.size_bytes / self.max_live_bytes if self.max_live_bytes else 1.0

    @property
    def exact_ratio(self) -> float:
        """Size over the lower bound of the requested sizes, so that rounding counts as waste."""
        return self.size_bytes / self.max_live_exact_bytes if self.max_live_exact_bytes else 1.0


def pack(blocks: Sequence[Span], *, rounding: int = ROUNDING, effort: int = EFFORT) -> Packing:
    """A layout of `blocks`, at offsets that are multiples of `rounding`.

    `effort` is how many pairs of blocks may be examined to improve the first layouts; 0 keeps
    them. Raises BadInput for a block that ends before it starts or has a negative size.
    """
    _check(blocks, rounding)
    rounded = [b._replace(size=-(-max(b.size, 1) // rounding) * rounding) for b in blocks]
    bound = max_live(rounded)
    offsets = [0] * len(blocks)
    size = 0
    for part in _parts(rounded):
        found = _pack_part([rounded[i] for i in part], max(bound, size), effort)
        effort = max(0, effort - found.looks)
        size = max(size, found.top)
        for index, offset in zip(part, found.offsets, strict=True):
            offsets[index] = offset
    return Packing(tuple(offsets), size, bound, max_live(blocks))


def max_live(blocks: Iterable[Span]) -> int:
    """The most bytes that are alive at once."""
    changes: defaultdict[int, int] = defaultdict(int)
    for start, end, size in blocks:
        changes[start] += size
        changes[end] -= size
    live = most = 0
    for time in sorted(changes):
        live += changes[time]
        most = max(most, live)
    return most


class _Found(NamedTuple):
    offsets: list[int]
    top: int
    looks: int  # pairs examined to improve it


def _check(blocks: Sequence[Span], rounding: int) -> None:
    if rounding < 1:
        raise BadInput(f"cannot round sizes up to {rounding}", expected="at least 1 byte")
    for number, block in enumerate(blocks):
        if block.end <= block.start or block.size < 0:
            raise BadInput(
                f"cannot pack block {number}: {block.size} bytes from {block.start} to {block.end}",
                expected="a size of 0 or more, and an end after the start",
            )


def _parts(blocks: Sequence[Span]) -> list[list[int]]:
    """Indices of blocks in groups that share no moment; the group that needs most comes first."""
    parts: list[list[int]] = []
    until = 0
    for index in sorted(range(len(blocks)), key=lambda i: blocks[i].start):
        if not parts or blocks[index].start >= until:
            parts.append([])
            until = blocks[index].end
        parts[-1].append(index)
        until = max(until, blocks[index].end)
    return sorted(parts, key=lambda part: -max_live(blocks[i] for i in part))


def _pack_part(blocks: list[Span], goal: int, effort: int) -> _Found:
    """Lay out one group; if it has too many pairs, small blocks apart from the others."""
    if _pairs(blocks) <= FEW_PAIRS:
        return _pack_well(blocks, goal, effort)
    limit = _small_size(blocks)
    large = [i for i, block in enumerate(blocks) if block.size > limit]
    small = [i for i, block in enumerate(blocks) if block.size <= limit]
    chosen = [blocks[i] for i in large]
    below = _pack_in_time([blocks[i] for i in small])
    if _pairs(chosen) <= MANY_PAIRS:
        above = _pack_well(chosen, max(goal - below.top, int(CLOSE * max_live(chosen))), effort)
    else:
        above = _pack_in_time(chosen)
    offsets = [0] * len(blocks)
    for index, offset in zip(small, below.offsets, strict=True):
        offsets[index] = offset
    for index, offset in zip(large, above.offsets, strict=True):
        offsets[index] = below.top + offset
    return _Found(offsets, below.top + above.top, above.looks)


def _pairs(blocks: Sequence[Span]) -> int:
    starts, ends = sorted(b.start for b in blocks), sorted(b.end for b in blocks)
    pairs = gone = 0
    for begun, start in enumerate(starts):
        while ends[gone] <= start:
            gone += 1
        pairs += begun - gone
    return pairs


def _small_size(blocks: Sequence[Span]) -> int:
    """The largest size such that all blocks up to it take at most SMALL_SHARE of the bound."""
    sizes = sorted({block.size for block in blocks})
    allowed = SMALL_SHARE * max_live(blocks)

    def share(size: int) -> int:
        return max_live(block for block in blocks if block.size <= size)

    at = bisect_left(sizes, True, key=lambda size: share(size) > allowed)
    return sizes[at - 1] if at else 0


def _pack_in_time(blocks: Sequence[Span]) -> _Found:
    """Each block at the lowest free offset when it starts, as a splitting allocator would."""
    offsets = [0] * len(blocks)
    moments = [(b.start, 1, i) for i, b in enumerate(blocks)]
    moments += [(b.end, 0, i) for i, b in enumerate(blocks)]
    live: list[tuple[int, int]] = []  # (offset, end), in order
    top = 0
    for _, starts, index in sorted(moments):
        size = blocks[index].size
        if starts:
            offset = offsets[index] = _first_gap(live, size)
            insort(live, (offset, offset + size))
            top = max(top, offset + size)
        else:
            del live[bisect_left(live, (offsets[index], 0))]
    return _Found(offsets, top, 0)


def _first_gap(taken: list[tuple[int, int]], size: int) -> int:
    """The lowest offset where `size` bytes fit between `taken`, which is sorted."""
    at = 0
    for offset, end in taken:
        if offset - at >= size:
            return at
        if end > at:
            at = end
    return at


def _best_gap(taken: list[tuple[int, int]], size: int) -> int:
    at, best, least = 0, -1, 0
    for offset, end in taken:
        gap = offset - at
        if gap >= size and (best < 0 or gap < least):
            best, least = at, gap
        if end > at:
            at = end
    return best if best >= 0 else at


# An initial order, and how a block picks its gap. Each rule is the best on some models.
_Rule = tuple[Callable[[Span], tuple[int, ...]], Callable[[list[tuple[int, int]], int], int]]
_RULES: tuple[_Rule, ...] = (
    (lambda b: (b.start,), _best_gap),  # training
    (lambda b: (-b.end,), _first_gap),  # growing tensors, such as keys and values
    (lambda b: (-b.size, b.start), _first_gap),  # inference
)


def _pack_well(blocks: Sequence[Span], goal: int, effort: int) -> _Found:
    """The best of a few greedy layouts, improved until it reaches `goal` or effort runs out."""
    layout = _Layout(blocks)
    results: list[tuple[int, int]] = []
    for number, rule in enumerate(_RULES):
        results.append((layout.begin(rule), number))
        if layout.best_top <= goal:
            return _Found(layout.best, layout.best_top, layout.looks)
    layout.looks = 0  # the first layouts are free
    for turn, (_, number) in enumerate(sorted(results), start=1):
        layout.improve(_RULES[number], goal, effort * turn // len(_RULES))
    return _Found(layout.best, layout.best_top, layout.looks)


class _Layout:
    """Blocks that are placed in an order that changes."""

    def __init__(self, blocks: Sequence[Span]) -> None:
        self.blocks = blocks
        self.near = _neighbours(blocks)
        self.offsets = [-1] * len(blocks)
        self.ends = [0] * len(blocks)
        self.best: list[int] = []
        self.best_top = 0
        self.looks = 0
        self._likes: defaultdict[tuple[int, int], set[int]] = defaultdict(set)
        for index, block in enumerate(blocks):
            self._likes[block.size, block.end - block.start].add(index)

    def begin(self, rule: _Rule) -> int:
        """Place all blocks by one rule; returns the height."""
        self._place(self._order(rule), 0, None, rule[1])
        return self._keep()

    def improve(self, rule: _Rule, goal: int, effort: int) -> None:
        """Change the order until it reaches `goal` or effort runs out. Deterministic."""
        chance = random.Random(0)
        order, changed = self._order(rule), 0
        while self.looks < effort and self.best_top > goal:
            failed = self._place(order, changed, self.best_top - 1, rule[1])
            if failed is None:
                self._keep()
                changed = 0
            else:
                changed = self._promote(order, failed, chance)

    def _order(self, rule: _Rule) -> list[int]:
        return sorted(range(len(self.blocks)), key=lambda i: rule[0](self.blocks[i]))

    def _keep(self) -> int:
        top = max(self.ends, default=0)
        if not self.best or top < self.best_top:
            self.best, self.best_top = self.offsets[:], top
        return top

    def _place(
        self,
        order: list[int],
        first: int,
        limit: int | None,
        gap: Callable[[list[tuple[int, int]], int], int],
    ) -> int | None:
        """Place `order` from `first` on; returns the position of a block that ends past `limit`."""
        offsets, ends = self.offsets, self.ends
        for position in range(first, len(order)):
            offsets[order[position]] = -1
        for position in range(first, len(order)):
            index = order[position]
            near = self.near[index]
            size = self.blocks[index].size
            at = gap(sorted([(offsets[j], ends[j]) for j in near if offsets[j] >= 0]), size)
            offsets[index] = at
            ends[index] = at + size
            self.looks += len(near) + 1
            if limit is not None and at + size > limit:
                return position
        return None

    def _promote(self, order: list[int], position: int, chance: random.Random) -> int:
        """Move the block at `position` before one in its way; returns where the order changed."""
        index = order[position]
        block = self.blocks[index]
        alone = chance.random() < 0.3
        group = {index} if alone else self._likes[block.size, block.end - block.start]
        near = set(self.near[index])
        ahead = [p for p in range(position) if order[p] in near]
        target = chance.choice(ahead) if ahead else 0
        target = min(target, next(p for p, i in enumerate(order) if i in group))
        rest = [i for i in order[target:] if i not in group]
        order[target:] = [*sorted(group), *rest]
        self.looks += len(order) // 8  # an element of the order is cheaper than a pair
        return target


def _neighbours(blocks: Sequence[Span]) -> list[list[int]]:
    """For each block the others that are alive at some moment of its lifetime."""
    near: list[list[int]] = [[] for _ in blocks]
    live: list[int] = []
    for index in sorted(range(len(blocks)), key=lambda i: blocks[i].start):
        start = blocks[index].start
        live = [i for i in live if blocks[i].end > start]
        near[index].extend(live)
        for other in live:
            near[other].append(index)
        live.append(index)
    return near
