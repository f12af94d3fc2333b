from __future__ import annotations

import ctypes
import gc
import re
import weakref
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from holdfast.base.errors import BadInput, DoubleFree, ForeignPointer, OutOfMemory
from holdfast.memory.core import system_pages
from holdfast.memory.pools.pool import Pool, live_pools, on_pressure, watch_pools
from holdfast.memory.resources.adaptors import Limit, Statistics
from holdfast.memory.resources.resource import Host, Pinned, Virtual
from tests.memory.conftest import audit, core_named

KB, MB = 1 << 10, 1 << 20


class Whole:
    """An upstream whose memory cannot grow in place, so that a pool on it has fixed segments."""

    device = "cpu"

    def __init__(self) -> None:
        self.virtual = Virtual()
        self.out: dict[int, int] = {}

    def __repr__(self) -> str:
        return "Whole()"

    def allocate(self, size: int) -> int:
        address = self.virtual.allocate(size)
        self.out[address] = size
        return address

    def free(self, address: int) -> None:
        del self.out[address]
        self.virtual.free(address)

    def owns(self, address: int) -> bool:
        return address in self.out


def mappings() -> int:
    return len(Path("/proc/self/maps").read_text().splitlines())


# ---- the protocol


def test_a_pool_is_a_resource_like_those_below_it(pool: Pool) -> None:
    address = pool.allocate(1000)
    ctypes.memset(address, 7, 1000)
    assert pool.owns(address)
    assert pool.owns(address + 999)
    pool.free(address)
    assert (pool.allocated_bytes, pool.peak_allocated_bytes) == (0, 1000)
    assert pool.reserved_bytes == pool.peak_reserved_bytes == MB
    assert repr(pool) == "Pool(Host())"
    assert (pool.device, pool.pinned) == ("cpu", False)


def test_a_size_below_zero_is_refused(pool: Pool) -> None:
    with pytest.raises(BadInput) as caught:
        pool.allocate(-1)
    assert str(caught.value) == "cannot allocate -1 bytes\n  expected: a size from 0 up"


def test_a_block_that_is_freed_twice_is_named(pool: Pool) -> None:
    address = pool.allocate(100)
    pool.free(address)
    with pytest.raises(DoubleFree) as caught:
        pool.free(address)
    assert str(caught.value) == (
        f"the block at {address:#x} of the pool was freed before\n"
        "  expected: a block that is in use\n"
        "  try: free a block once, or drop every reference to it instead"
    )
    assert audit(pool.core) == {}


@pytest.mark.parametrize("address", [0, 4096, -1, 2**64])
def test_a_foreign_address_is_named(pool: Pool, address: int) -> None:
    with pytest.raises(ForeignPointer) as caught:
        pool.free(address)
    assert str(caught.value) == (
        f"{address:#x} was not allocated by the pool\n"
        "  expected: the address that allocate() returned"
    )


def test_an_address_inside_a_block_is_named(pool: Pool) -> None:
    address = pool.allocate(100)
    with pytest.raises(ForeignPointer) as caught:
        pool.free(address + 64)
    assert str(caught.value) == (
        f"{address + 64:#x} lies inside a block of the pool\n"
        "  expected: the address that allocate() returned"
    )
    assert audit(pool.core) == {address: 100}


# ---- figures


def test_statistics_add_up(pool: Pool) -> None:
    first, second = pool.allocate(1000), pool.allocate(2000)
    pool.free(first)
    pool.allocate(900)
    stats = pool.stats()
    assert (stats.allocated_bytes, stats.active_bytes, stats.reserved_bytes) == (2900, 3072, MB)
    assert stats.inactive_bytes == stats.cached_bytes == MB - 3072
    assert (stats.num_allocs, stats.num_frees, stats.cache_hits) == (3, 1, 2)
    assert (stats.peak_allocated, stats.peak_reserved) == (3000, MB)
    pool.free(second)


