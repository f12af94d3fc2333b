from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.base.errors import BadInput, NotFound
from holdfast.memory.plan.packing import Span
from holdfast.memory.plan.replay import (
    Outcome,
    Requests,
    compare,
    names,
    replay,
    requests,
    spans,
    table,
)
from holdfast.memory.plan.simulators import TorchDefault
from holdfast.memory.pools.pool import Pool
from holdfast.memory.profile.recording import Event, Kind, MemoryPlace, Recording
from holdfast.memory.resources.resource import Virtual

TRACES = Path(__file__).parents[2] / "benchmarks" / "traces"


def recorded(*events: tuple[Kind, int, int] | tuple[Kind, int, int, int]) -> Recording:
    """(kind, address, size) or (kind, address, size, place), one event after the other."""
    made = Recording(places_table=[MemoryPlace("torch", "cpu"), MemoryPlace("numpy", "cpu")])
    for at, (kind, address, size, *place) in enumerate(events):
        made.add(Event(at * 10, kind, address, size, 0, place[0] if place else 0, 0))
    return made


def test_requests_are_numbered_in_order_and_all_freed_in_the_end() -> None:
    found = requests(
        recorded(
            (Kind.ALLOC, 100, 8),
            (Kind.ALLOC, 200, 16),
            (Kind.FREE, 100, 0),
            (Kind.ALLOC, 100, 32),  # the address again
            (Kind.FREE, 200, 16),
        )
    )
    assert found == Requests((8, 16, 32), (0, 1, ~0, 2, ~1, ~2))
    assert found.spans == (Span(0, 2, 8), Span(1, 4, 16), Span(3, 5, 32))
    assert found.max_live_bytes == 48


def test_only_blocks_count() -> None:
    found = requests(
        recorded(
            (Kind.RESERVE, 0, 4096),
            (Kind.FREE, 50, 8),  # from before the recording
            (Kind.ALLOC, 60, 0),
            (Kind.ALLOC, 100, 8),
            (Kind.RELEASE, 0, 4096),
            (Kind.FREE, 60, 0),
        )
    )
    assert found == Requests((8,), (0, ~0))


def test_a_second_block_at_an_address_ends_the_first() -> None:
    found = requests(recorded((Kind.ALLOC, 100, 8), (Kind.ALLOC, 100, 16)))
    assert found == Requests((8, 16), (0, ~0, 1, ~1))


def test_places_are_apart_and_can_be_chosen() -> None:
    recording = recorded((Kind.ALLOC, 100, 8, 0), (Kind.ALLOC, 100, 16, 1), (Kind.FREE, 100, 0, 1))
    assert requests(recording) == Requests((8, 16), (0, 1, ~1, ~0))
    assert spans(recording, place=1) == (Span(0, 1, 16),)


@pytest.mark.parametrize(
    ("events", "place", "text"),
    [
        ([], None, "the recording is empty"),
        ([(Kind.RESERVE, 0, 4096)], None, "the recording holds no blocks"),
        ([(Kind.ALLOC, 1, 1)], 1, "the recording holds no blocks of numpy on cpu"),
    ],
)
def test_nothing_to_replay_is_an_error(
    events: list[tuple[Kind, int, int]], place: int | None, text: str
) -> None:
    with pytest.raises(BadInput) as caught:
        requests(recorded(*events), place)
    assert str(caught.value) == (
        f"there is nothing to replay: {text}\n  expected: at least one block of one byte or more"
    )


def test_replay_asks_for_the_same_in_the_same_order() -> None:
    calls: list[tuple[str, int]] = []

    class Written:
        peak_reserved_bytes = 96

        def allocate(self, size: int) -> int:
            calls.append(("allocate", size))
            return 1000 + len(calls)

        def free(self, address: int) -> None:
            calls.append(("free", address))

    recording = recorded((Kind.ALLOC, 1, 8), (Kind.ALLOC, 2, 40), (Kind.FREE, 1, 0))
    outcome = replay(recording, Written())
    assert calls == [("allocate", 8), ("allocate", 40), ("free", 1001), ("free", 1002)]
    assert (outcome.name, outcome.blocks, outcome.max_live_bytes) == ("Written", 2, 48)
    assert outcome.ratio == 2.0
    assert outcome.seconds > 0


def test_compare_gives_an_outcome_for_each_name_and_says_how_far_it_is() -> None:
    recording = recorded((Kind.ALLOC, 1, 5 << 20), (Kind.FREE, 1, 0), (Kind.ALLOC, 2, 3 << 20))
    seen: list[tuple[int, int, str]] = []
    outcomes = compare(recording, progress=lambda *now: seen.append(now))
    assert [o.name for o in outcomes] == names()
    assert seen == [(number, 6, name) for number, name in enumerate(names())]
    reserved = {o.name: o.peak_reserved_bytes >> 20 for o in outcomes}
    assert reserved == {
        "holdfast pool": 6,
        "holdfast plan": 5,
        "torch default": 20,
        "torch expandable": 20,
        "RMM pool": 5,
        "Genesis buckets": 12,
    }
    assert [o.name for o in compare(recording, ["torch default"])] == ["torch default"]


def test_compare_refuses_a_name_it_does_not_know() -> None:
    with pytest.raises(NotFound) as caught:
        compare(recorded((Kind.ALLOC, 1, 1)), ["jemalloc"])
    assert str(caught.value) == (
        "there is no allocator 'jemalloc' to compare with\n"
        "  expected: one of holdfast pool, holdfast plan, torch default, torch expandable, "
        "RMM pool, Genesis buckets"
    )


def test_the_table_has_a_line_for_each_outcome() -> None:
    text = table(
        [
            Outcome("holdfast plan", 1_000_000, 1_000_000, 2000, 0.004, 1.25),
            Outcome("torch default", 20_971_520, 1_000_000, 2000, 0.01),
        ]
    )
    assert text == (
        "2,000 blocks, 1.0 MB alive at most\n"
        "\n"
        "allocator      peak reserved  ÷ max live  per block\n"
        "holdfast plan         1.0 MB       1.000   2,000 ns\n"
        "torch default        21.0 MB      20.972          –\n"
        "\n"
        "The plan took 1.2 s to make."
    )


@pytest.mark.parametrize("name", ["flux", "sdxl"])
def test_ours_takes_least_on_a_denoising_step(name: str) -> None:
    outcomes = {o.name: o.ratio for o in compare(Recording.load(TRACES / f"{name}.hfmem"))}
    assert outcomes["holdfast plan"] <= 1.0001
    assert outcomes["holdfast pool"] <= 1.20
    assert min(outcomes, key=lambda each: outcomes[each]) == "holdfast plan"
    others = [ratio for each, ratio in outcomes.items() if not each.startswith("holdfast")]
    assert outcomes["holdfast pool"] < min(others)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sdxl_12_sizes", "flux_train", "sdxl_train", "kv_cat"])
def test_plan_mode_wastes_at_most_a_fiftieth_on_every_trace(name: str) -> None:
    (outcome,) = compare(Recording.load(TRACES / f"{name}.hfmem"), ["holdfast plan"])
    assert outcome.ratio <= 1.02


def test_a_replay_leaves_the_allocator_empty() -> None:
    wanted = requests(Recording.load(TRACES / "sdxl.hfmem"))
    pool = Pool(Virtual())
    simulator = TorchDefault()
    for allocator in (pool, simulator):
        replay(wanted, allocator)
    assert pool.allocated_bytes == 0
    assert not simulator._live
    again = replay(wanted, simulator)
    assert again.peak_reserved_bytes == simulator.reserved_bytes
