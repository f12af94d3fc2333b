"""Plan mode: a step that repeats is recorded once, packed, and then served from one block.

Promises: two live blocks never overlap, whatever a step does: an offset is used only while nothing
alive touches it. `free` may run in `__del__`, in the middle of any other call; it then takes effect
when that call ends. The lock is never held while upstream is called, so there is no deadlock. After
an exception in a step, and after a fork in both processes, everything stays usable.
"""

from __future__ import annotations

import threading
import weakref
from bisect import bisect_left
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from holdfast.base.errors import ForeignPointer, Misuse
from holdfast.base.threads import register_at_fork
from holdfast.memory.plan.packing import EFFORT, Packing, Span, pack
from holdfast.memory.resources.adaptors import Adaptor
from holdfast.memory.resources.resource import Resource, check_size

MOST_PATIENCE = 64  # steps
_UPSTREAM = -1  # instead of an offset: not planned


@dataclass(frozen=True)
class StepPlan:
    """The offset of the n-th block of each size; -1 for a block that is not planned."""

    offsets: dict[int, tuple[int, ...]]
    packing: Packing

    @property
    def size_bytes(self) -> int:
        """Bytes of all planned blocks together."""
        return self.packing.size_bytes

    @property
    def blocks(self) -> int:
        """The number of planned blocks."""
        return len(self.packing.offsets)

    @classmethod
    def of(cls, step: Sequence[tuple[int, int, int | None]], *, effort: int = EFFORT) -> StepPlan:
        """A plan for a step: (size, start, end) of each block, in the order of allocation.

        A block without an end outlives its step and is not planned. Nor is one of no bytes.
        """
        planned = [Span(start, end, size) for size, start, end in step if size and end is not None]
        packing = pack(planned, effort=effort)
        places = iter(packing.offsets)
        offsets: dict[int, list[int]] = {}
        for size, _, end in step:
            fixed = size and end is not None
            offsets.setdefault(size, []).append(next(places) if fixed else _UPSTREAM)
        return cls({size: tuple(of_size) for size, of_size in offsets.items()}, packing)


class _Arena:
    """The one block of a plan, and which parts of it are in use."""

    def __init__(self, plan: StepPlan, base: int) -> None:
        self.plan = plan
        self.base = base
        self.end = base + plan.size_bytes
        # Sorted (start, end) of live blocks. One list, changed by one call, so that an exception
        # from a signal handler cannot leave it inconsistent.
        self.live: list[tuple[int, int]] = []

    def take(self, offset: int, size: int) -> int | None:
        """The address of the block, or None if something alive touches it."""
        start, end = self.base + offset, self.base + offset + size
        at = bisect_left(self.live, (start, 0))
        if at < len(self.live) and self.live[at][0] < end:
            return None
        if at and self.live[at - 1][1] > start:
            return None
        self.live.insert(at, (start, end))
        return start

    def give(self, address: int) -> bool:
        """Free the block at `address`; False if there is none."""
        at = bisect_left(self.live, (address, 0))
        if at == len(self.live) or self.live[at][0] != address:
            return False
        del self.live[at]
        return True


