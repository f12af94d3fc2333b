from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.base.errors import BadInput
from holdfast.memory.plan import packing
from holdfast.memory.plan.packing import Packing, Span, max_live, pack
from holdfast.memory.plan.replay import spans
from holdfast.memory.profile.recording import Recording

TRACES = Path(__file__).parents[2] / "benchmarks" / "traces"


@st.composite
def blocks(draw: st.DrawFn, most: int = 40) -> list[Span]:
    found = []
    for _ in range(draw(st.integers(0, most))):
        start = draw(st.integers(0, 60))
        length = draw(st.integers(1, 30))
        found.append(Span(start, start + length, draw(st.integers(0, 5000))))
    return found


def rounded(size: int, unit: int) -> int:
    return -(-max(size, 1) // unit) * unit


def assert_sound(found: Packing, blocks: list[Span], unit: int = 512) -> None:
    """No two blocks alive at once share a byte, and all lie within the size."""
    places = [(o, o + rounded(b.size, unit)) for o, b in zip(found.offsets, blocks, strict=True)]
    for number, (block, (low, high)) in enumerate(zip(blocks, places, strict=True)):
        assert low >= 0
        assert low % unit == 0
        assert high <= found.size_bytes
        for other, (low2, high2) in zip(blocks[:number], places, strict=False):
            at_once = block.start < other.end and other.start < block.end
            assert not at_once or high <= low2 or high2 <= low
    assert found.size_bytes >= found.max_live_bytes >= found.max_live_exact_bytes


@given(blocks())
@settings(deadline=None)
def test_blocks_alive_at_once_never_overlap(blocks: list[Span]) -> None:
    assert_sound(pack(blocks, effort=20_000), blocks)


@given(blocks())
@settings(deadline=None)
def test_blocks_never_overlap_where_small_ones_are_set_apart(blocks: list[Span]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packing, "FEW_PAIRS", 0)
        patch.setattr(packing, "SMALL_SHARE", 0.3)
        assert_sound(pack(blocks, effort=20_000), blocks)
        patch.setattr(packing, "MANY_PAIRS", 0)
        assert_sound(pack(blocks, effort=20_000), blocks)


@given(blocks(), st.sampled_from([1, 64, 512, 4096]))
@settings(deadline=None)
def test_offsets_are_multiples_of_the_rounding(blocks: list[Span], unit: int) -> None:
    assert_sound(pack(blocks, rounding=unit, effort=5_000), blocks, unit)


@given(blocks())
@settings(deadline=None)
def test_the_same_blocks_give_the_same_layout(blocks: list[Span]) -> None:
    assert pack(blocks, effort=10_000) == pack(list(blocks), effort=10_000)


@given(blocks())
@settings(deadline=None)
def test_the_lower_bound_is_the_sum_at_the_worst_moment(blocks: list[Span]) -> None:
    worst = max(
        (sum(b.size for b in blocks if b.start <= t < b.end) for t in range(100)), default=0
    )
    assert max_live(blocks) == worst


def test_nothing_takes_nothing() -> None:
    found = pack([])
    assert found == Packing((), 0, 0, 0)
    assert (found.ratio, found.exact_ratio) == (1.0, 1.0)


def test_blocks_one_after_the_other_share_a_place() -> None:
    found = pack([Span(0, 2, 512), Span(2, 4, 1024), Span(4, 9, 100)])
    assert found.offsets == (0, 0, 0)
    assert found.size_bytes == 1024


def test_rounding_is_counted_by_the_exact_ratio_alone() -> None:
    found = pack([Span(0, 2, 1), Span(1, 3, 511)])
    assert (found.size_bytes, found.max_live_bytes, found.max_live_exact_bytes) == (1024, 1024, 512)
    assert (found.ratio, found.exact_ratio) == (1.0, 2.0)


def mixed_blocks(seed: int) -> list[Span]:
    chance = random.Random(seed)
    found = []
    for start in range(300):
        length = chance.choice([2, 3, 5, 9, 40])
        found.append(Span(start, start + length, 512 * chance.choice([1, 2, 3, 4, 8, 20])))
    return found


def test_effort_improves_what_greedy_layouts_leave() -> None:
    greedy = [pack(mixed_blocks(seed), effort=0).ratio for seed in range(6)]
    better = [pack(mixed_blocks(seed)).ratio for seed in range(6)]
    assert max(greedy) > 1.01
    assert better == [1.0] * 6


def test_pack_does_not_change_its_blocks() -> None:
    blocks = mixed_blocks(0)
    pack(blocks, effort=1000)
    assert blocks == mixed_blocks(0)


@pytest.mark.parametrize(
    "name", ["flux", *(pytest.param(n, marks=pytest.mark.slow) for n in ("sdxl", "sdxl_12_sizes"))]
)
def test_a_denoising_step_is_packed_without_waste(name: str) -> None:
    found = pack(spans(Recording.load(TRACES / f"{name}.hfmem")))
    assert found.ratio == 1.0
    assert found.exact_ratio < 1.0001


@pytest.mark.slow
@pytest.mark.parametrize("name", ["flux_train", "sdxl_train", "kv_cat"])
def test_large_steps_are_packed_within_a_hundredth(name: str) -> None:
    assert pack(spans(Recording.load(TRACES / f"{name}.hfmem"))).ratio <= 1.01


@pytest.mark.parametrize(
    "block", [Span(3, 3, 10), Span(3, 2, 10), Span(0, 1, -5)], ids=["empty", "backwards", "less"]
)
def test_a_block_that_cannot_be_is_refused(block: Span) -> None:
    with pytest.raises(BadInput) as caught:
        pack([Span(0, 1, 1), block])
    assert str(caught.value) == (
        f"cannot pack block 1: {block.size} bytes from {block.start} to {block.end}\n"
        "  expected: a size of 0 or more, and an end after the start"
    )


def test_a_rounding_below_one_is_refused() -> None:
    with pytest.raises(BadInput) as caught:
        pack([], rounding=0)
    assert str(caught.value) == "cannot round sizes up to 0\n  expected: at least 1 byte"