def test_a_request_that_had_to_ask_upstream_is_no_hit(core: ModuleType) -> None:
    pool = Pool(Whole(), core=core)
    first, second = pool.allocate(2 * MB), pool.allocate(2 * MB)
    pool.free(first)
    pool.free(second)
    pool.allocate(2 * MB)
    stats = pool.stats()
    assert (stats.num_allocs, stats.num_frees) == (3, 2), "a look for room is no allocation"
    assert stats.cache_hits == 2
    assert stats.peak_allocated == 4 * MB


def test_a_request_that_was_rescued_is_counted_once(pool: Pool) -> None:
    pool.set_limit(MB)
    pool.on_pressure.append(lambda pool, size: pool.set_limit(None))
    pool.allocate(3 * MB)
    stats = pool.stats()
    assert (stats.num_allocs, stats.num_frees, stats.cache_hits) == (1, 0, 0)


def test_holders_come_largest_first(pool: Pool) -> None:
    addresses = [pool.allocate(size) for size in (10, 3000, 200)]
    pool.where = {addresses[1]: "model.py:3 in load"}.get
    assert [str(holder) for holder in pool.holders(2)] == [
        "3.0 KB on cpu from model.py:3 in load",
        "200 B on cpu from an unrecorded location",
    ]
    assert [holder.address for holder in pool.holders()] == [addresses[n] for n in (1, 2, 0)]


# ---- running out


def test_the_error_lists_the_ten_largest_holders_in_order(pool: Pool) -> None:
    pool.set_limit(4 * MB)
    sizes = [100_000 + 1000 * n for n in range(12)]
    held = [pool.allocate(size) for size in sizes]
    with pytest.raises(OutOfMemory) as caught:
        pool.allocate(4 * MB)
    where = "on cpu from an unrecorded location"
    largest = "".join(f"\n    {size / 1000:.0f} KB {where}" for size in sorted(sizes)[:1:-1])
    assert str(caught.value) == (
        "cannot allocate 4.2 MB on cpu: 1.3 MB are in use in 12 blocks, "
        f"the limit of the pool is 4.2 MB\n  largest holders:{largest}\n"
        "  expected: room for 4.2 MB after collecting garbage, emptying the cache and calling "
        "every callback\n"
        "  try: free one of these blocks, or raise the limit; enable_memory_debugging(True) "
        "records where blocks come from"
    )
    assert sorted(audit(pool.core)) == sorted(held)


def test_the_error_of_what_is_upstream_is_part_of_the_message(core: ModuleType) -> None:
    pool = Pool(Limit(Host(), "4MB"), name="the pool", core=core)
    with pytest.raises(OutOfMemory) as caught:
        pool.allocate(5 * MB)
    assert caught.value.what == (
        "cannot allocate 5.2 MB on cpu: 0 B are in use in 0 blocks; "
        "cannot allocate 6.3 MB: 0 B of the limit of 4.0 MB are in use"
    )
    assert isinstance(caught.value.__cause__, OutOfMemory)


