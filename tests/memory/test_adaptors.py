from __future__ import annotations

import time
from typing import cast

import pytest

from holdfast.base.errors import BadInput, ForeignPointer, OutOfMemory
from holdfast.memory.core.stats import Counter
from holdfast.memory.pools.pool import Pool
from holdfast.memory.resources.adaptors import Limit, Statistics, TrackedBlock, Tracking
from holdfast.memory.resources.resource import Host, Pinned, Resource, Virtual


class Broken(Virtual):
    """Refuses everything."""

    def allocate(self, size: int) -> int:
        raise OutOfMemory("nothing there")

    def free(self, address: int) -> None:
        raise ForeignPointer("not mine")


def test_adaptors_read_as_what_they_are(pool: Pool) -> None:
    stack = Statistics(Limit(pool, "2GB"))
    assert repr(stack) == "Statistics(Limit(Pool(Host()), '2.0 GB'))"
    assert isinstance(stack, Resource)
    assert (stack.device, stack.pinned) == ("cpu", False)
    assert Tracking(Pinned()).pinned
    address = stack.allocate(100)
    assert stack.owns(address)
    stack.free(address)
    assert pool.allocated_bytes == 0


# ---- Limit


def test_a_limit_refuses_before_anybody_is_asked() -> None:
    limit = Limit(Virtual(), "1000B")
    first = limit.allocate(600)
    with pytest.raises(OutOfMemory) as caught:
        limit.allocate(401)
    assert str(caught.value) == (
        "cannot allocate 401 B: 600 B of the limit of 1.0 KB are in use\n  expected: at most 400 B"
    )
    second = limit.allocate(400)
    assert limit.used_bytes == 1000
    limit.free(first)
    limit.free(second)
    assert limit.used_bytes == 0


def test_a_refusal_upstream_changes_nothing() -> None:
    limit = Limit(Broken(), 1000)
    with pytest.raises(OutOfMemory, match="nothing there"):
        limit.allocate(100)
    assert limit.used_bytes == 0


@pytest.mark.parametrize("adaptor", [lambda up: Limit(up, 1000), Statistics, Tracking])
def test_a_foreign_address_is_refused(adaptor) -> None:
    made = adaptor(Virtual())
    address = made.allocate(10)
    made.free(address)
    with pytest.raises(ForeignPointer) as caught:
        made.free(address)
    assert str(caught.value) == (
        f"{made!r} did not allocate {address:#x}, or freed it before\n"
        "  expected: an address that allocate() returned and that was not freed since"
    )


@pytest.mark.parametrize("adaptor", [lambda up: Limit(up, 1000), Statistics, Tracking])
def test_a_free_that_fails_upstream_leaves_the_block_counted(
    adaptor, monkeypatch: pytest.MonkeyPatch
) -> None:
    upstream = Virtual()
    made = adaptor(upstream)
    address = made.allocate(10)
    with monkeypatch.context() as patch:
        patch.setattr(upstream, "free", Broken().free)
        with pytest.raises(ForeignPointer, match="not mine"):
            made.free(address)
    made.free(address)


def test_a_limit_that_is_no_size_is_refused() -> None:
    with pytest.raises(BadInput, match="a size cannot be negative: -5"):
        Limit(Virtual(), -5)
    with pytest.raises(BadInput, match="cannot read None as a size in bytes"):
        Limit(Virtual(), cast("int", None))


# ---- Statistics


def test_statistics_count_current_peak_and_total() -> None:
    counted = Statistics(Virtual())
    first, second = counted.allocate(100), counted.allocate(50)
    counted.free(first)
    assert counted.counter == Counter(50, 150, 150, 1, 2, 2)
    counted.free(second)
    assert counted.counter.current_bytes == 0


def test_measurements_nest_like_stop_watches() -> None:
    counted = Statistics(Virtual())
    before = counted.allocate(1000)
    with counted.measure() as outer:
        counted.allocate(10)
        with counted.measure() as inner:
            counted.free(counted.allocate(5))
        counted.free(before)
    counted.allocate(7)
    assert inner == Counter(0, 5, 5, 0, 1, 1)
    assert outer == Counter(-990, 15, 15, 0, 2, 2), "what was there before went"
    assert counted.counter.total_bytes == 1022


def test_a_request_that_is_refused_is_not_counted() -> None:
    counted = Statistics(Broken())
    with pytest.raises(OutOfMemory):
        counted.allocate(10)
    assert counted.counter == Counter()


# ---- Tracking


def test_tracking_knows_the_line_that_asked(pool: Pool) -> None:
    tracked = Statistics(Tracking(pool))
    small = tracked.allocate(10)
    large = tracked.allocate(2000)  # the line that is named below
    first, second = tracked.upstream.tracked_blocks()  # type: ignore[attr-defined]
    assert (first.address, first.size, second.address) == (large, 2000, small)
    assert first.file == __file__
    assert first.function == "test_tracking_knows_the_line_that_asked"
    with open(__file__) as file:  # noqa: PTH123
        assert "the line that is named below" in file.readlines()[first.line - 1]
    assert first.location == f"{__file__}:{first.line} in {first.function}"
    tracked.free(large)
    assert tracked.upstream.tracked_blocks() == [second]  # type: ignore[attr-defined]


def test_a_held_block_says_how_old_it_is() -> None:
    held = TrackedBlock(4096, 2000, "a.py", 3, "load", time.monotonic() - 50)
    assert str(held) == "2.0 KB from a.py:3 in load, 50 s ago"


def test_a_pool_over_adaptors_returns_all_it_took() -> None:
    counted = Statistics(Host())
    pool = Pool(counted)
    pool.allocate(3 << 20)
    assert counted.counter.current_bytes == 8 << 20
    del pool
    assert counted.counter.current_count == 0
