"""Runs a plan: keeps some weights on the device and streams the others through two ring buffers.

No layer starts before its weights have arrived, and no ring slot is overwritten before the layer
that used it has finished. Events enforce this; the host does not block. After Ctrl-C at any point
`reset` and `close` still work.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from holdfast.residency.carriers.carrier import Carrier, Mark
from holdfast.residency.interrupt import throw_exception_if_processing_interrupted
from holdfast.residency.plan.model import Chunk, Plan, Problem, Visit
from holdfast.residency.recording.journal import Journal
from holdfast.residency.stream.ring import aligned
from holdfast.residency.stream.weights import Stretch

# At most this much compute may be queued on a device; a shorter queue reacts to interrupts sooner.
QUEUED_MS = 60.0

Pairs = list[tuple[torch.Tensor, torch.Tensor]]  # (target, source)


@dataclass(slots=True)
class _Stay:
    """Progress of one visit. The `*_number` fields count stays over all passes; -1: none yet."""

    arrived: Mark = None  # copied into the ring
    ready: Mark = None  # decoded
    read: Mark = None  # its ring slot may be overwritten
    read_number: int = -1
    over_number: int = -1  # the layers that used it have finished
    awaited_number: int = -1  # the compute stream waited for it


class Streamer:
    """Runs one plan. Create it, `load` it, then `begin` and `end` uses in any order."""

    def __init__(
        self,
        carrier: Carrier,
        stretches: Sequence[Stretch],
        problem: Problem,
        plan: Plan,
        journal: Journal,
        merge: Callable[[Stretch], None] = lambda _: None,
    ) -> None:
        self.plan = plan
        self.spoiled = False  # weights changed during a pass, so queued copies are stale
        self.problem = problem
        self._carrier = carrier
        self._stretches = stretches
        self._journal = journal
        self._merge = merge  # called with each weight that was loaded to stay
        self._kept: dict[tuple[int, ...], torch.Tensor] = {}
        self._kept_packed: dict[int, torch.Tensor] = {}
        self._ring: torch.Tensor | None = None
        self._decoded: torch.Tensor | None = None
        self._aside: torch.Tensor | None = None  # only while loading
        self._visits_of_use = _visits_of_use(problem, plan)
        self._clear_views()
        self._home = {w: i for i, chunk in enumerate(plan.chunks) for w in chunk.weights}
        self._clock_ms = _clock(problem, plan)
        self._stays: list[_Stay] = []
        self.reset()

    # ---- memory

    def load(
        self,
        inherited: dict[tuple[int, ...], torch.Tensor],
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        """Allocate the rings and load the kept chunks. Call it again to resume after an interrupt.

        `inherited` maps the weights of chunks that an earlier plan kept to their device memory.
        Raises OutOfMemory; chunks loaded so far stay.
        """
        plan, carrier = self.plan, self._carrier
        held_bytes = self.device_bytes
        if self._ring is None:
            self._ring = carrier.empty(plan.ring_bytes)
        if self._decoded is None:
            self._decoded = carrier.empty(plan.decoded_bytes)
        staying = sorted(plan.kept | plan.kept_packed)
        done, total = 0, sum(plan.chunks[i].raw_bytes for i in staying)
        for index in staying:
            throw_exception_if_processing_interrupted()
            if index in plan.kept:
                self._keep(plan.chunks[index], inherited)
            else:
                self._keep_packed(index)
            done += plan.chunks[index].raw_bytes
            if progress is not None:
                progress(done, total)
        self._aside = None
        if self.device_bytes != held_bytes:  # unchanged: keep the copies already in flight
            self.reset()

    def _keep(self, chunk: Chunk, inherited: dict[tuple[int, ...], torch.Tensor]) -> None:
        memory = self._kept.get(chunk.weights)
        if memory is None:
            memory = inherited.pop(chunk.weights, None)
            if memory is None:
                memory = self._carrier.empty(chunk.raw_bytes)
                self._fill(chunk, memory)
                self._journal.note("keep", self._name(chunk), chunk.raw_bytes)
            self._kept[chunk.weights] = memory
        for weight, offset in zip(chunk.weights, chunk.raw_offsets, strict=True):
            stretch = self._stretches[weight]
            if stretch.bound is None:
                stretch.bind(memory[offset : offset + stretch.raw_bytes])
                self._merge(stretch)

    def _fill(self, chunk: Chunk, memory: torch.Tensor) -> None:
        """Copy a chunk into `memory`; a packed one goes through a ring and is decoded."""
        passage = self._passage(chunk.payload_bytes) if chunk.packed else memory
        self._bring(chunk, passage)
        if chunk.packed:
            with self._journal.labelled(self._name(chunk)):
                self._carrier.decode(_list_decodes(self._stretches, chunk, passage, memory))

    def _bring(self, chunk: Chunk, memory: torch.Tensor) -> None:
        """Copy the payload of a chunk into `memory`, before the next computation."""
        name, pairs = self._name(chunk), _list_copies(self._stretches, chunk, memory)
        with self._journal.labelled(name):
            arrived = self._carrier.copy(pairs, [self._carrier.mark()])
        self._journal.wait(name, arrived, "what stays was loaded")

    def _passage(self, nbytes: int) -> torch.Tensor:
        """A buffer for a packed payload: a ring that is large enough, else one shared extra."""
        for memory in (self._ring, self._decoded, self._aside):
            if memory is not None and memory.numel() >= nbytes:
                return memory[:nbytes]
        chunks = (self.plan.chunks[i] for i in self.plan.kept)
        self._aside = self._carrier.empty(max(c.payload_bytes for c in chunks if c.packed))
        return self._aside[:nbytes]

    def _keep_packed(self, index: int) -> None:
        if index in self._kept_packed:
            return
        chunk = self.plan.chunks[index]
        memory = self._carrier.empty(chunk.payload_bytes)
        self._bring(chunk, memory)
        self._kept_packed[index] = memory
        self._journal.note("keep", self._name(chunk), chunk.payload_bytes)

    def close(
        self, reason: str, staying: Collection[tuple[int, ...]] = (), unbind: bool = True
    ) -> dict[tuple[int, ...], torch.Tensor]:
        """Free the rings and unbind all weights; return the kept chunks with their memory.

        Chunks in `staying` are kept by the next plan and not recorded as evicted. The memory is
        freed once queued work is done; the host does not wait for that.
        """
        self._carrier.drain()
        for stretch in self._stretches if unbind else ():
            stretch.unbind()
            stretch.forget_views()
        self.note_stays()
        leaving = self.kept_bytes(staying)
        kept, self._kept = self._kept, {}
        self._kept_packed = {}
        for name, nbytes in leaving.items():
            self._journal.note("evict", name, nbytes, reason)
        self._clear_views()
        self._ring = self._decoded = self._aside = None
        return kept

    def dissolve(self, using: Collection[int]) -> dict[tuple[int, ...], torch.Tensor]:
        """Stop in the middle of a pass: kept chunks, and ring weights in use, stay bound."""
        self._carrier.drain()
        kept, self._kept = self._kept, {}
        staying = {weight for weights in kept for weight in weights} | set(using)
        for stretch in self._stretches:
            if stretch.index not in staying:
                stretch.unbind()
                stretch.forget_views()
        self.close("the device was full", unbind=False)
        return kept

    @property
    def ring_bytes(self) -> int:
        """Device memory of both rings."""
        return sum(ring.numel() for ring in (self._ring, self._decoded) if ring is not None)

    def _clear_views(self) -> None:
        """Clear the cached views of the rings; creating a view takes longer than using it."""
        self._copies: dict[int, list[tuple[torch.Tensor, torch.Tensor]]] = {}
        self._decodes: dict[int, Callable[[], Mark]] = {}
        self._weight_views: dict[tuple[int, int], torch.Tensor] = {}

    def kept_bytes(self, without: Collection[tuple[int, ...]] = ()) -> dict[str, int]:
        """Bytes of each kept chunk, by the name of its first weight."""
        kept = {
            self._stretches[weights[0]].name: memory.numel()
            for weights, memory in self._kept.items()
            if weights not in without
        }
        packed = ((self._name(self.plan.chunks[i]), m) for i, m in self._kept_packed.items())
        return kept | {name: memory.numel() for name, memory in packed}

    def note_stays(self) -> None:
        """Record in the journal that chunks in the rings, or being copied there, stay until now."""
        if not self._journal.recording or not self._stays:
            return
        count = len(self._stays)
        for number in range(max(self._passes, self._filled - count), self._filled):
            stay, visit = self._stays[number % count], self.plan.visits[number % count]
            if stay.over_number < number and stay.arrived is not None:
                chunk = self.plan.chunks[visit.chunk]
                self._journal.note_stay(self._name(chunk), chunk.raw_bytes, stay.arrived)

    @property
    def device_bytes(self) -> int:
        """All device memory held now: rings and kept chunks."""
        kept = sum(memory.numel() for memory in self._kept.values())
        return self.ring_bytes + kept + sum(m.numel() for m in self._kept_packed.values())

    # ---- passes

    def reset(self) -> None:
        """Start over: drop the ring contents and all copies in flight."""
        self.note_stays()
        self._carrier.drain()
        # Earlier computation may still use memory that belongs to the ring now: copy after it.
        now = self._carrier.mark() if self.plan.visits else None
        self._stays = [_Stay(read=now) for _ in self.plan.visits]
        self._passes = 0  # number of the first visit of this pass
        self._filled = 0  # the next stay to be copied
        self._queued: deque[tuple[float, Mark]] = deque()

    def pump(self) -> None:
        """Queue every copy whose ring slot is free by the time it runs."""
        if not self.plan.visits or self.spoiled:
            return
        while self._may_fill(self._filled):
            self._fill_stay(self._filled)
            self._filled += 1

    def _may_fill(self, number: int) -> bool:
        count = len(self.plan.visits)
        if number >= self._passes + 2 * count:
            return False
        slot = self.plan.visits[number % count].slot
        if slot is None or self._stays[number % count].over_number >= number:
            return True  # nothing to copy, or it will not be used
        return all(self._stays[i].read_number >= _earlier(number, i, count) for i in slot.after)

    def _fill_stay(self, number: int) -> None:
        index = number % len(self.plan.visits)
        visit, stay = self.plan.visits[index], self._stays[index]
        stay.arrived = None
        if visit.slot is None or stay.over_number >= number or self._ring is None:
            return
        chunk = self.plan.chunks[visit.chunk]
        pairs = self._copies.get(index)
        if pairs is None:
            target = self._ring[visit.slot.offset : visit.slot.offset + chunk.payload_bytes]
            pairs = self._copies[index] = _list_copies(self._stretches, chunk, target)
        after = [self._stays[i].read for i in visit.slot.after]
        with self._journal.labelled(self._name(chunk)):
            stay.arrived = self._carrier.copy(pairs, after)

    def _decode_stay(self, number: int) -> bool:
        """Decode an arrived chunk if needed; False if its decoded slot is still in use."""
        count = len(self.plan.visits)
        index = number % count
        visit, stay = self.plan.visits[index], self._stays[index]
        if visit.decoded is None or stay.read_number >= number:
            return True
        after = visit.decoded.after
        if any(self._stays[i].over_number < _earlier(number, i, count) for i in after):
            return False
        decode = self._decodes.get(index)
        if decode is None:
            decode = self._decodes[index] = self._prepare_decode(visit)
        with self._journal.labelled(self._name(self.plan.chunks[visit.chunk])):
            stay.ready = stay.read = decode()
        stay.read_number = number
        return True

    def _prepare_decode(self, visit: Visit) -> Callable[[], Mark]:
        assert visit.decoded is not None
        assert self._decoded is not None
        chunk = self.plan.chunks[visit.chunk]
        target = self._decoded[visit.decoded.offset : visit.decoded.offset + chunk.raw_bytes]
        if visit.slot is None or self._ring is None:
            payload = self._kept_packed[visit.chunk]
        else:
            payload = self._ring[visit.slot.offset : visit.slot.offset + chunk.payload_bytes]
        return self._carrier.decoding(_list_decodes(self._stretches, chunk, payload, target))

    def serves(self, problem: Problem, allowed_bytes: int) -> bool:
        """Whether this plan also solves `problem` within `allowed_bytes`."""
        kept = {w for i in self.plan.kept for w in self.plan.chunks[i].weights}
        uses = [use.weights for use in problem.uses]
        return (
            self.plan.device_bytes <= allowed_bytes
            and problem.weights == self.problem.weights
            and uses == [use.weights for use in self.problem.uses]
            and kept.issuperset(problem.pinned.intersection(*[{w for u in uses for w in u}]))
        )

    def adopt(self, problem: Problem, step_ms: float) -> None:
        """Keep the plan but use newer measured times."""
        self.plan = replace(self.plan, step_ms=step_ms)
        self._clock_ms = _clock(problem, self.plan)

    def covers(self, use: int) -> bool:
        """Whether a use needs streamed weights."""
        return bool(self._visits_of_use[use])

    def begin(self, use: int, weights: Sequence[int]) -> bool:
        """Get the weights of a use onto the device; False if the caller must load them itself."""
        throw_exception_if_processing_interrupted()
        self._limit_queue(use)
        visits = self._visits_of_use[use]
        if visits and self.spoiled:
            return False
        for index in visits:
            number = self._passes + index
            if self._stays[index].over_number >= number:
                return False  # its slot was already freed
            if self._filled <= number:
                self.pump()
                if self._filled <= number:
                    return False
        if not all(self._receive(index) for index in visits):
            return False
        for weight in weights:
            if self._stretches[weight].bound is None:
                self._bind(weight, visits)
        return True

    def _receive(self, index: int) -> bool:
        """Make the compute stream wait for a visit (once) and decode it."""
        stay, number = self._stays[index], self._passes + index
        if stay.arrived is not None and stay.awaited_number < number:
            chunk = self.plan.chunks[self.plan.visits[index].chunk]
            self._journal.wait(self._name(chunk), stay.arrived)
            stay.awaited_number = number
        return self._decode_stay(number)

    def _bind(self, weight: int, visits: Sequence[int]) -> None:
        stretch = self._stretches[weight]
        home = self._home[weight]
        index = next(i for i in visits if self.plan.visits[i].chunk == home)
        view = self._weight_views.get((weight, index))
        if view is None:
            view = self._weight_views[weight, index] = self._view(weight, index)
        stretch.bind(view)

    def _view(self, weight: int, index: int) -> torch.Tensor:
        """The bytes of a weight in its ring during a visit."""
        visit, nbytes = self.plan.visits[index], self._stretches[weight].raw_bytes
        chunk = self.plan.chunks[visit.chunk]
        at = chunk.weights.index(weight)
        if visit.decoded is not None:
            ring, offset = self._decoded, visit.decoded.offset + chunk.raw_offsets[at]
        else:
            assert visit.slot is not None
            ring, offset = self._ring, visit.slot.offset + chunk.payload_offsets[at]
        assert ring is not None
        return ring[offset : offset + nbytes]

    def end(self, use: int) -> None:
        """Call after a use was queued: frees the slots it used last and queues more copies."""
        over = [i for i in self._visits_of_use[use] if self.plan.visits[i].last == use]
        if not over:
            return
        # The payload slot of a decoded chunk is free since the decode.
        streams = any(self.plan.visits[i].decoded is None for i in over)
        mark = self._carrier.mark() if streams else None
        for index in over:
            self._end_visit(index, mark)
        self.pump()

    def skip(self, use: int) -> None:
        """End the visits of layers before `use`, which will not run in this pass."""
        skipped = [
            index
            for index, visit in enumerate(self.plan.visits)
            if visit.last < use and self._stays[index].over_number < self._passes + index
        ]
        if skipped:
            mark = self._carrier.mark()
            for index in skipped:
                self._end_visit(index, mark)
        self.pump()

    def finish(self) -> None:
        """End the pass; copies already in flight serve the next one."""
        self.skip(1 << 62)
        self._passes += len(self.plan.visits)
        self._queued.clear()
        self.pump()

    def _end_visit(self, index: int, mark: Mark) -> None:
        stay = self._stays[index]
        number = self._passes + index
        stay.over_number = number
        if self.plan.visits[index].decoded is None or stay.read_number < number:
            stay.read, stay.read_number = mark or self._carrier.mark(), number
        arrived = stay.arrived or stay.ready
        if self._journal.recording and number < self._filled and arrived is not None:
            chunk = self.plan.chunks[self.plan.visits[index].chunk]
            self._journal.note_stay(self._name(chunk), chunk.raw_bytes, arrived)

    def _limit_queue(self, use: int) -> None:
        """Block while more than QUEUED_MS of compute is queued, so that interrupts act soon."""
        now_ms = self._clock_ms[use]
        late = None
        while self._queued and self._queued[0][0] < now_ms - QUEUED_MS:
            late = self._queued.popleft()[1]
        if late is not None:
            self._carrier.settle(late)
        if not self._queued or now_ms - self._queued[-1][0] > QUEUED_MS / 8:
            self._queued.append((now_ms, self._carrier.mark()))

    def _name(self, chunk: Chunk) -> str:
        return self._stretches[chunk.weights[0]].name


def _earlier(number: int, index: int, count: int) -> int:
    """Number of the last stay of visit `index` before stay `number`."""
    back = (number - index) % count
    return number - (back or count)


def _visits_of_use(problem: Problem, plan: Plan) -> list[list[int]]:
    at: dict[tuple[int, int], int] = {}
    for index, visit in enumerate(plan.visits):
        for use in range(visit.first, visit.last + 1):
            at[visit.chunk, use] = index
    home = {w: i for i, chunk in enumerate(plan.chunks) for w in chunk.weights}
    found: list[list[int]] = []
    for number, use in enumerate(problem.uses):
        keys = dict.fromkeys((home[weight], number) for weight in use.weights)
        found.append([at[key] for key in keys if key in at])
    return found


def _clock(problem: Problem, plan: Plan) -> list[float]:
    """Start of each use in ms since the start of the pass, including waits for copies."""
    slower = plan.step_ms / problem.compute_ms if problem.compute_ms else 1.0
    clock = itertools.accumulate((use.compute_ms * slower for use in problem.uses), initial=0.0)
    return list(clock)


# ---- the source and target memory of one chunk


def _list_copies(stretches: Sequence[Stretch], chunk: Chunk, memory: torch.Tensor) -> Pairs:
    """(target, source) pairs of a chunk; weights adjacent on both sides become one pair."""
    pairs: Pairs = []
    start = end = address = 0
    sources: list[torch.Tensor] = []
    for weight, offset in zip(chunk.weights, chunk.payload_offsets, strict=True):
        host = stretches[weight].host
        joins = sources and offset == end and host.data_ptr() == address
        if not joins:
            pairs += _join(memory, start, sources)
            start, sources = offset, []
        sources.append(host)
        end = offset + aligned(host.numel())
        address = host.data_ptr() + aligned(host.numel())
    return pairs + _join(memory, start, sources)


def _join(memory: torch.Tensor, start: int, sources: list[torch.Tensor]) -> Pairs:
    """One pair for adjacent sources, including alignment gaps."""
    if not sources:
        return []
    first, last = sources[0], sources[-1]
    length = last.data_ptr() - first.data_ptr() + last.numel()
    if len(sources) == 1:
        whole = first
    else:
        storage = first.untyped_storage()
        begin = first.data_ptr() - storage.data_ptr()
        whole = torch.empty(0, dtype=torch.uint8).set_(storage)[begin : begin + length]
    return [(memory[start : start + length], whole)]


def _list_decodes(
    stretches: Sequence[Stretch], chunk: Chunk, payload: torch.Tensor, target: torch.Tensor
) -> list[tuple[torch.Tensor, Any, torch.Tensor]]:
    """(payload, layout, target) for each weight of a packed chunk."""
    parts: list[tuple[torch.Tensor, Any, torch.Tensor]] = []
    offsets = zip(chunk.weights, chunk.payload_offsets, chunk.raw_offsets, strict=True)
    for weight, begin, to in offsets:
        stretch = stretches[weight]
        packed = payload[begin : begin + stretch.payload_bytes]
        parts.append((packed, stretch.layout, target[to : to + stretch.raw_bytes]))
    return parts
