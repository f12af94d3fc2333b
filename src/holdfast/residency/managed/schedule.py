"""Chooses the plan that a managed module runs by, and when to make another one."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import replace

from holdfast.residency import plan
from holdfast.residency.managed.call_memory import CallMemory
from holdfast.residency.managed.group import Group
from holdfast.residency.managed.loose_weights import LooseWeights
from holdfast.residency.managed.module_hooks import LayerHooks
from holdfast.residency.managed.trace import Order, Stopwatch
from holdfast.residency.managed.weight_set import WeightSet
from holdfast.residency.managed.workspaces import Workspaces
from holdfast.residency.stream.streamer import Streamer

# Weights smaller than this always stay: moving them costs more than they take.
SMALL_BYTES = 64 << 10
LOOK_MS = 25.0  # at most this much compute between two checks for an interrupt

Progress = Callable[[int, int], None]


class Schedule:
    """The order of each entry's layers, the plan for one of them, and the streamer that runs it."""

    def __init__(
        self,
        name: str,
        group: Group,
        weights: WeightSet,
        loose: LooseWeights,
        memory: CallMemory,
        workspaces: Workspaces,
        hooks: LayerHooks,
        progress: Progress | None,
    ) -> None:
        self._name, self._group, self._carrier = name, group, group.carrier
        self._weights, self._loose, self._memory = weights, loose, memory
        self._workspaces, self._hooks, self.progress = workspaces, hooks, progress
        self.orders: dict[str, Order] = {}  # by entry
        self.streamer: Streamer | None = None
        self.watch: Stopwatch | None = None  # times this pass
        self.planned_for: plan.Problem | None = None  # the problem of the latest plan
        self.uses: tuple[plan.Use, ...] = ()
        self.uses_of: dict[str, list[int]] = {}  # by path
        self.needs: dict[str, tuple[int, ...]] = {}  # all weights that a layer was seen to use
        self.borrows = False  # whether weights are used without their layer
        self._paths: tuple[str, ...] = ()
        self._current: tuple[str, int] | None = None  # entry and allowance of the streamer

    @property
    def is_current(self) -> bool:
        """Whether the plan uses the latest times."""
        return self._current is not None

    def arrange(self, entry: str, order: Order) -> None:
        """Start a plan for this order and the current allowance. Raises OutOfMemory."""
        allowed = self._memory.allowance()
        entry_before, allowed_before = self._current or ("", 0)
        held = math.inf if self.streamer is None else self.streamer.plan.device_bytes
        if entry_before != entry or not held <= allowed <= allowed_before:
            self._plan_anew(order, allowed)  # slightly less room would not matter
        assert self.streamer is not None
        self.streamer.load({}, None)
        self._current = (entry, allowed)
        self.streamer.pump()
        # Watching operations takes time, so only passes that are not watched are timed.
        is_watched = not (self._memory.is_sure() or self.borrows or self._memory.never_sure)
        self.watch = None if order.settled or is_watched else Stopwatch(self._carrier)

    def _plan_anew(self, order: Order, allowed: int) -> None:
        self._current = None
        stretches = self._weights.stretches
        for weight in (weight for key in self._loose.memory for weight in key):
            stretches[weight].bring_home_if_changed()
        problem = self.planned_for = self._problem(order)
        chosen = plan.make(problem, allowed, self._memory.keep_bytes, self._name)
        old = self.streamer
        if old is not None and self._paths == order.paths and old.serves(problem, allowed):
            now_ms = plan.simulate(problem, old.plan)
            if now_ms <= chosen.step_ms * 1.01:
                old.adopt(problem, now_ms)
                self.uses = order.uses
                self._hooks.put_on(self._hooked_paths(order, old.plan))
                return
        patched = self._weights.patched()
        kept = (chosen.chunks[i].weights for i in chosen.kept)
        staying = {weights for weights in kept if not patched.intersection(weights)}
        self._memory.forget_sure()
        inherited = {} if old is None else old.close("the plan changed", staying)
        self._loose.drop_unbound()
        for key in list(self._loose.memory):
            memory = self._loose.memory[key]
            if key in staying and memory.numel() == self._weights.bytes_of(key):
                inherited[key] = memory
            self._loose.drop(key, "a plan was made")
        memory = None
        inherited = {w: memory for w, memory in inherited.items() if w in staying}
        self.streamer = None
        self._carrier.tidy()
        if self._carrier.gaps_bytes() > self._carrier.slack_bytes(allowed) // 4:
            inherited.clear()  # copying it again costs less than the fragmentation
            self._carrier.tidy()
        self._paths = order.paths
        self.uses_of, self.uses = {}, order.uses
        for number, path in enumerate(order.paths):
            self.uses_of.setdefault(path, []).append(number)
        self.needs, self.borrows = _collect_needs(order, self._weights.own, len(stretches))
        self._hooks.put_on(self._hooked_paths(order, chosen))
        self.streamer = Streamer(
            self._carrier,
            stretches,
            problem,
            chosen,
            self._group.journal,
            self._weights.merge_loras,
        )
        self.streamer.load(inherited, self.progress)

    def _problem(self, order: Order) -> plan.Problem:
        stretches = self._weights.stretches
        weights = tuple(
            plan.Weight(s.raw_bytes, s.payload_bytes, s.layout is not None) for s in stretches
        )
        total_bytes = self._weights.total_bytes
        small = min(SMALL_BYTES, total_bytes // 10_000)
        staying = order.staying | self._weights.escaped
        staying |= {s.index for s in stretches if s.raw_bytes <= small or s.stays}
        return plan.Problem(
            weights,
            order.uses,
            self._carrier.rates(packed=any(weight.packed for weight in weights)),
            frozenset(staying),
            min(plan.CHUNK_BYTES, total_bytes // 64),
        )

    def _hooked_paths(self, order: Order, chosen: plan.Plan) -> set[str]:
        """The layers with weights that do not simply stay; all of them while they are timed."""
        own = self._weights.own
        if not order.settled:
            return {*order.paths, *(path for path, weights in own.items() if weights)}
        kept = {w for i in chosen.kept for w in chosen.chunks[i].weights}
        hooked: set[str] = set()
        now_ms = 0.0
        for path, use in zip(order.paths, order.uses, strict=True):
            due = now_ms >= LOOK_MS  # check for interrupts even if everything stays
            if due or any(weight not in kept for weight in use.weights):
                hooked.add(path)
                now_ms = 0.0
            now_ms += use.compute_ms
        seen = {weight for use in order.uses for weight in use.weights}
        for path, weights in own.items():
            if path in self._workspaces or not seen.issuperset(weights):
                hooked.add(path)
        return hooked

    # ---- after a pass

    def learn(self, entry: str, order: Order) -> None:
        """Take the order that a pass without a plan recorded."""
        known = self.orders.get(entry)
        if known is not None and known.paths == order.paths:
            uses = zip(known.uses, order.uses, strict=True)
            if known.staying == order.staying and all(a.weights == b.weights for a, b in uses):
                return
        # With packed weights the first pass builds kernels and the second captures them.
        self.orders[entry] = replace(order, needed=4 if self._weights.has_packed else 2)

    def take_times(self, entry: str) -> None:
        """Add the times of this pass to its order."""
        if self.watch is not None:
            order = self.orders[entry] = self.watch.timed(self.orders[entry])
            if order.settled:
                self._current = None

    # ---- dropping a plan

    def close(self, reason: str) -> None:
        """Evict everything from the device."""
        if self.streamer is not None:
            self.streamer.close(reason)
        self.streamer = None
        self._current = None
        self._memory.forget_sure()

    def dissolve(self, using: Collection[int]) -> None:
        """Drop the plan in the middle of a pass; kept weights stay as loose weights."""
        assert self.streamer is not None
        ring_bytes = self.streamer.ring_bytes
        self._loose.memory |= self.streamer.dissolve(using)
        self._loose.lingering_bytes = ring_bytes if using else 0
        self.streamer = self._current = self.watch = None
        self._memory.forget_sure()

    # ---- queries

    def predict_ms(self, calls: int = 1) -> float | None:
        """Predicted time of that many calls, in step if they can share copies."""
        if self.streamer is None:
            return None
        at_work = self.streamer.plan
        if calls == 1 or not at_work.visits:
            return at_work.step_ms * calls
        uses = tuple(replace(use, compute_ms=use.compute_ms * calls) for use in self.uses)
        return plan.simulate(replace(self.streamer.problem, uses=uses), at_work)


def _collect_needs(
    order: Order, own: dict[str, tuple[int, ...]], count: int
) -> tuple[dict[str, tuple[int, ...]], bool]:
    """All that each layer may use, and whether weights are, or may be, used without their layer."""
    needs = {path: dict.fromkeys(weights) for path, weights in own.items()}
    for path, use in zip(order.paths, order.uses, strict=True):
        needs.setdefault(path, {}).update(dict.fromkeys(use.weights))
    borrows = any(len(needs[path]) > len(own.get(path, ())) for path in needs)
    seen = {weight for use in order.uses for weight in use.weights} | order.staying
    return {path: tuple(found) for path, found in needs.items()}, borrows or len(seen) < count
