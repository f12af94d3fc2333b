from __future__ import annotations

import json
import random
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.base.errors import BadInput, ForeignPointer
from holdfast.memory.plan.replay import replay
from holdfast.memory.plan.simulators import (
    MIB,
    SIMULATORS,
    GenesisBuckets,
    RmmPool,
    Simulator,
    TorchDefault,
    TorchExpandable,
)
from holdfast.memory.profile.recording import Recording
from tests.examples import examples

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
every = pytest.mark.parametrize("name", SIMULATORS)


@every
@given(moves=st.lists(st.tuples(st.booleans(), st.integers(0, 40 * MIB)), max_size=120))
@settings(deadline=None, max_examples=examples(40))
def test_live_blocks_never_overlap_and_fit_into_what_is_reserved(
    name: str, moves: list[tuple[bool, int]]
) -> None:
    simulator = SIMULATORS[name]()
    live: dict[int, int] = {}
    for allocates, number in moves:
        if allocates or not live:
            live[simulator.allocate(number)] = number
        else:
            address = sorted(live)[number % len(live)]
            del live[address]
            simulator.free(address)
        order = sorted(live)
        assert all(a + live[a] <= b for a, b in pairwise(order))
        assert sum(live.values()) <= simulator.reserved_bytes == simulator.peak_reserved_bytes
        assert all(simulator.owns(address) for address in live)


@every
def test_memory_that_was_freed_serves_the_same_requests_again(name: str) -> None:
    simulator = SIMULATORS[name]()
    chance = random.Random(0)
    sizes = [chance.randrange(1, 8 * MIB) for _ in range(50)]
    reserved = []
    for _ in range(4):
        for address in [simulator.allocate(size) for size in sizes]:
            simulator.free(address)
        reserved.append(simulator.reserved_bytes)
    assert reserved[3] == reserved[2] > sum(sizes)


@every
def test_a_block_cannot_be_freed_twice(name: str) -> None:
    simulator = SIMULATORS[name]()
    address = simulator.allocate(100)
    simulator.free(address)
    assert not simulator.owns(address)
    with pytest.raises(ForeignPointer) as caught:
        simulator.free(address)
    assert str(caught.value) == (
        f"{type(simulator).__name__}() did not allocate {address:#x}, or freed it before\n"
        "  expected: an address that allocate() returned and that was not freed since"
    )


def test_a_negative_size_is_refused() -> None:
    with pytest.raises(BadInput) as caught:
        TorchDefault().allocate(-1)
    assert str(caught.value) == "cannot allocate -1 bytes\n  expected: a size from 0 up"


def reserved_for(simulator: Simulator, *sizes: int) -> int:
    for size in sizes:
        simulator.allocate(size)
    return simulator.reserved_bytes


@pytest.mark.parametrize(
    ("size", "reserved"),
    [
        (1, 2 * MIB),
        (MIB, 2 * MIB),
        (MIB + 1, 20 * MIB),
        (10 * MIB - 512, 20 * MIB),
        (10 * MIB - 511, 10 * MIB),
        (10 * MIB, 10 * MIB),
        (10 * MIB + 1, 12 * MIB),
        (100 * MIB, 100 * MIB),
    ],
)
def test_torch_makes_segments_of_2_20_or_rounded_megabytes(size: int, reserved: int) -> None:
    assert reserved_for(TorchDefault(), size) == reserved


def test_torch_cuts_a_small_block_when_512_bytes_are_left() -> None:
    assert reserved_for(TorchDefault(), *[MIB - 512] * 2, 512, 512) == 2 * MIB
    assert reserved_for(TorchDefault(), *[MIB - 512] * 2, 512, 512, 512) == 4 * MIB


def test_torch_does_not_cut_a_large_block_when_a_megabyte_or_less_is_left() -> None:
    simulator = TorchDefault()
    whole = simulator.allocate(12 * MIB)
    simulator.free(whole)
    assert simulator.allocate(11 * MIB) == whole  # one megabyte is left, and wasted
    assert reserved_for(simulator, 2 * MIB) == 32 * MIB
    simulator = TorchDefault()
    whole = simulator.allocate(12 * MIB)
    simulator.free(whole)
    assert simulator.allocate(11 * MIB - 512) == whole
    assert reserved_for(simulator, MIB + 512) == 12 * MIB


