"""Plans for made-up models: what stays, what passes through, and never more than is allowed."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from holdfast.base.errors import OutOfMemory
from holdfast.base.units import format_bytes
from holdfast.residency import plan as planning
from holdfast.residency.plan import Plan, Problem, Rates, Use, Weight, course, planner
from holdfast.residency.stream.ring import ALIGNMENT, RingSlot, aligned

MB = 1 << 20


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    """Weights of any size, used once, often, together, or never; some packed, some pinned."""
    unit = draw(st.sampled_from((1, 700, 4096, MB)))
    count = draw(st.integers(1, 10))
    weights: list[Weight] = []
    for _ in range(count):
        raw = draw(st.integers(1, 40)) * unit
        packed = raw > 64 and draw(st.booleans())
        weights.append(Weight(raw, max(1, raw * 7 // 10) if packed else raw, packed))
    uses = [
        Use(
            tuple(draw(st.lists(st.integers(0, count - 1), max_size=3))),
            draw(st.sampled_from((0.0, 0.01, 1.0, 30.0))),
        )
        for _ in range(draw(st.integers(1, 16)))
    ]
    return Problem(
        tuple(weights),
        tuple(uses),
        Rates(link_gb_s=draw(st.sampled_from((0.1, 8.0, 55.0)))),
        frozenset(draw(st.sets(st.integers(0, count - 1), max_size=2))),
        draw(st.sampled_from((1, 5 * unit, 100 * unit))),
    )


def total(problem: Problem) -> int:
    return sum(aligned(w.raw_bytes) + aligned(w.payload_bytes) for w in problem.weights)


budgets = st.floats(0, 1.2)


def made(problem: Problem, share: float, keep_bytes: int | None = None) -> tuple[Plan, int]:
    """A plan for that share of what there is between the least and everything."""
    least = planning.find_smallest_bytes(problem, keep_bytes)
    allowance = int(least + share * max(0, total(problem) - least))
    return planning.make(problem, allowance, keep_bytes), allowance


@given(problems(), budgets)
def test_a_plan_never_takes_more_than_it_is_allowed(problem: Problem, share: float) -> None:
    plan, allowance = made(problem, share)
    assert plan.device_bytes <= allowance


@given(problems(), budgets)
def test_what_the_plan_says_it_takes_is_what_its_parts_take(problem: Problem, share: float) -> None:
    plan, _ = made(problem, share)
    kept = sum(plan.chunks[i].raw_bytes for i in plan.kept)
    kept += sum(plan.chunks[i].payload_bytes for i in plan.kept_packed)
    assert plan.kept_bytes == kept
    for visit in plan.visits:
        chunk = plan.chunks[visit.chunk]
        if visit.slot is not None:
            assert visit.slot.nbytes == chunk.payload_bytes
            assert visit.slot.offset + visit.slot.nbytes <= plan.ring_bytes
        if visit.decoded is not None:
            assert visit.decoded.nbytes == chunk.raw_bytes
            assert visit.decoded.offset + visit.decoded.nbytes <= plan.decoded_bytes
    streamed = sum(plan.chunks[v.chunk].payload_bytes for v in plan.visits if v.slot is not None)
    assert plan.streamed_bytes == streamed


@given(problems(), budgets)
def test_every_weight_of_every_use_is_there(problem: Problem, share: float) -> None:
    plan, _ = made(problem, share)
    homes = [w for chunk in plan.chunks for w in chunk.weights]
    assert len(homes) == len(set(homes))
    home = {w: i for i, chunk in enumerate(plan.chunks) for w in chunk.weights}
    for number, use in enumerate(problem.uses):
        for weight in use.weights:
            chunk = home[weight]
            visits = [v for v in plan.visits if v.chunk == chunk and v.first <= number <= v.last]
            if chunk in plan.kept:
                assert not visits
            else:
                (visit,) = visits
                assert (visit.slot is None) == (chunk in plan.kept_packed)
                assert (visit.decoded is not None) == plan.chunks[chunk].packed


@given(problems(), budgets)
def test_weights_of_a_chunk_do_not_overlap_in_it(problem: Problem, share: float) -> None:
    plan, _ = made(problem, share)
    for chunk in plan.chunks:
        assert len({problem.weights[w].packed for w in chunk.weights}) == 1
        raw = payload = 0
        places = zip(chunk.weights, chunk.raw_offsets, chunk.payload_offsets, strict=True)
        for weight, raw_offset, payload_offset in places:
            assert raw_offset >= raw
            assert payload_offset >= payload
            assert raw_offset % ALIGNMENT == payload_offset % ALIGNMENT == 0
            raw = raw_offset + problem.weights[weight].raw_bytes
            payload = payload_offset + problem.weights[weight].payload_bytes
        assert raw <= chunk.raw_bytes
        assert payload <= chunk.payload_bytes


@given(problems(), budgets)
def test_pinned_weights_always_stay(problem: Problem, share: float) -> None:
    plan, _ = made(problem, share)
    used = {w for use in problem.uses for w in use.weights}
    kept = {w for i in plan.kept for w in plan.chunks[i].weights}
    assert problem.pinned & used <= kept


@given(problems(), budgets)
def test_places_in_both_rings_are_free_when_they_are_filled(problem: Problem, share: float) -> None:
    plan, _ = made(problem, share)
    replay(problem, plan)


def replay(problem: Problem, plan: Plan, passes: int = 3) -> None:
    """Copies and decodes as early as they may be; an owner for every unit of memory."""
    count = len(plan.visits)
    ring: dict[int, int] = {}  # which stay lies there
    decoded: dict[int, int] = {}
    read = [-1] * count
    over = [-1] * count
    filled = opened = 0

    def take(memory: dict[int, int], slot: RingSlot, stay: int, free: list[int]) -> None:
        for at in range(slot.offset // ALIGNMENT, -(-(slot.offset + slot.nbytes) // ALIGNMENT)):
            before = memory.get(at)
            assert before is None or free[before % count] >= before
            memory[at] = stay

    def holds(memory: dict[int, int], slot: RingSlot, stay: int) -> bool:
        units = range(slot.offset // ALIGNMENT, -(-(slot.offset + slot.nbytes) // ALIGNMENT))
        return all(memory.get(at) == stay for at in units)

    def may(slot: RingSlot | None, stay: int, free: list[int]) -> bool:
        if slot is None:
            return True
        latest = ((i, stay - ((stay - i) % count or count)) for i in slot.after)
        return all(free[i] >= number for i, number in latest)

    def run_ahead() -> None:
        nonlocal filled, opened
        moved = count > 0
        while moved:
            moved = False
            if filled < passes * count and may(plan.visits[filled % count].slot, filled, read):
                slot = plan.visits[filled % count].slot
                if slot is not None:
                    take(ring, slot, filled, read)
                filled += 1
                moved = True
            visit = plan.visits[opened % count]
            if opened < filled and may(visit.decoded, opened, over):
                if visit.decoded is not None:
                    assert visit.slot is None or holds(ring, visit.slot, opened)
                    take(decoded, visit.decoded, opened, over)
                    read[opened % count] = opened
                opened += 1
                moved = True

    for number in range(passes):
        for use in range(len(problem.uses)):
            run_ahead()
            for i, visit in enumerate(plan.visits):
                if visit.first <= use <= visit.last:
                    stay = number * count + i
                    assert opened > stay, "nobody will ever make room for it"
                    if visit.decoded is not None:
                        assert holds(decoded, visit.decoded, stay)
                    elif visit.slot is not None:
                        assert holds(ring, visit.slot, stay)
            for i, visit in enumerate(plan.visits):
                if visit.last == use:
                    over[i] = number * count + i
                    if visit.decoded is None:
                        read[i] = over[i]


@given(problems(), budgets)
def test_no_pass_is_promised_faster_than_computing_or_the_link(
    problem: Problem, share: float
) -> None:
    plan, _ = made(problem, share)
    assert plan.floor_ms >= problem.compute_ms - 1e-9
    assert plan.step_ms >= plan.floor_ms * (1 - 1e-9) - 1e-9
    assert planning.simulate(problem, plan) == pytest.approx(plan.step_ms)


@given(problems(), budgets, budgets)
def test_more_memory_is_never_slower(problem: Problem, share: float, more: float) -> None:
    slow, allowance = made(problem, share)
    larger = int(allowance * (1 + more))
    fast = planning.make(problem, larger)
    assert fast.step_ms <= slow.step_ms * 1.02 + 1e-6


def hungriest(problem: Problem) -> int:
    """What no plan can do without: the weights of one use beside those that always stay."""
    staying = problem.pinned & {w for use in problem.uses for w in use.weights}
    needs = [{*use.weights, *staying} for use in problem.uses]
    return max(sum(aligned(problem.weights[w].raw_bytes) for w in need) for need in needs)


@given(problems())
def test_the_smallest_allowance_works_and_what_cannot_work_does_not(problem: Problem) -> None:
    least = planning.find_smallest_bytes(problem)
    assert planning.make(problem, least).device_bytes <= least
    impossible = hungriest(problem) - 1
    assert least > impossible
    assume(impossible > 0)
    with pytest.raises(OutOfMemory) as raised:
        planning.make(problem, impossible, what="Net")
    assert str(raised.value) == (
        f"cannot run Net with {format_bytes(impossible)} for its weights\n"
        f"  expected: at least {format_bytes(least)}: its largest layer and pinned weights\n"
        "  try: a larger budget, smaller pictures, or fewer of them at once"
    )


def plainly_smallest(problem: Problem, keep_bytes: int | None) -> int:
    """The definition: halve until a plan can no longer be made, each from the very beginning."""
    fine = replace(problem, chunk_bytes=1)
    once = course.make_course(fine)
    whole = planner.plan_resident(once).device_bytes
    low, high = 0, 2 * sum(c.raw_bytes + c.payload_bytes for c in once.chunks) + ALIGNMENT
    if keep_bytes is None or whole <= keep_bytes:
        high = min(high, whole)
    while high - low > ALIGNMENT:
        middle = (low + high) // 2
        plans = (
            planner.plan_streaming(course.make_course(fine), middle, ring, packed, keep_bytes)
            for ring in course.list_ring_sizes(once)
            for packed in (False, True)
        )
        low, high = (low, middle) if any(plans) else (middle, high)
    return high


@given(problems(), st.none() | st.floats(0, 1))
@settings(max_examples=40)
def test_the_smallest_allowance_is_that_of_plans_made_one_by_one(
    problem: Problem, keep: float | None
) -> None:
    keep_bytes = None if keep is None else int(keep * total(problem))
    assert planning.find_smallest_bytes(problem, keep_bytes) == plainly_smallest(
        problem, keep_bytes
    )


@given(problems(), st.lists(st.tuples(budgets, st.booleans()), min_size=2, max_size=6))
def test_what_plans_share_changes_none_of_them(
    problem: Problem, asked: list[tuple[float, bool]]
) -> None:
    shared = course.make_course(problem)
    for share, packed in asked:
        allowance = int(share * total(problem))
        for ring in course.list_ring_sizes(shared):
            alone = course.make_course(problem)
            spans = course._spans(alone, ring // 4)
            assert shared.stays(ring).spans == tuple(s for s in spans if s[0] not in alone.pinned)
            plan = planner.plan_streaming(shared, allowance, ring, packed, None)
            assert plan == planner.plan_streaming(alone, allowance, ring, packed, None)
            works = planner._is_feasible(alone, allowance, ring, packed, None)
            assert works == (plan is not None)


@given(problems(), budgets)
def test_a_pass_takes_as_long_as_its_events_one_by_one(problem: Problem, share: float) -> None:
    plan, _ = made(problem, share)
    assert plan.step_ms == plainly_simulated(problem, plan)


def plainly_simulated(problem: Problem, plan: Plan) -> float:
    """Every visit is looked at in every use."""
    rates = problem.rates
    freed = [float("-inf")] * len(plan.visits)
    link = now = begun = 0.0
    if not plan.visits:
        return problem.compute_ms
    for _ in range(2):
        begun = now
        for number, use in enumerate(problem.uses):
            for i, visit in enumerate(plan.visits):
                chunk = plan.chunks[visit.chunk]
                if visit.first == number and visit.slot is not None:
                    link = max([link, *(freed[k] for k in visit.slot.after)])
                    link = link + chunk.payload_bytes / rates.link_gb_s / 1e6 + rates.copy_ms
                    now = max(now, link)
                if visit.first == number and visit.decoded is not None:
                    now += chunk.raw_bytes / rates.decode_gb_s / 1e6 + rates.copy_ms
                    freed[i] = now
            now += use.compute_ms
            for i, visit in enumerate(plan.visits):
                if visit.last == number and visit.decoded is None:
                    freed[i] = now
    return now - begun


@given(problems(), budgets, st.floats(0, 1))
def test_no_more_is_kept_than_was_asked_for(problem: Problem, share: float, keep: float) -> None:
    pinned = sum(aligned(problem.weights[w].raw_bytes) for w in problem.pinned)
    keep_bytes = int(keep * total(problem))
    plan, _ = made(problem, share, keep_bytes)
    assert plan.kept_bytes <= max(pinned, keep_bytes)


@given(problems(), budgets)
@settings(max_examples=20)
def test_the_same_problem_gives_the_same_plan(problem: Problem, share: float) -> None:
    assert made(problem, share) == made(replace(problem), share)


def layers(count: int, each: int = 8 * MB, ms: float = 1.0) -> Problem:
    weights = tuple(Weight(each, each) for _ in range(count))
    uses = tuple(Use((i,), ms) for i in range(count))
    return Problem(weights, uses, Rates(link_gb_s=1.0), chunk_bytes=each)


def test_everything_stays_where_everything_fits() -> None:
    plan = planning.make(layers(4), 32 * MB)
    assert plan.kept == frozenset(range(4))
    assert plan.visits == ()
    assert (plan.step_ms, plan.floor_ms, plan.streamed_bytes) == (4.0, 4.0, 0)


def test_what_stays_is_spread_over_the_time_of_a_pass() -> None:
    plan = planning.make(layers(16), 16 * 4 * MB)
    kept = sorted(plan.kept)
    gaps = [b - a for a, b in itertools.pairwise(kept)]
    assert len(kept) >= 5
    assert max(gaps) - min(gaps) <= 1


def test_a_weight_that_would_cross_the_link_twice_stays_first() -> None:
    problem = layers(16)
    again = (*problem.uses, Use((3,), 1.0))
    plan = planning.make(replace(problem, uses=again), 40 * MB)
    assert any(plan.chunks[i].weights == (3,) for i in plan.kept)


def test_a_model_without_weights_needs_nothing() -> None:
    plan = planning.make(Problem((), (Use((), 2.0),), Rates(1.0)), 0)
    assert (plan.device_bytes, plan.step_ms) == (0, 2.0)


def test_no_memory_at_all_says_what_is_needed() -> None:
    with pytest.raises(OutOfMemory) as raised:
        planning.make(layers(4), -5)
    assert str(raised.value) == (
        "cannot run the model with 0 B for its weights\n"
        "  expected: at least 8.4 MB: its largest layer and pinned weights\n"
        "  try: a larger budget, smaller pictures, or fewer of them at once"
    )
