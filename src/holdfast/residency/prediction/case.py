"""One network with its times: what all questions about its budget are answered from.

Covers: the problem that `manage` would put for it, what a budget leaves for weights, the plan's
numbers, budgets around it, the smallest one that works.
Leaves to others: where the times come from (rates), the plan itself (plan).
Promise: only reads its arguments; asks the device nothing but how much it keeps for itself.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from holdfast.base.errors import OutOfMemory
from holdfast.residency import plan
from holdfast.residency.carriers.carrier import Carrier
from holdfast.residency.carriers.simulated import Simulated
from holdfast.residency.prediction.fitted import Change, Fit
from holdfast.residency.prediction.packable import Packing
from holdfast.residency.prediction.profile import Part, Profile
from holdfast.residency.prediction.rates import Facts, Times
from holdfast.residency.prediction.shapes import Size
from holdfast.residency.state import SMALL_BYTES
from holdfast.residency.weights import WATCHED_BYTES

_STEP_BYTES = 2 * 10**9
_KEEPING_ROOM_BYTES = 1 << 30  # for the rings, where somebody says how much to keep


@dataclass(frozen=True, slots=True)
class Ask:
    """What was asked, read and checked."""

    carrier: Carrier
    budget_bytes: int | None
    size: Size | None
    precision: str | None
    pack: bool | str
    keep_bytes: int | None
    progress: Callable[[str], None] | None

    @property
    def limit_bytes(self) -> int:
        """The budget; all the device has where none was given."""
        return self.carrier.total_bytes() if self.budget_bytes is None else self.budget_bytes


@dataclass(frozen=True, slots=True)
class Case:
    """One network with its times: what all questions about budgets are answered from."""

    ask: Ask
    parts: tuple[Part, ...]
    uses: tuple[plan.Use, ...]
    staying: frozenset[int]
    before_ms: float
    beside_bytes: int  # what is computed, and inputs
    facts: Facts
    packing: Packing

    @property
    def weight_bytes(self) -> int:
        """All weights."""
        return sum(part.raw_bytes for part in self.parts)

    def reserve(self, budget_bytes: int) -> int:
        """What the driver takes, and what a budget loses to rounding."""
        carrier = self.ask.carrier
        return carrier.outside_bytes() + carrier.slack_bytes(budget_bytes)

    def allowance(self, budget_bytes: int) -> int:
        """What `manage` would allow for weights."""
        room = budget_bytes - self.reserve(budget_bytes) - self.beside_bytes
        if self.ask.keep_bytes is None:
            return room
        return min(room, self.ask.keep_bytes + _KEEPING_ROOM_BYTES)

    def packs(self, budget_bytes: int) -> bool:
        """Whether `manage` would pack the weights."""
        if self.ask.pack != "auto":
            return bool(self.ask.pack)
        room = budget_bytes - self.reserve(budget_bytes)
        return self.weight_bytes > (room if self.ask.keep_bytes is None else self.ask.keep_bytes)

    def problem(self, packed: bool) -> plan.Problem:
        """As `Managed.problem` puts it."""
        sizes = [self.packing.payload_bytes(part) if packed else None for part in self.parts]
        weights = tuple(
            plan.Weight(part.raw_bytes, size or part.raw_bytes, size is not None)
            for part, size in zip(self.parts, sizes, strict=True)
        )
        small = min(SMALL_BYTES, self.weight_bytes // 10_000)
        staying = self.staying | {
            i
            for i, part in enumerate(self.parts)
            if part.raw_bytes <= (WATCHED_BYTES if part.is_buffer else small)
        }
        chunk_bytes = min(plan.CHUNK_BYTES, self.weight_bytes // 64)
        return plan.Problem(weights, self.uses, self.facts.rates, frozenset(staying), chunk_bytes)


def case_of(ask: Ask, found: Profile, times: Times, facts: Facts, packing: Packing) -> Case:
    """A profiled network with its times."""
    uses = tuple(
        plan.Use(layer.weights, ms) for layer, ms in zip(found.layers, times.layers_ms, strict=True)
    )
    activations = times.activation_bytes
    if activations is None:
        activations = found.activation_bytes
    # The simulated device counts what is computed, and inputs come from outside.
    inputs = 0 if isinstance(ask.carrier, Simulated) else found.input_bytes
    return Case(
        ask, found.parts, uses, found.staying, times.before_ms, activations + inputs, facts, packing
    )


def in_bytes(case: Case, wanted: torch.dtype) -> Case:
    """The same network with weights of one byte, cast to the format it computes with when used."""
    small = [
        dataclasses.replace(part, raw_bytes=part.raw_bytes // 2, dtype=wanted)
        if part.dtype in (torch.bfloat16, torch.float16) and not part.is_buffer
        else part
        for part in case.parts
    ]
    speed = case.facts.memory_gb_s
    uses = tuple(
        dataclasses.replace(
            use,
            compute_ms=use.compute_ms
            + sum(3 * small[w].raw_bytes for w in use.weights) / (speed or 1e9) / 1e6,
        )
        for use in case.uses
    )
    return dataclasses.replace(case, parts=tuple(small), uses=uses)


def with_plan(blank: Fit, case: Case, problem: plan.Problem, made: plan.Plan) -> Fit:
    """The answer with the numbers of a plan."""
    streamed = [made.chunks[v.chunk].raw_bytes for v in made.visits if v.slot is not None]
    takes = made.device_bytes + case.beside_bytes
    reserve = case.reserve(takes)
    return dataclasses.replace(
        blank,
        kept_bytes=made.kept_bytes,
        streamed_bytes=sum(streamed),
        link_bytes=made.streamed_bytes,
        ring_bytes=made.ring_bytes + made.decoded_bytes,
        reserve_bytes=reserve,
        peak_bytes=takes + reserve,
        step_ms=made.step_ms + case.before_ms,
        floor_ms=made.floor_ms + case.before_ms,
    )


# ---- around the budget


def around(case: Case, problem: plan.Problem, made: plan.Plan, budget: int) -> dict[str, Any]:
    """The fields of a Fit about other budgets: 2 GB more and less, or a part of a small model."""
    if case.ask.budget_bytes is None:
        return {}
    step = min(_STEP_BYTES, _round(case.weight_bytes // 8), _round(budget // 2))
    now_ms = made.step_ms + case.before_ms
    course = plan.course_of(problem)
    more = _change(case, course, made, budget + step)
    less = _change(case, course, made, budget - step)
    # Other plans may be as good by chance; more room is never worse.
    return {
        "more": dataclasses.replace(more, step_ms=min(more.step_ms or now_ms, now_ms)),
        "less": dataclasses.replace(
            less, step_ms=None if less.step_ms is None else max(less.step_ms, now_ms)
        ),
    }


def _round(count: int) -> int:
    """1, 2 or 5 with zeros behind, not above `count`."""
    power = 10 ** max(0, len(str(count)) - 1)
    return next((n * power for n in (5, 2, 1) if n * power <= count), 1)


def _change(case: Case, course: plan.Course, made: plan.Plan, budget: int) -> Change:
    """The plan of another budget, with rings about as large."""
    allowed = case.allowance(budget)
    whole = plan.resident(course)
    if whole.device_bytes <= allowed:
        return Change(budget, whole.step_ms + case.before_ms)
    rings = plan.rings_of(course)
    wanted = made.ring_bytes or rings[len(rings) // 2]
    ring = min(rings, key=lambda size: abs(size - wanted))
    found = [
        streaming.step_ms + case.before_ms
        for packed in plan.packing(course.chunks)
        if (streaming := plan.streaming(course, allowed, ring, packed, None))
    ]
    if found:
        return Change(budget, min(found))
    try:
        exact = plan.make(course.problem, allowed)
    except OutOfMemory:
        return Change(budget, None)
    return Change(budget, exact.step_ms + case.before_ms)


def smallest(case: Case, problem: plan.Problem) -> int:
    """The least budget: what the hungriest layers need, with all that comes beside."""
    least = plan.smallest_bytes(_typical(problem)) + case.beside_bytes
    budget = least
    for _ in range(4):  # what is lost to rounding grows with the budget
        budget = least + case.reserve(budget)
    return budget


def _typical(problem: plan.Problem) -> plan.Problem:
    """Layers of each size a few times only: no others decide about the least there must be."""
    times: dict[tuple[int, ...], int] = {}
    uses: list[plan.Use] = []
    for use in problem.uses:
        sizes = tuple(problem.weights[w].raw_bytes for w in use.weights)
        times[sizes] = times.get(sizes, 0) + 1
        if times[sizes] <= 2:
            uses.append(use)
    uses.append(plan.Use(tuple(sorted(problem.pinned)), 0.0))
    return dataclasses.replace(problem, uses=tuple(uses))
