"""Move weights through a device by a plan, ahead of the computing.

Covers: the keep-set, the two rings, what is copied and decoded when, layers that come out of turn,
letting go.
Leaves to others: the plan itself (plan), when layers begin and end (layers), whose memory that is
(moves), lanes (carriers).
Promise: a layer never begins before its weights are there, and no place is filled anew before the
layer that used it is done; the host waits for nothing of that. Ctrl-C anywhere leaves a state from
which `reset` and `close` work.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

import torch

from holdfast.residency import moves
from holdfast.residency.carriers.carrier import Carrier, Mark
from holdfast.residency.interrupt import throw_exception_if_processing_interrupted
from holdfast.residency.plan import Chunk, Plan, Problem, Visit
from holdfast.residency.recording.journal import Journal
from holdfast.residency.ring import Slot
from holdfast.residency.weights import Stretch

# How much computing may be queued on a device: less answers an interrupt sooner.
QUEUED_MS = 60.0


@dataclass(slots=True)
class _Stay:
    """The latest of a visit's stays, by number over all passes; -1 for none."""

    arrived: Mark = None  # its bytes are in the ring
    ready: Mark = None  # they were decoded
    read: Mark = None  # its place in the ring is free
    read_number: int = -1
    over_number: int = -1  # the layers that used it are done
    met_number: int = -1  # computing waited for it