def full(pool: Pool) -> list[Any]:
    """A pool with a limit of 4 MB, 3 MB of it in use as blocks of 1 MB and a half."""
    pool.set_limit(4 * MB)
    return [pool.core.allocate(3 * MB // 2) for _ in range(2)]


def _by_deferred_frees(pool: Pool, held: list[Any]) -> Callable[[], None]:
    held.clear()  # in the lists of exact sizes; joined, they are enough
    return lambda: None


def _by_garbage(pool: Pool, held: list[Any]) -> Callable[[], None]:
    held.append(held)
    return lambda: None


def _by_the_cache(pool: Pool, held: list[Any]) -> Callable[[], None]:
    held.clear()
    pool.empty_cache()
    keep = [pool.core.allocate(100 * KB) for _ in range(30)]  # of the other arena
    keep[1:] = []
    return keep.clear


def _by_a_callback(pool: Pool, held: list[Any]) -> Callable[[], None]:
    pool.on_pressure.append(lambda pool, size: held.clear())
    return lambda: None


def _by_a_callback_of_all_pools(pool: Pool, held: list[Any]) -> Callable[[], None]:
    return on_pressure(lambda pool, size: held.clear())


def _by_spilling(pool: Pool, held: list[Any]) -> Callable[[], None]:
    def spill(size: int) -> int:
        held.clear()
        return 3 * MB

    pool.spill = spill
    return lambda: None


@pytest.mark.parametrize(
    "way",
    [
        _by_deferred_frees,
        _by_garbage,
        _by_the_cache,
        _by_a_callback,
        _by_a_callback_of_all_pools,
        _by_spilling,
    ],
    ids=lambda way: way.__name__[4:],
)
def test_each_way_out_alone_rescues_a_request(pool: Pool, way: Any) -> None:
    gc.collect()
    gc.disable()
    try:
        held = full(pool)
        after = way(pool, held)
        if way is _by_garbage:
            del held
        address = pool.allocate(3 * MB)
        after()
    finally:
        gc.enable()
    assert audit(pool.core) == {address: 3 * MB}


def test_the_ways_out_are_tried_in_their_order(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    held, seen = full(pool), []

    class Spy:
        def __del__(self) -> None:
            seen.append("garbage")

    spy: Any = Spy()
    spy.itself = spy
    del spy
    empty_cache = pool.empty_cache
    monkeypatch.setattr(pool, "empty_cache", lambda: (seen.append("cache"), empty_cache()))
    pool.on_pressure.append(lambda pool, size: seen.append(f"callback for {size}"))
    forget = on_pressure(lambda pool, size: seen.append("callback of all"))
    pool.spill = lambda size: seen.append(f"spill {size}") or 0
    try:
        with pytest.raises(OutOfMemory):
            pool.allocate(2 * MB)
    finally:
        forget()
    assert seen == [
        "garbage",
        "cache",
        f"callback for {2 * MB}",
        "callback of all",
        "cache",  # of what the callbacks freed
        f"spill {2 * MB}",
        "cache",
    ]
    assert len(held) == 2
    seen.clear()
    with pytest.raises(OutOfMemory):
        pool.allocate(2 * MB)
    assert "callback of all" not in seen


def test_a_callback_that_fails_is_warned_about_and_the_next_one_may_help(pool: Pool) -> None:
    held = full(pool)

    def fails(pool: Pool, size: int) -> None:
        raise LookupError("mine")

    pool.on_pressure.append(fails)
    with pytest.warns(RuntimeWarning, match="mine"), pytest.raises(OutOfMemory):
        pool.allocate(3 * MB)
    assert len(audit(pool.core)) == len(held)
    pool.on_pressure.append(lambda pool, size: held.clear())
    with pytest.warns(RuntimeWarning, match="mine"):
        assert pool.allocate(2 * MB)


def test_a_callback_for_all_pools_is_checked_and_may_be_taken_back_twice() -> None:
    with pytest.raises(BadInput) as caught:
        on_pressure(3)
    assert str(caught.value) == "cannot call 3\n  expected: a function of a pool and a size"
    take_back = on_pressure(lambda pool, size: None)
    take_back()
    take_back()


@pytest.mark.parametrize("limit", [0, "0"])
def test_a_limit_of_nothing_is_refused(pool: Pool, limit: int | str) -> None:
    with pytest.raises(BadInput) as caught:
        pool.set_limit(limit)
    assert str(caught.value) == (
        f"cannot use {limit!r} as a limit\n  expected: at least a byte, or None for no limit"
    )


def test_a_callback_may_use_the_pool(pool: Pool) -> None:
    held = full(pool)

    def callback(pool: Pool, size: int) -> None:
        held.pop()
        pool.free(pool.allocate(MB))
        pool.empty_cache()

    pool.on_pressure.append(callback)
    assert pool.allocate(2 * MB)


def test_pages_that_went_back_count_against_the_limit_again(pool: Pool) -> None:
    pool.set_limit(6 * MB)
    large = pool.allocate(4 * MB)
    pool.free(large)
    pool.empty_cache()
    pool.set_limit(3 * MB)
    with pytest.raises(OutOfMemory):
        pool.allocate(4 * MB)
    assert pool.allocate(2 * MB) == large
    assert pool.reserved_bytes <= 3 * MB


# ---- giving back


def test_an_emptied_cache_leaves_no_page_behind_whatever_was_released_before(pool: Pool) -> None:
    size = 4 * MB
    low, high, wall = (pool.allocate(size) for _ in range(3))
    pool.free(low)
    pool.empty_cache()  # the pages of `low` are with the system
    ctypes.memset(high, 1, size)
    pool.free(high)  # joined: the low half is with the system, the high half is not
    pool.core.flush()
    again = pool.allocate(size)
    assert again == low
    ctypes.memset(again, 1, size)
    pool.empty_cache()
    assert system_pages.pages_touched(high, size) == 0
    assert system_pages.pages_touched(again, size) == size // 4096
    assert pool.reserved_bytes == 2 * size
    pool.free(wall)


def test_a_small_cache_stays_small(pool: Pool) -> None:
    pool.set_cache_size("1MiB")
    blocks = [pool.allocate(300 * KB) for _ in range(20)]
    for address in blocks:
        pool.free(address)
        stats = pool.stats()
        assert stats.cached_bytes <= MB
    pool.set_cache_size(0)
    assert pool.reserved_bytes == 0
    pool.set_cache_size(None)
    pool.free(pool.allocate(MB))
    assert pool.stats().cached_bytes >= MB


def test_whole_segments_go_back_upstream(core: ModuleType) -> None:
    upstream = Whole()
    pool = Pool(upstream, core=core)
    keep, small, large = pool.allocate(100), pool.allocate(MB), pool.allocate(20 * MB)
    assert sorted(upstream.out.values()) == [2 * MB, 20 * MB]
    pool.free(large)
    assert pool.empty_cache(20 * MB) == 20 * MB, "the cache was a little larger than that"
    assert pool.empty_cache() == 0
    pool.free(small)
    pool.free(keep)
    assert pool.empty_cache() == 2 * MB
    assert upstream.out == {}


def test_any_number_of_segments_goes_back_at_once(core: ModuleType) -> None:
    upstream = Whole()
    pool = Pool(upstream, core=core)
    blocks = [pool.allocate(9 * MB) for _ in range(700)]
    for address in blocks:
        pool.free(address)
    assert pool.empty_cache() == 700 * 10 * MB
    assert upstream.out == {}


def test_a_cache_of_fixed_segments_keeps_its_size(core: ModuleType) -> None:
    upstream = Whole()
    pool = Pool(upstream, core=core)
    pool.set_cache_size("32MiB")
    for address in [pool.allocate(16 * MB) for _ in range(8)]:
        pool.free(address)
    assert pool.reserved_bytes == sum(upstream.out.values()) == 32 * MB


def test_a_block_that_outlives_its_pool_goes_back_quietly(core: ModuleType) -> None:
    upstream = Whole()
    pool = Pool(upstream, core=core)
    pool.set_cache_size(0)
    block = pool.core.allocate(3 * MB)
    del pool
    assert len(upstream.out) == 1
    del block  # nobody is there to shrink the cache; all of it goes now
    gc.collect()
    assert upstream.out == {}


@pytest.mark.parametrize(
    ("size", "message"),
    [
        (-1, "cannot use -1 as a size\n  expected: bytes from 0 up, such as '2GB'"),
        (
            "80%",
            "cannot read '80%' as a size in bytes: a percentage has no total here\n"
            '  expected: an absolute size such as "2GB" or "512MiB"',
        ),
    ],
)
def test_what_is_no_limit_is_refused(pool: Pool, size: Any, message: str) -> None:
    for setting in (pool.set_limit, pool.set_cache_size):
        with pytest.raises(BadInput, match=f"^{re.escape(message)}$"):
            setting(size)


# ---- life and death


@pytest.mark.slow
def test_two_thousand_pools_leave_no_mapping_behind(core: ModuleType) -> None:
    def one() -> None:
        pool = Pool(core=core)
        block = pool.core.allocate(5000)
        ctypes.memset(block.address, 1, 5000)

    for _ in range(10):
        one()
    gc.collect()
    before = mappings()
    for _ in range(2000):
        one()
    gc.collect()
    assert mappings() <= before + 4


def test_hundreds_of_pools_at_once_leave_room_for_others(core: ModuleType) -> None:
    pools = [Pool(core=core) for _ in range(200)]
    assert all(pool.allocate(MB) for pool in pools)
    assert all(pool.allocate(2 * MB) for pool in pools)
    system_pages.release(system_pages.reserve(1 << 36), 1 << 36)


def test_a_block_keeps_its_memory_when_its_pool_goes_first(core: ModuleType) -> None:
    pool = Pool(core=core)
    block = pool.core.allocate(2 * MB)
    array = block.array()
    gone = weakref.ref(pool)
    del pool
    assert gone() is None
    array[:] = 9
    del block
    gc.collect()
    assert int(array.sum()) == 9 * 2 * MB


def test_a_dropped_pool_does_not_grow(core: ModuleType) -> None:
    heart = Pool(core=core).core
    heart.limit = 1
    with pytest.raises(OutOfMemory) as caught:
        heart.allocate(MB)
    assert str(caught.value) == ("the pool of this memory is gone\n  expected: a pool that is kept")


def test_live_pools_come_oldest_first(core: ModuleType) -> None:
    first, second = Pool(core=core), Pool(core=core)
    assert [pool for pool in live_pools() if pool in (first, second)] == [first, second]
    number = second.number
    del second
    assert number not in [pool.number for pool in live_pools()]


def test_a_little_address_space_is_enough(script: Any) -> None:
    text = """
import resource
from holdfast.memory.core import native_build, pool_core
native_build.load_core()
from holdfast.memory.pools.pool import Pool
from holdfast.base.errors import OutOfMemory
with open("/proc/self/statm") as file:
    used = int(file.read().split()[0]) * 4096
resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 30), used + (1 << 30)))
for module in (native_build.load_core(), pool_core):
    pool = Pool(core=module)
    address = pool.allocate(20 << 20)
    pool.free(address)
    try:
        pool.allocate(2 << 30)
    except OutOfMemory as exc:
        print(exc.what)
    del pool
"""
    assert script(text) == ("cannot allocate 2.1 GB on cpu: 0 B are in use in 0 blocks\n" * 2)


# ---- watching


def test_pools_that_are_there_and_pools_to_come_are_watched(core: ModuleType) -> None:
    other = "compiled" if core is core_named("python") else "python"
    before, another = Pool(core=core), Pool(core=core_named(other))
    log = core.Log(depth=0)
    try:
        watch_pools(log, lambda pool: pool.number)
        after = Pool(core=core)
        before.allocate(10)
        after.allocate(20)
        another.allocate(40)  # its core cannot write to this log, and is left alone
    finally:
        watch_pools(None)
    before.allocate(30)
    kinds, sizes, places = (log.columns()[n] for n in (1, 3, 5))
    rows = zip(kinds, memoryview(sizes).cast("q"), memoryview(places).cast("H"), strict=True)
    assert [(size, place) for kind, size, place in rows if kind == 0] == [
        (10, before.number),
        (20, after.number),
    ]


# ---- what it may stand on


@pytest.mark.parametrize(
    "upstream", [Host, lambda: Host(huge=True), Pinned, lambda: Limit(Host(), "64MB"), Whole]
)
def test_a_pool_stands_on_any_resource(core: ModuleType, upstream: Any) -> None:
    pool = Pool(upstream(), core=core)
    addresses = [pool.allocate(size) for size in (0, 1, 5000, MB, 2 * MB, 3 * MB + 5)]
    assert len(set(addresses)) == 6
    if not isinstance(pool.upstream, Whole):
        for address in addresses:
            ctypes.memset(address, 5, 1)
    for address in addresses:
        pool.free(address)
    assert audit(pool.core) == {}
    assert pool.core.allocate(10).pinned is isinstance(pool.upstream, Pinned)


def test_a_pool_may_stand_on_a_pool(core: ModuleType) -> None:
    below = Pool(core=core)
    pool = Pool(Statistics(below), core=core)
    address = pool.allocate(3 * MB)
    assert below.allocated_bytes == 8 * MB
    pool.free(address)
    pool.empty_cache()
    assert below.allocated_bytes == 0