def test_torch_takes_the_smallest_block_that_fits_then_the_lowest() -> None:
    simulator = TorchDefault()
    wide, narrow, twin = (simulator.allocate(n * MIB) for n in (30, 20, 20))
    for address in (twin, wide, narrow):
        simulator.free(address)
    assert simulator.allocate(19 * MIB) == twin  # the newer one lies lower
    assert simulator.allocate(19 * MIB) == narrow
    assert simulator.allocate(19 * MIB) == wide


def test_torch_merges_neighbours_of_one_segment_only() -> None:
    simulator = TorchDefault()
    first, second = simulator.allocate(8 * MIB), simulator.allocate(8 * MIB)
    simulator.free(first)
    simulator.free(second)
    assert simulator.allocate(20 * MIB) == first
    assert simulator.reserved_bytes == 20 * MIB
    simulator = TorchDefault()
    for address in [simulator.allocate(10 * MIB) for _ in range(2)]:
        simulator.free(address)
    simulator.allocate(20 * MIB)
    assert simulator.reserved_bytes == 40 * MIB


def test_torch_keeps_small_and_large_blocks_in_separate_pools() -> None:
    simulator = TorchDefault()
    simulator.free(simulator.allocate(10 * MIB))
    simulator.allocate(512)
    assert simulator.reserved_bytes == 12 * MIB


@pytest.mark.parametrize(
    ("sizes", "reserved"),
    [
        ((1,), 2 * MIB),
        ((MIB, MIB), 2 * MIB),
        ((MIB, MIB, 1), 4 * MIB),
        ((MIB + 1,), 20 * MIB),
        ((21 * MIB,), 40 * MIB),
        ((15 * MIB, 10 * MIB), 40 * MIB),
        ((15 * MIB, 26 * MIB), 60 * MIB),
        ((MIB, 2 * MIB), 22 * MIB),
    ],
)
def test_torch_expandable_maps_whole_pages_at_the_end(
    sizes: tuple[int, ...], reserved: int
) -> None:
    assert reserved_for(TorchExpandable(), *sizes) == reserved


def test_torch_expandable_uses_the_growing_end_last() -> None:
    simulator = TorchExpandable()
    first = simulator.allocate(10 * MIB)
    simulator.allocate(25 * MIB)  # 5 MiB are left at the end
    simulator.free(first)
    assert simulator.allocate(4 * MIB) == first


def test_torch_expandable_grows_the_free_end_where_nothing_else_fits() -> None:
    simulator = TorchExpandable()
    held = simulator.allocate(15 * MIB)
    end = simulator.allocate(24 * MIB)
    assert end == held + 15 * MIB
    assert simulator.reserved_bytes == 40 * MIB


def test_rmm_grows_by_what_it_has_or_by_the_request() -> None:
    assert reserved_for(RmmPool(), 1000) == 1024
    assert reserved_for(RmmPool(), 1024, 256) == 2048
    assert reserved_for(RmmPool(), 1024, 256, 1000) == 4096
    assert reserved_for(RmmPool(), 1024, 8192) == 9216
    assert reserved_for(RmmPool(4096), 4096, 1) == 8192


def test_rmm_does_not_merge_what_came_from_the_system_apart() -> None:
    simulator = RmmPool()
    for address in [simulator.allocate(1024), simulator.allocate(1024)]:
        simulator.free(address)
    simulator.allocate(2048)
    assert simulator.reserved_bytes == 4096


def test_genesis_takes_powers_of_two_and_never_cuts() -> None:
    simulator = GenesisBuckets()
    block = simulator.allocate(1025)
    assert simulator.reserved_bytes == 2048
    simulator.free(block)
    assert simulator.allocate(2048) == block
    assert reserved_for(simulator, 512, 513, 0) == 2048 + 512 + 1024 + 512


def on_a_gpu() -> list[dict[str, Any]]:
    """What torch's own allocator reserved on a GPU (validate_torch_simulator.py)."""
    return json.loads((BENCHMARKS / "results" / "replay-torch-h200.json").read_text())["rows"]


@pytest.mark.parametrize(
    "row",
    [
        pytest.param(
            row,
            id=f"{row['trace']}, {row['setting']}",
            marks=pytest.mark.slow if row["trace"] == "kv_cat" else (),  # the longest
        )
        for row in on_a_gpu()
    ],
)
def test_torch_is_simulated_to_the_byte(row: dict[str, Any]) -> None:
    recording = Recording.load(BENCHMARKS / "traces" / f"{row['trace']}.hfmem")
    outcome = replay(recording, SIMULATORS[row["setting"]]())
    assert outcome.peak_reserved_bytes == row["peak_reserved_bytes"]
