"""One network with its times: its plan under a budget, other budgets, the smallest that works.

Builds the same planning problem as `manage` would.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from holdfast.base.errors import OutOfMemory
from holdfast.residency import plan
from holdfast.residency.carriers.carrier import Carrier
from holdfast.residency.carriers.simulated import Simulated
from holdfast.residency.managed.schedule import SMALL_BYTES
from holdfast.residency.plan.course import Course, list_ring_sizes, make_course
from holdfast.residency.plan.planner import list_packing_options, plan_resident, plan_streaming
from holdfast.residency.predict.answer import BudgetChange, Fit
from holdfast.residency.predict.packable import Packing
from holdfast.residency.predict.profile import Profile, ProfiledStretch
from holdfast.residency.predict.rates import Facts, Times
from holdfast.residency.predict.shapes import Size
from holdfast.residency.stream.weights import WATCHED_BYTES

_STEP_BYTES = 2 * 10**9
_KEEPING_ROOM_BYTES = 1 << 30  # for the rings, if `keep_bytes` is set


@dataclass(frozen=True, slots=True)
class FitRequest:
    """The checked arguments of `fit`."""

    carrier: Carrier
    budget_bytes: int | None
    size: Size | None
    precision: str | None
    pack: bool | str
    keep_bytes: int | None
    progress: Callable[[str], None] | None

    @property
    def limit_bytes(self) -> int:
        """The budget, by default all memory of the device."""
        return self.carrier.total_bytes() if self.budget_bytes is None else self.budget_bytes


@dataclass(frozen=True, slots=True)
class Case:
    """One network with its times on a device."""

    request: FitRequest
    stretches: tuple[ProfiledStretch, ...]
    uses: tuple[plan.Use, ...]
    staying: frozenset[int]
    before_ms: float
    beside_bytes: int  # activations and inputs
    facts: Facts
    packing: Packing

    @property
    def weight_bytes(self) -> int:
        """The bytes of all weights."""
        return sum(part.raw_bytes for part in self.stretches)

    def reserve(self, budget_bytes: int) -> int:
        """Memory of the driver, and what a budget loses to rounding."""
        carrier = self.request.carrier
        return carrier.outside_bytes() + carrier.slack_bytes(budget_bytes)

    def allowance(self, budget_bytes: int) -> int:
        """The bytes that `manage` would allow for weights."""
        room = budget_bytes - self.reserve(budget_bytes) - self.beside_bytes
        if self.request.keep_bytes is None:
            return room
        return min(room, self.request.keep_bytes + _KEEPING_ROOM_BYTES)

    def packs(self, budget_bytes: int) -> bool:
        """Whether `manage` would pack the weights."""
        if self.request.pack != "auto":
            return bool(self.request.pack)
        room = self.request.keep_bytes
        if room is None:
            room = budget_bytes - self.reserve(budget_bytes)
        return self.weight_bytes > room

    def problem(self, packed: bool) -> plan.Problem:
        """The same problem as `Managed.problem`."""
        sizes = [self.packing.payload_bytes(part) if packed else None for part in self.stretches]
        weights = tuple(
            plan.Weight(part.raw_bytes, size or part.raw_bytes, size is not None)
            for part, size in zip(self.stretches, sizes, strict=True)
        )
        small = min(SMALL_BYTES, self.weight_bytes // 10_000)
        staying = self.staying | {
            i
            for i, part in enumerate(self.stretches)
            if part.raw_bytes <= (WATCHED_BYTES if part.is_buffer else small)
        }
        chunk_bytes = min(plan.CHUNK_BYTES, self.weight_bytes // 64)
        return plan.Problem(weights, self.uses, self.facts.rates, frozenset(staying), chunk_bytes)


def make_case(
    request: FitRequest, found: Profile, times: Times, facts: Facts, packing: Packing
) -> Case:
    """Combine a profile with times and device facts."""
    uses = tuple(
        plan.Use(layer.weights, ms) for layer, ms in zip(found.layers, times.layers_ms, strict=True)
    )
    beside = found.activation_bytes if times.activation_bytes is None else times.activation_bytes
    if not isinstance(request.carrier, Simulated):  # that counts only results
        beside += found.input_bytes
    own = (found.stretches, uses, found.staying, times.before_ms)
    return Case(request, *own, beside, facts, packing)


def store_in_fp8(case: Case, wanted: torch.dtype) -> Case:
    """The same network with fp8 weights, which are cast to the compute dtype at each use."""
    small = [
        dataclasses.replace(part, raw_bytes=part.raw_bytes // 2, dtype=wanted)
        if part.dtype in (torch.bfloat16, torch.float16) and not part.is_buffer
        else part
        for part in case.stretches
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
    return dataclasses.replace(case, stretches=tuple(small), uses=uses)


def add_plan(blank: Fit, case: Case, made: plan.Plan, more: dict[str, Any]) -> Fit:
    """The answer with the figures of a plan, and `more` fields."""
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
        **more,
    )


# ---- around the budget


def compare_budgets(
    case: Case, problem: plan.Problem, made: plan.Plan, budget: int
) -> dict[str, Any]:
    """The fields of a Fit about other budgets: 2 GB more and less, or less for a small model."""
    if case.request.budget_bytes is None:
        return {}
    step = min(_STEP_BYTES, _round_down(case.weight_bytes // 8), _round_down(budget // 2))
    now_ms = made.step_ms + case.before_ms
    course = make_course(problem)
    more = _predict_change(case, course, made, budget + step)
    less = _predict_change(case, course, made, budget - step)
    # These plans are not searched as thoroughly; more memory is never slower.
    return {
        "more": dataclasses.replace(more, step_ms=min(more.step_ms or now_ms, now_ms)),
        "less": dataclasses.replace(
            less, step_ms=None if less.step_ms is None else max(less.step_ms, now_ms)
        ),
    }


def _round_down(count: int) -> int:
    """The largest 1, 2 or 5 times a power of ten that is at most `count`."""
    power = 10 ** max(0, len(str(count)) - 1)
    return next((n * power for n in (5, 2, 1) if n * power <= count), 1)


def _predict_change(case: Case, course: Course, made: plan.Plan, budget: int) -> BudgetChange:
    """The step time with another budget and a ring of about the same size."""
    allowed = case.allowance(budget)
    whole = plan_resident(course)
    if whole.device_bytes <= allowed:
        return BudgetChange(budget, whole.step_ms + case.before_ms)
    rings = list_ring_sizes(course)
    wanted = made.ring_bytes or rings[len(rings) // 2]
    ring = min(rings, key=lambda size: abs(size - wanted))
    found = [
        streaming.step_ms + case.before_ms
        for packed in list_packing_options(course.chunks)
        if (streaming := plan_streaming(course, allowed, ring, packed, None))
    ]
    if found:
        return BudgetChange(budget, min(found))
    try:
        exact = plan.make(course.problem, allowed)
    except OutOfMemory:
        return BudgetChange(budget, None)
    return BudgetChange(budget, exact.step_ms + case.before_ms)


def find_min_budget(case: Case, problem: plan.Problem) -> int:
    """The smallest budget that works: the largest layers, activations and reserve."""
    times: Counter[tuple[int, ...]] = Counter()
    uses = [plan.Use(tuple(sorted(problem.pinned)), 0.0)]
    for use in problem.uses:  # two of each size: more of them do not change the result
        sizes = tuple(problem.weights[w].raw_bytes for w in use.weights)
        times[sizes] += 1
        if times[sizes] <= 2:
            uses.insert(-1, use)
    typical = dataclasses.replace(problem, uses=tuple(uses))
    budget = least = plan.find_smallest_bytes(typical) + case.beside_bytes
    for _ in range(4):  # the loss to rounding grows with the budget
        budget = least + case.reserve(budget)
    return budget