class Planned(Adaptor):
    """A resource that learns a step, and then serves it from one block.

    `with planned.step():` goes around one denoising step or one training step. The first one is
    recorded and packed; later steps find their blocks at fixed offsets, and whatever differs comes
    from upstream. If fewer than half of a step's blocks are found, a step is recorded anew; each
    time it waits longer for that, so that steps that never repeat are not packed again and again.
    With `plan`, nothing needs to be recorded. If upstream has no room for the block of a plan,
    everything comes from upstream.
    """

    def __init__(
        self, upstream: Resource, plan: StepPlan | None = None, *, effort: int = EFFORT
    ) -> None:
        super().__init__(upstream)
        self.hits = 0  # blocks served from the plan
        self.misses = 0  # blocks that the plan of a step could not serve
        self.plans = 0  # how many plans were adopted
        self._effort = effort
        self._lock = threading.RLock()
        self._busy = False  # state is being changed; a call that comes now is nested
        self._gone: deque[int] = deque()  # freed in the middle of another call
        self._arenas: tuple[_Arena, ...] = ()  # replaced, never changed: read without the lock
        self._serving: _Arena | None = None
        self._recorded: list[tuple[int, int | None]] | None = None  # (address, size or None: freed)
        self._counts: dict[int, int] = {}  # of this step: size -> blocks requested
        self._before = (0, 0)  # hits and misses before this step
        self._step: object | None = None  # the running one
        self._refused = False  # upstream had no room for a plan
        self._closed = False
        self._patience, self._bad_steps = 1, 0
        _all.add(self)
        if plan is not None:
            self._adopt(plan)

    @property
    def plan(self) -> StepPlan | None:
        """The plan in use, if there is one."""
        serving = self._serving
        return serving.plan if serving else None

    @property
    def plan_bytes(self) -> int:
        """Bytes taken from upstream for plans, including old plans with blocks still in use."""
        return sum(arena.plan.size_bytes for arena in self._arenas)

    @property
    def live_blocks(self) -> int:
        """How many planned blocks are in use."""
        self._settle()
        return sum(len(arena.live) for arena in self._arenas)

    def allocate(self, size: int) -> int:
        """The address of `size` bytes: at its planned offset, or from upstream."""
        if self._step is None or not check_size(size):
            return self.upstream.allocate(size)
        recorded = self._recorded
        if recorded is not None:
            address = self.upstream.allocate(size)
            recorded.append((address, size))
            return address
        planned = self._take_planned(size)
        if self._gone:
            self._settle()
        return self.upstream.allocate(size) if planned is None else planned

    def _take_planned(self, size: int) -> int | None:
        with self._lock:
            arena = self._serving
            if arena is None or self._busy:
                return None
            self._busy = True
            try:
                if self._gone:
                    self._drain()
                return self._place(arena, size)
            finally:
                self._busy = False

    def _place(self, arena: _Arena, size: int) -> int | None:
        number = self._counts.get(size, 0)
        self._counts[size] = number + 1
        places = arena.plan.offsets.get(size, ())
        if number < len(places) and places[number] == _UPSTREAM:
            return None  # as recorded: neither a hit nor a miss
        address = arena.take(places[number], size) if number < len(places) else None
        if address is None:
            self.misses += 1
        else:
            self.hits += 1
        return address

    def free(self, address: int) -> None:
        """Free a block. Raises ForeignPointer for an address in a plan without a block."""
        address = int(address)
        for arena in self._arenas:
            if arena.base <= address < arena.end:
                self._free_planned(address)
                return
        recorded = self._recorded
        if recorded is not None:
            # Before it is free: another thread may get the same address at once.
            recorded.append((address, None))
        self.upstream.free(address)

    def _free_planned(self, address: int) -> None:
        with self._lock:
            if self._busy:
                self._gone.append(address)
                return
            self._busy = True
            try:
                known = self._give(address)
            finally:
                self._busy = False
        if self._gone or self._serving is None or len(self._arenas) > 1:
            self._settle()
        if not known:
            raise ForeignPointer(
                f"there is no planned block at {address:#x}",
                expected="an address that allocate() returned and that was not freed since",
            )

    def owns(self, address: int) -> bool:
        """Whether the address lies in a plan, or is upstream's."""
        inside = any(arena.base <= int(address) < arena.end for arena in self._arenas)
        return inside or self.upstream.owns(address)

    @contextmanager
    def step(self) -> Iterator[Planned]:
        """Run one step. Raises Misuse within another step."""
        step = object()
        whole, recorded = False, None
        try:  # `_begin` inside: Ctrl-C at any moment ends the step
            self._begin(step)
            yield self
            whole = True
        finally:
            if self._step is step:
                recorded, self._recorded = self._recorded, None
                self._step = None
                self._settle()
        if whole and recorded is not None:
            self._learn(recorded)
        elif whole:
            self._judge()

    def _begin(self, step: object) -> None:
        with self._lock:
            if self._step is not None:
                raise Misuse(
                    "a step began within a step",
                    expected="one `with planned.step():` at a time, on one thread",
                )
            self._step = step
            self._counts, self._before = {}, (self.hits, self.misses)
            idle = self._refused or self._closed
            self._recorded = [] if self._serving is None and not idle else None

    def close(self) -> None:
        """Stop planning. The block of the plan is freed once nothing in it is alive."""
        self._closed = True
        self._serving = None
        self._settle()

    def _learn(self, recorded: list[tuple[int, int | None]]) -> None:
        plan = StepPlan.of(_lifetimes(recorded), effort=self._effort)
        make_room = getattr(self.upstream, "empty_cache", None)
        if plan.blocks and make_room is not None:
            make_room()  # the memory of the recorded step is cached there
        try:
            self._adopt(plan)
        except MemoryError:
            self._refused = True

    def _adopt(self, plan: StepPlan) -> None:
        if not plan.blocks:
            return
        base = self.upstream.allocate(plan.size_bytes)
        arena = _Arena(plan, base)
        with self._lock:
            self._serving = arena  # first: an arena in `_arenas` that is not serving is freed
            self._arenas = (*self._arenas, arena)
            self.plans += 1

    def _judge(self) -> None:
        """After a step that was served: drop the plan if it no longer fits."""
        plan = self.plan
        if plan is None:
            return
        found, missed = self.hits - self._before[0], self.misses - self._before[1]
        if not self._counts or 2 * found >= max(found + missed, plan.blocks):
            self._bad_steps = 0
            return
        self._bad_steps += 1
        if self._bad_steps >= self._patience:
            self._bad_steps = 0
            self._patience = min(2 * self._patience, MOST_PATIENCE)
            self._serving = None
            self._settle()

    def _give(self, address: int) -> bool:
        return any(arena.give(address) for arena in self._arenas if address >= arena.base)

    def _drain(self) -> None:
        while self._gone:
            self._give(self._gone[0])  # before it leaves the queue, so that no exception loses it
            self._gone.popleft()

    def _settle(self) -> None:
        while self._gone or self._retire():
            with self._lock:
                if self._busy:
                    return  # the outer call does it when it ends
                self._busy = True
                try:
                    self._drain()
                    done = self._retire()
                    self._arenas = tuple(arena for arena in self._arenas if arena not in done)
                finally:
                    self._busy = False
            for arena in done:
                self.upstream.free(arena.base)

    def _retire(self) -> list[_Arena]:
        serving = self._serving
        return [a for a in self._arenas if a is not serving and not a.live]


_all: weakref.WeakSet[Planned] = weakref.WeakSet()
_held: list[Planned] = []  # while the process forks


def _before_fork() -> None:
    for planned in list(_all):
        planned._lock.acquire()
        _held.append(planned)


def _after_fork() -> None:
    while _held:
        _held.pop()._lock.release()


register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork)


def _lifetimes(recorded: list[tuple[int, int | None]]) -> list[tuple[int, int, int | None]]:
    """(size, start, end) of the blocks of a step; times are indices into `recorded`."""
    lives: list[tuple[int, int, int | None]] = []
    alive: dict[int, int] = {}
    for time, (address, size) in enumerate(recorded):
        if size is not None:
            alive[address] = len(lives)
            lives.append((size, time, None))
        elif (index := alive.pop(address, None)) is not None:
            lives[index] = (*lives[index][:2], time)
    return lives