class Streamer:
    """One plan at work. Make it, `load` it, then `begin` and `end` uses in any order."""

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
        self.spoiled = False  # whether weights changed under way: copies of them are old
        self._problem = problem
        self._carrier = carrier
        self._stretches = stretches
        self._journal = journal
        self._merge = merge  # called with each weight that came to stay
        self._kept: dict[tuple[int, ...], torch.Tensor] = {}
        self._kept_packed: dict[int, torch.Tensor] = {}
        self._ring: torch.Tensor | None = None
        self._decoded: torch.Tensor | None = None
        self._aside: torch.Tensor | None = None  # only while loading
        self._covering = _covering(problem, plan)
        self._forget_places()
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
        """Take the memory and fill the keep-set; again after an interrupt, it goes on.

        `inherited` is device memory of chunks that an earlier plan kept, by their weights. Raises
        OutOfMemory; what was loaded until then stays.
        """
        plan, carrier = self.plan, self._carrier
        held_bytes = self.device_bytes
        if self._ring is None:
            self._ring = carrier.empty(plan.ring_bytes)
        if self._decoded is None:
            self._decoded = carrier.empty(plan.decoded_bytes)
        wanted = [plan.chunks[i] for i in sorted(plan.kept | plan.kept_packed)]
        total = sum(chunk.raw_bytes for chunk in wanted)
        done = 0
        for index in sorted(plan.kept | plan.kept_packed):
            throw_exception_if_processing_interrupted()
            if index in plan.kept:
                self._keep(plan.chunks[index], inherited)
            else:
                self._keep_packed(index)
            done += plan.chunks[index].raw_bytes
            if progress is not None:
                progress(done, total)
        self._aside = None
        if self.device_bytes != held_bytes:  # else every pass would begin anew
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
        """Bring a chunk to where it stays; packed ones pass through memory of the rings."""
        carrier, name = self._carrier, self._name(chunk)
        passage = self._passage(chunk.payload_bytes) if chunk.packed else memory
        with self._journal.labelled(name):
            pairs = moves.copies(self._stretches, chunk, passage)
            arrived = carrier.copy(pairs, [carrier.mark()])
            self._journal.waits(name, arrived, "what stays was loaded")
            if chunk.packed:
                carrier.decode(moves.decodes(self._stretches, chunk, passage, memory))

    def _passage(self, nbytes: int) -> torch.Tensor:
        """Memory where a payload arrives: of a ring, or one more place for all of them."""
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
        now = self._carrier.mark()
        pairs = moves.copies(self._stretches, chunk, memory)
        name = self._name(chunk)
        with self._journal.labelled(name):
            arrived = self._carrier.copy(pairs, [now])
        self._journal.waits(name, arrived, "what stays was loaded")
        self._kept_packed[index] = memory
        self._journal.note("keep", name, chunk.payload_bytes)

    def close(
        self, reason: str, staying: Collection[tuple[int, ...]] = (), unbind: bool = True
    ) -> dict[tuple[int, ...], torch.Tensor]:
        """Give the rings back and unbind everything; returns the kept chunks with their memory.

        `staying` are those that the next plan keeps, which is no eviction. Memory goes back once
        what was queued is over; the host does not wait for it.
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
        self._forget_places()
        self._ring = self._decoded = self._aside = None
        return kept

    def dissolve(self, using: Collection[int]) -> dict[tuple[int, ...], torch.Tensor]:
        """End in the middle of a pass: returns the kept chunks, whose weights stay bound.

        So do weights of the rings that layers are `using`; their memory goes back with them.
        """
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
        """What its rings hold on the device."""
        return sum(ring.numel() for ring in (self._ring, self._decoded) if ring is not None)

    def _forget_places(self) -> None:
        """Views of the rings, which are made once: making them takes longer than using them."""
        self._copies: dict[int, list[tuple[torch.Tensor, torch.Tensor]]] = {}
        self._decodes: dict[int, Callable[[], Mark]] = {}
        self._places: dict[tuple[int, int], torch.Tensor] = {}

    def kept_bytes(self, without: Collection[tuple[int, ...]] = ()) -> dict[str, int]:
        """The chunks that stay now, by the name of their first weight, with their bytes."""
        kept = {
            self._stretches[weights[0]].name: memory.numel()
            for weights, memory in self._kept.items()
            if weights not in without
        }
        packed = ((self._name(self.plan.chunks[i]), m) for i, m in self._kept_packed.items())
        return kept | {name: memory.numel() for name, memory in packed}

    def note_stays(self) -> None:
        """Tell the journal that what is in the rings, or on its way there, is there until now."""
        if not self._journal.recording or not self._stays:
            return
        count = len(self._stays)
        for number in range(max(self._passes, self._filled - count), self._filled):
            stay, visit = self._stays[number % count], self.plan.visits[number % count]
            if stay.over_number < number and stay.arrived is not None:
                chunk = self.plan.chunks[visit.chunk]
                self._journal.stay(self._name(chunk), chunk.raw_bytes, stay.arrived)

    @property
    def device_bytes(self) -> int:
        """What it holds on the device now."""
        kept = sum(memory.numel() for memory in self._kept.values())
        return self.ring_bytes + kept + sum(m.numel() for m in self._kept_packed.values())

    # ---- passes

    def reset(self) -> None:
        """Forget where a pass was: nothing is in flight, nothing in the rings is of use."""
        self.note_stays()
        self._carrier.drain()
        # What was computed before, in memory that is the ring's now, comes before all copies.
        now = self._carrier.mark() if self.plan.visits else None
        self._stays = [_Stay(read=now) for _ in self.plan.visits]
        self._passes = 0  # number of the first visit of this pass
        self._filled = 0  # the next stay to be copied
        self._queued: deque[tuple[float, Mark]] = deque()

    def pump(self) -> None:
        """Queue every copy whose place is, or will by then be, free."""
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
            return True  # nothing to copy, or nobody will use it
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
            place = self._ring[visit.slot.offset : visit.slot.offset + chunk.payload_bytes]
            pairs = self._copies[index] = moves.copies(self._stretches, chunk, place)
        after = [self._stays[i].read for i in visit.slot.after]
        with self._journal.labelled(self._name(chunk)):
            stay.arrived = self._carrier.copy(pairs, after)

    def _open(self, number: int) -> bool:
        """Have what has arrived ready for use; False if its place there is not free."""
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
            decode = self._decodes[index] = self._decoding(visit)
        with self._journal.labelled(self._name(self.plan.chunks[visit.chunk])):
            stay.ready = stay.read = decode()
        stay.read_number = number
        return True

    def _decoding(self, visit: Visit) -> Callable[[], Mark]:
        assert visit.decoded is not None
        assert self._decoded is not None
        chunk = self.plan.chunks[visit.chunk]
        place = self._decoded[visit.decoded.offset : visit.decoded.offset + chunk.raw_bytes]
        payload = self._payload_of(visit.chunk, visit.slot)
        return self._carrier.decoding(moves.decodes(self._stretches, chunk, payload, place))

    def _payload_of(self, chunk: int, slot: Slot | None) -> torch.Tensor:
        if slot is None or self._ring is None:
            return self._kept_packed[chunk]
        return self._ring[slot.offset : slot.offset + self.plan.chunks[chunk].payload_bytes]

    @property
    def problem(self) -> Problem:
        """What its plan was made for."""
        return self._problem

    def serves(self, problem: Problem, allowed_bytes: int) -> bool:
        """Whether the plan at work is one for that problem too."""
        kept = {w for i in self.plan.kept for w in self.plan.chunks[i].weights}
        uses = [use.weights for use in problem.uses]
        return (
            self.plan.device_bytes <= allowed_bytes
            and problem.weights == self._problem.weights
            and uses == [use.weights for use in self._problem.uses]
            and kept.issuperset(problem.pinned.intersection(*[{w for u in uses for w in u}]))
        )

    def adopt(self, problem: Problem, step_ms: float) -> None:
        """The same plan with times that are known better."""
        self.plan = replace(self.plan, step_ms=step_ms)
        self._clock_ms = _clock(problem, self.plan)

    def covers(self, use: int) -> bool:
        """Whether a use needs anything that moves."""
        return bool(self._covering[use])

    def begin(self, use: int, weights: Sequence[int]) -> bool:
        """Have the weights of a use on the device; False if the plan cannot (load them aside)."""
        throw_exception_if_processing_interrupted()
        self._stay_close(use)
        visits = self._covering[use]
        if visits and self.spoiled:
            return False
        for index in visits:
            number = self._passes + index
            if self._stays[index].over_number >= number:
                return False  # it is gone already
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
        """Have computing wait for a visit once, and open it."""
        stay, number = self._stays[index], self._passes + index
        if stay.arrived is not None and stay.met_number < number:
            chunk = self.plan.chunks[self.plan.visits[index].chunk]
            self._journal.waits(self._name(chunk), stay.arrived)
            stay.met_number = number
        return self._open(number)

    def _bind(self, weight: int, visits: Sequence[int]) -> None:
        stretch = self._stretches[weight]
        home = self._home[weight]
        index = next(i for i in visits if self.plan.visits[i].chunk == home)
        place = self._places.get((weight, index))
        if place is None:
            place = self._places[weight, index] = self._place(weight, index)
        stretch.bind(place)

    def _place(self, weight: int, index: int) -> torch.Tensor:
        """Where a weight lies in its ring during a visit."""
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
        """The use is queued: chunks that nobody needs any more make room, and more is queued."""
        over = [i for i in self._covering[use] if self.plan.visits[i].last == use]
        if not over:
            return
        # Of what was decoded the place in the ring is free already.
        streams = any(self.plan.visits[i].decoded is None for i in over)
        mark = self._carrier.mark() if streams else None
        for index in over:
            self._over(index, mark)
        self.pump()

    def skip(self, use: int) -> None:
        """Layers before `use` will not run in this pass: their visits are over."""
        skipped = [
            index
            for index, visit in enumerate(self.plan.visits)
            if visit.last < use and self._stays[index].over_number < self._passes + index
        ]
        if skipped:
            mark = self._carrier.mark()
            for index in skipped:
                self._over(index, mark)
        self.pump()

    def finish(self) -> None:
        """The pass is over; the next begins with what is already on its way."""
        self.skip(1 << 62)
        self._passes += len(self.plan.visits)
        self._queued.clear()
        self.pump()

    def _over(self, index: int, mark: Mark) -> None:
        stay = self._stays[index]
        number = self._passes + index
        stay.over_number = number
        if self.plan.visits[index].decoded is None or stay.read_number < number:
            stay.read, stay.read_number = mark or self._carrier.mark(), number
        came = stay.arrived or stay.ready
        if self._journal.recording and number < self._filled and came is not None:
            chunk = self.plan.chunks[self.plan.visits[index].chunk]
            self._journal.stay(self._name(chunk), chunk.raw_bytes, came)

    def _stay_close(self, use: int) -> None:
        """Wait for computing that is too far behind, so that an interrupt is seen soon."""
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
    """The number of the latest stay of visit `index` before stay `number`."""
    back = (number - index) % count
    return number - (back or count)


def _covering(problem: Problem, plan: Plan) -> list[list[int]]:
    """For each use, the visits it needs."""
    at: dict[tuple[int, int], int] = {}
    for index, visit in enumerate(plan.visits):
        for use in range(visit.first, visit.last + 1):
            at[visit.chunk, use] = index
    home = {w: i for i, chunk in enumerate(plan.chunks) for w in chunk.weights}
    return [
        list(
            dict.fromkeys(
                at[home[weight], number] for weight in use.weights if (home[weight], number) in at
            )
        )
        for number, use in enumerate(problem.uses)
    ]


def _clock(problem: Problem, plan: Plan) -> list[float]:
    """When each use begins, in milliseconds of a pass as it will really go."""
    slower = plan.step_ms / problem.compute_ms if problem.compute_ms else 1.0
    clock = itertools.accumulate((use.compute_ms * slower for use in problem.uses), initial=0.0)
    return list(clock)
