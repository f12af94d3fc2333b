"""One contract over both cores: the compiled one, and its twin in Python."""

from __future__ import annotations

import ctypes
import gc
import random
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from holdfast.base.errors import DoubleFree, ForeignPointer, OutOfMemory
from holdfast.memory.core.arenas import ADDRESSES_ONLY, FIXED
from holdfast.memory.core.pool_core import FREE, QUICK, USED
from holdfast.memory.pools import pool as pool_module
from holdfast.memory.pools.pool import Pool
from tests.memory.conftest import audit, core_named
from tests.needs import ALL

KB, MB = 1 << 10, 1 << 20
BASE, LARGE = 1 << 32, 1 << 40
POOLS = str(Path(pool_module.__file__).parent)


@pytest.fixture
def books(core: ModuleType) -> Any:
    """A core over addresses that lead nowhere, one range for each arena."""
    made = core.Core()
    made.add_segment(0, ADDRESSES_ONLY, BASE, 0, 1 << 30)
    made.add_segment(1, ADDRESSES_ONLY, LARGE, 0, 1 << 34)
    return made


def states(core: Any) -> list[tuple[int, int]]:
    """(size, state) of every chunk in order."""
    return [(chunk[3], chunk[5]) for chunk in core.chunks()]


# ---- finding room


@pytest.mark.parametrize(
    ("wanted", "taken"), [(0, 512), (1, 512), (512, 512), (513, 1024), (MB, MB), (MB + 1, MB + 512)]
)
def test_a_block_takes_the_next_multiple_of_512_bytes(books: Any, wanted: int, taken: int) -> None:
    address = books.take(wanted)
    assert address % 512 == 0
    counters = books.counters()
    assert (counters["allocated"], counters["active"]) == (wanted, taken)
    assert books.give(address) == wanted
    audit(books)


def test_small_and_large_blocks_have_an_arena_each(books: Any) -> None:
    assert books.take(MB) == BASE
    assert books.take(MB + 1) == LARGE
    arenas = [(base, length, arena) for base, length, _, arena, _ in books.segments()]
    assert arenas == [(BASE, MB, 0), (LARGE, 2 * MB, 1)]


def test_a_freed_block_serves_the_next_request_of_its_size(books: Any) -> None:
    first, _wall = books.take(1000), books.take(1000)
    books.give(first)
    assert books.take(700) == first


def test_pool_returns_freed_block_to_its_neighbour(books: Any) -> None:
    left, middle, right, wall = (books.take(KB) for _ in range(4))
    for address in (left, right, middle):
        books.give(address)
    books.flush()
    assert states(books) == [(3 * KB, FREE), (KB, USED), (MB - 4 * KB, FREE)]
    assert books.take(3 * KB) == left
    books.give(wall)
    audit(books)


def test_the_smallest_chunk_that_is_large_enough_is_cut(books: Any) -> None:
    sizes = (8 * KB, 4 * KB, 16 * KB)
    holes, walls = [], []
    for size in sizes:
        holes.append(books.take(size))
        walls.append(books.take(512))
    for hole in holes:
        books.give(hole)
    assert books.take(3 * KB) == holes[1]
    assert books.take(6 * KB) == holes[0]
    assert books.take(12 * KB) == holes[2]


def test_of_chunks_of_one_size_the_lowest_is_taken(books: Any) -> None:
    blocks = [books.take(KB) for _ in range(9)]
    for address in blocks[::-2]:
        books.give(address)
    books.flush()
    assert [books.take(KB) for _ in range(4)] == blocks[0:8:2]


def test_a_segment_grows_in_place_and_uses_the_free_end_it_has(books: Any) -> None:
    books.take(512 * KB)
    end = books.take(256 * KB)
    books.give(end)
    assert books.take(700 * KB) == end
    assert books.counters()["reserved"] == 2 * MB


def test_chunks_are_not_joined_across_two_segments(core: ModuleType) -> None:
    books = core.Core()
    books.add_segment(0, FIXED, BASE, MB, MB)
    books.add_segment(0, FIXED, BASE + MB, MB, MB)
    first, second = books.take(MB), books.take(MB)
    assert {first, second} == {BASE, BASE + MB}
    books.give(first)
    books.give(second)
    books.flush()
    assert states(books) == [(MB, FREE), (MB, FREE)]
    assert books.try_take(MB + 1) == 0


def test_a_growable_segment_right_behind_another_grows_by_itself(core: ModuleType) -> None:
    books = core.Core()
    books.add_segment(0, FIXED, BASE, MB, MB)
    books.add_segment(0, ADDRESSES_ONLY, BASE + MB, 0, 4 * MB)
    first = books.take(MB)
    books.give(first)
    books.take(512)
    assert books.take(MB) == BASE + MB
    audit(books)


def test_without_anybody_to_ask_a_full_core_says_so(core: ModuleType) -> None:
    books = core.Core()
    assert books.try_take(1) == 0
    with pytest.raises(MemoryError, match=r"^no room for 100 bytes$"):
        books.take(100)
    with pytest.raises(MemoryError, match=r"^no room for 100 bytes$"):
        books.allocate(100)
    assert books.counters()["allocs"] == 0


def test_grow_is_asked_until_there_is_room(core: ModuleType) -> None:
    books = core.Core()
    asked = []

    def grow(size: int) -> None:
        asked.append(size)
        if len(asked) == 3:
            books.add_segment(0, FIXED, BASE, MB, MB)

    books.grow = grow
    assert books.take(100) == BASE
    assert asked == [100, 100, 100]


def test_an_error_of_grow_reaches_the_caller_and_changes_nothing(core: ModuleType) -> None:
    books = core.Core()

    def grow(size: int) -> None:
        raise KeyError(size)

    books.grow = grow
    with pytest.raises(KeyError, match="77"):
        books.allocate(77)
    assert books.counters()["allocs"] == 0
    audit(books)


def test_a_size_that_is_no_int_is_taken_by_its_index(books: Any) -> None:
    import numpy

    block = books.allocate(numpy.int8(127))
    assert (block.size, type(block.size)) == (127, int)
    assert books.counters()["active"] == 512
    audit(books)


@pytest.mark.parametrize("size", ["12", 1.5, None])
def test_what_is_no_size_is_refused(books: Any, size: Any) -> None:
    for ask in (books.allocate, books.take, books.try_take):
        with pytest.raises(TypeError):
            ask(size)
    with pytest.raises(OverflowError, match="can't convert negative int to unsigned"):
        books.take(-1)
    assert audit(books) == {}


def test_what_fits_can_be_taken_and_nothing_is_counted(books: Any) -> None:
    books.limit = 64 * KB
    assert books.fits(64 * KB)
    assert books.counters()["allocs"] == 0
    first = books.take(64 * KB)
    assert not books.fits(1)
    books.give(first)
    books.give_back_pages(0)
    books.limit = 32 * KB
    assert not books.fits(64 * KB), "the pages that come back are too many"
    assert books.try_take(64 * KB) == 0
    assert books.fits(32 * KB)
    assert books.take(32 * KB) == first


# ---- taking back


def test_a_block_is_freed_once(books: Any) -> None:
    address = books.take(100)
    assert books.state(address) == "used"
    assert books.state(address + 1) == "inside"
    assert books.give(address) == 100
    assert books.give(address) == -1
    assert books.state(address) == "free"
    assert books.counters()["frees"] == 1


@pytest.mark.parametrize("address", [0, 1, -1, BASE + 1, 2**63, 2**64 - 1, 2**64, 2**80])
def test_an_address_that_was_not_allocated_is_refused(books: Any, address: int) -> None:
    mine = books.take(100)
    assert books.give(address) == -1
    assert books.state(address) == ("inside" if address == BASE + 1 else "foreign")
    assert books.owns(address) is (address == BASE + 1)
    assert audit(books) == {mine: 100}


def test_a_dropped_block_is_freed_and_one_freed_by_address_is_not_freed_twice(books: Any) -> None:
    block = books.allocate(100)
    address = block.address
    assert not block.freed
    assert books.give(address) == 100
    assert block.freed
    again = books.allocate(100)
    assert again.address == address
    del block  # must not free what is now another's
    assert not again.freed
    assert audit(books) == {address: 100}
    del again
    assert audit(books) == {}


def test_a_detached_block_gives_nothing_back(books: Any) -> None:
    block = books.allocate(100)
    address = block.address
    block.detach()
    assert block.freed
    del block
    assert audit(books) == {address: 100}


def test_a_block_of_another_owner_goes_back_to_that_owner(core: ModuleType) -> None:
    class Owner:
        def __init__(self) -> None:
            self.back: list[int] = []

        def give(self, address: int) -> None:
            self.back.append(address)

    owner = Owner()
    block = core.make_block(owner, 4096, 10)
    assert (int(block), len(block), block.freed, block.pinned) == (4096, 10, False, False)
    del block
    assert owner.back == [4096]
    core.make_block(owner, 8192, 10).detach()
    assert owner.back == [4096]
    device = core.make_block(owner, 4096, 10, host=False)
    assert (device.host, core.make_block(owner, 1, 1, pinned=True).pinned) == (False, True)


def test_a_closed_core_takes_back_and_hands_out_nothing(books: Any) -> None:
    address = books.take(100)
    books.close()
    assert books.give(address) == 100
    assert books.try_take(100) == 0
    with pytest.raises(MemoryError, match="no room for 100 bytes"):
        books.take(100)
    audit(books)


# ---- figures


def test_counters_tell_what_happened(books: Any) -> None:
    first, second = books.take(1000), books.take(2000)
    books.give(first)
    books.take(900)
    assert books.counters() == {
        "allocated": 2900,
        "peak_allocated": 3000,
        "active": 3072,
        "peak_active": 3072,
        "reserved": MB,
        "peak_reserved": MB,
        "cumulative": 3900,
        "allocs": 3,
        "frees": 1,
        "hits": 2,
        "misses": 1,
        "live": 2,
        "peak_live": 2,
    }
    books.give(second)
    books.reset_peaks()
    after = books.counters()
    assert (after["peak_allocated"], after["peak_active"], after["peak_live"]) == (900, 1024, 1)
    assert after["peak_reserved"] == MB


def test_chunks_say_who_has_what(books: Any) -> None:
    first, second = books.take(1000), books.take(20)
    books.give(first)
    assert books.chunks() == [
        (BASE, 0, first, 1024, 0, QUICK, 0, 0),
        (BASE, 0, second, 512, 20, USED, 0, 0),
        (BASE, 0, second + 512, MB - 1536, 0, FREE, 0, 0),
    ]


def test_a_closed_core_keeps_nothing_alive(core: ModuleType) -> None:
    import weakref

    class Owner:
        def more(self, size: int) -> None:
            pass

    owner = Owner()
    gone = weakref.ref(owner)
    books = core.Core()
    books.grow = books.trim = owner.more
    del owner
    books.close()
    assert gone() is None


def test_a_core_in_a_cycle_with_its_grower_is_collected(core: ModuleType) -> None:
    import weakref

    class Owner:
        def more(self, size: int) -> None:
            pass

    owner: Any = Owner()
    owner.core = core.Core()
    owner.core.grow = owner.more
    gone = weakref.ref(owner.core)
    del owner
    gc.collect()
    assert gone() is None


# ---- giving memory back


def test_pages_of_free_chunks_go_back_and_are_counted_again_when_used(books: Any) -> None:
    keeper = books.take(512)
    big = books.take(512 * KB)
    books.give(big)
    given = books.give_back_pages(0)
    counters = books.counters()
    assert given == MB - 4096
    assert (counters["reserved"], counters["active"]) == (4096, 512)
    assert books.give_back_pages(0) == 0
    assert books.take(512 * KB) == big
    assert books.counters()["reserved"] == 4096 + 512 * KB
    assert books.give_back_pages(0) == 0, "the rest is still with the system"
    books.give(keeper)
    audit(books)


def test_only_as_much_goes_back_as_is_more_than_what_is_kept(books: Any) -> None:
    blocks = [books.take(64 * KB) for _ in range(16)]
    for address in blocks[::2]:
        books.give(address)
    books.give_back_pages(256 * KB)
    assert books.counters()["reserved"] - books.counters()["active"] == 256 * KB
    for address in blocks[1::2]:
        books.give(address)
    audit(books)


def test_a_limit_holds_for_growing_and_for_pages_that_come_back(books: Any) -> None:
    books.limit = 64 * KB
    first = books.take(32 * KB)
    assert books.counters()["reserved"] == 32 * KB, "no more than needed, near the limit"
    assert books.try_take(64 * KB) == 0
    books.give(first)
    books.give_back_pages(0)
    assert books.take(32 * KB) == first
    assert books.try_take(33 * KB) == 0
    books.limit = 0
    assert books.take(33 * KB)
    audit(books)


def test_a_cache_over_its_limit_is_shrunk_by_the_free(books: Any) -> None:
    books.cache_limit = 128 * KB
    blocks = [books.take(64 * KB) for _ in range(32)]
    for address in blocks:
        books.give(address)
        counters = books.counters()
        assert counters["reserved"] - counters["active"] <= 128 * KB
    audit(books)


def test_trim_is_called_in_place_of_giving_pages_back(books: Any) -> None:
    asked = []
    books.trim = asked.append
    books.cache_limit = 4096
    books.give(books.take(2048))
    block = books.allocate(2048)
    del block
    assert asked == [4096, 4096]
    assert books.counters()["reserved"] == MB


def test_fixed_segments_that_are_wholly_free_are_dropped(core: ModuleType) -> None:
    books = core.Core()
    for number in range(4):
        books.add_segment(0, FIXED, BASE + 2 * number * MB, MB, MB)
    held = [books.take(MB) for _ in range(4)]
    books.give(held[1])
    books.give(held[2])
    assert books.drop_free_segments(2 * MB) == []
    assert books.drop_free_segments(MB) == [(held[1], MB)]
    assert books.drop_free_segments(0) == [(held[2], MB)]
    assert books.counters()["reserved"] == 2 * MB
    assert not books.owns(held[1])
    assert sorted(audit(books)) == [held[0], held[3]]


# ---- the log


def test_a_log_has_every_event_in_order(core: ModuleType, books: Any) -> None:
    log = core.Log(depth=0)
    books.watch(log, 3)
    first = books.take(1000)
    books.give(first)
    books.give_back_pages(0)
    books.watch(None, 0)
    books.take(1)
    times, *rest = log.columns()
    kinds, addresses, sizes, stacks, places, tags = rest
    assert list(kinds) == [2, 0, 1, 3]
    assert list(memoryview(addresses).cast("Q")) == [BASE, first, first, BASE]
    assert list(memoryview(sizes).cast("q")) == [MB, 1000, 1000, MB]
    assert list(memoryview(stacks).cast("I")) == [0] * 4
    assert list(memoryview(places).cast("H")) == [3] * 4
    assert list(memoryview(tags).cast("H")) == [0] * 4
    moments = list(memoryview(times).cast("q"))
    assert moments == sorted(moments)
    assert moments[0] >= 0
    assert (log.count, log.lost) == (4, 0)


@pytest.mark.parametrize("depth", [1, 2, 8])
def test_a_stack_is_the_lines_that_asked_innermost_first(
    core: ModuleType, books: Any, depth: int
) -> None:
    log = core.Log(depth=depth, skip=POOLS)
    books.watch(log, 0)

    def inner() -> int:
        return books.take(10)

    def outer() -> list[int]:
        return [inner() for _ in range(30)]

    outer()
    numbers = set(memoryview(log.columns()[4]).cast("I")) - {0}
    inside = {number for number in numbers if log.stacks()[number][0][0] is inner.__code__}
    assert 1 <= len(inside) <= 2, "one, and one more once the interpreter has warmed up"
    for number in inside:
        names = [code.co_name for code, _ in log.stacks()[number]]
        assert names[:3] == ["inner", "<listcomp>", "outer"][:depth]
        assert len(names) <= depth


def test_frames_of_the_pools_are_left_out(core: ModuleType) -> None:
    log = core.Log(depth=1, skip=POOLS)
    pool = Pool(core=core)
    pool.core.watch(log, 0)
    pool.allocate(10)
    ((code, _),) = log.stacks()[1]
    assert code.co_filename == __file__


def test_many_stacks_keep_their_numbers(core: ModuleType, books: Any) -> None:
    log = core.Log(depth=1, skip=POOLS)
    books.watch(log, 0)
    source = "\n".join(f"def f{n}(books): return books.take(1)" for n in range(1500))
    made: dict[str, Any] = {}
    exec(source, made)
    functions = [made[f"f{n}"] for n in range(1500)]
    for function in functions * 2:
        function(books)
    stacks = list(memoryview(log.columns()[4]).cast("I"))
    kinds = log.columns()[1]
    table = log.stacks()
    found = [table[number] for number, kind in zip(stacks, kinds, strict=True) if kind == 0]
    assert [frames[0][0] for frames in found] == [f.__code__ for f in functions * 2]
    assert len(log.stacks()) == 1501


# ---- both cores do the same


def quick_slot(size: int) -> int:
    """Where the compiled core keeps free blocks of a size; two sizes may share it."""
    return (((size >> 9) * 2654435761) >> 8) & 255


def sizes_apart(count: int) -> list[int]:
    """Sizes that do not share a slot, from small to large."""
    slots: dict[int, int] = {}
    rng = random.Random(4)
    while len(slots) < count:
        size = 512 * int(2 ** rng.uniform(0, 13.9))
        slots.setdefault(quick_slot(size), size)
    return sorted(slots.values())


@pytest.mark.parametrize("seed", range(6))
def test_both_cores_put_every_block_at_the_same_place(seed: int) -> None:
    rng = random.Random(seed)
    sizes = sizes_apart(40)
    pair = [core_named(name).Core() for name in ("compiled", "python")]
    for one in pair:
        one.add_segment(0, ADDRESSES_ONLY, BASE, 0, 1 << 26)
        one.add_segment(1, ADDRESSES_ONLY, LARGE, 0, 1 << 28)
    live: list[int] = []
    for step in range(4000):
        what = rng.random()
        if what < 0.52 or not live:
            size = rng.choice(sizes) - rng.choice((0, 0, 1, 511))
            places = [one.try_take(size) for one in pair]
            assert places[0] == places[1]
            live += places[:1] if places[0] else []
        elif what < 0.985:
            address = live.pop(rng.randrange(len(live)))
            assert pair[0].give(address) == pair[1].give(address)
        elif what < 0.99:
            keep = rng.randrange(16 * MB)
            assert pair[0].give_back_pages(keep) == pair[1].give_back_pages(keep)
        elif what < 0.995:
            limit = rng.choice((0, 0, 24 * MB, 48 * MB))
            pair[0].limit = pair[1].limit = limit
        else:
            assert pair[0].flush() == pair[1].flush()
        if not step % 50:
            assert pair[0].counters() == pair[1].counters()
            assert pair[0].chunks() == pair[1].chunks()
    assert audit(pair[0]) == audit(pair[1])


# ---- any operations in any order


class Storm(RuleBasedStateMachine):
    """Operations of a pool over real memory, with a model of what must be in it."""

    operations = 0
    MOST = 24 * MB  # live at once

    def __init__(self, core: ModuleType) -> None:
        super().__init__()
        self.pool = Pool(core=core)
        self.core = self.pool.core
        self.blocks: dict[int, tuple[Any, int, int]] = {}  # address -> block or None, size, pattern
        self.peak = self.live = 0

    # what one operation is, so that a rule can do one and another can do many

    def take(self, size: int, as_block: bool) -> None:
        Storm.operations += 1
        if self.live + size > self.MOST:
            return
        before = self.core.counters()["reserved"]
        try:
            block = self.core.allocate(size) if as_block else None
            address = self.pool.allocate(size) if block is None else block.address
        except OutOfMemory:
            assert self.core.limit
            return
        for other, (_, length, _) in self.blocks.items():
            assert address + max(size, 1) <= other or other + max(length, 1) <= address
        pattern = Storm.operations % 251 + 1
        ctypes.memset(address, pattern, size)
        self.blocks[address] = (block, size, pattern)
        self.live += size
        self.peak = max(self.peak, self.live)
        reserved = self.core.counters()["reserved"]
        assert not self.core.limit or reserved <= max(self.core.limit, before)

    def give(self, which: int, by_dropping: bool) -> None:
        Storm.operations += 1
        if not self.blocks:
            return
        address = list(self.blocks)[which % len(self.blocks)]
        block, size, pattern = self.blocks.pop(address)
        assert ctypes.string_at(address, size) == bytes([pattern]) * size, "written by another"
        self.live -= size
        if block is None or not by_dropping:
            self.pool.free(address)
            assert block is None or block.freed
        del block
        with pytest.raises(DoubleFree):
            self.pool.free(address)

    @rule(size=st.one_of(st.integers(0, 4096), st.integers(0, 8 * MB)), as_block=st.booleans())
    def allocate(self, size: int, as_block: bool) -> None:
        self.take(size, as_block)

    @rule(which=st.integers(0, 999), by_dropping=st.booleans())
    def free(self, which: int, by_dropping: bool) -> None:
        self.give(which, by_dropping)

    @rule(seed=st.integers(0, 2**32), count=st.integers(1, 250), share=st.sampled_from((0.4, 0.6)))
    def many(self, seed: int, count: int, share: float) -> None:
        rng = random.Random(seed)
        for _ in range(count):
            if rng.random() < share:
                most = rng.choice((600, 600, 5000, 5000, 70_000, 70_000, MB, 2 * MB))
                self.take(rng.randrange(most), rng.random() < 0.5)
            else:
                self.give(rng.randrange(1000), rng.random() < 0.5)

    @rule(keep=st.one_of(st.just(0), st.integers(0, 16 * MB)))
    def empty_cache(self, keep: int) -> None:
        Storm.operations += 1
        before = self.core.counters()["reserved"]
        given = self.pool.empty_cache(keep)
        assert given == before - self.core.counters()["reserved"]
        free = before - given - self.core.counters()["active"]
        edges = 2 * 4096 * (len(self.core.chunks()) + 1)  # parts of pages that cannot go
        assert free <= keep + edges

    @rule(size=st.one_of(st.none(), st.integers(0, 16 * MB)))
    def set_cache_size(self, size: int | None) -> None:
        Storm.operations += 1
        self.pool.set_cache_size(size)

    @rule(limit=st.one_of(st.none(), st.none(), st.integers(1, 48 * MB)))
    def set_limit(self, limit: int | None) -> None:
        Storm.operations += 1
        self.pool.set_limit(limit)

    @rule()
    def flush(self) -> None:
        Storm.operations += 1
        self.core.flush()

    @rule()
    def reset_peaks(self) -> None:
        Storm.operations += 1
        self.core.reset_peaks()
        self.peak = self.live

    @rule(offset=st.integers(1, 600), which=st.integers(0, 999))
    def foreign(self, offset: int, which: int) -> None:
        Storm.operations += 1
        with pytest.raises(ForeignPointer):
            self.pool.free(offset)
        if self.blocks:
            address = list(self.blocks)[which % len(self.blocks)]
            if 0 < offset < max(self.blocks[address][1], 1):
                with pytest.raises(ForeignPointer):
                    self.pool.free(address + offset)

    @rule()
    def collect(self) -> None:
        Storm.operations += 1
        cycle: list[Any] = [self.core.allocate(100) if not self.core.limit else None]
        cycle.append(cycle)
        self.peak = max(self.peak, self.live + (100 if cycle[0] else 0))
        del cycle
        gc.collect(0)

    @invariant()
    def the_books_are_the_model(self) -> None:
        assert audit(self.core) == {a: size for a, (_, size, _) in self.blocks.items()}
        assert self.core.counters()["peak_allocated"] == self.peak

    def teardown(self) -> None:
        while self.blocks:
            self.give(0, True)
        assert audit(self.core) == {}


def _storm(core: ModuleType, examples: int, steps: int) -> int:
    Storm.operations = 0
    gc.collect()
    gc.freeze()  # collections are many, and the heap of the tests is large
    run_state_machine_as_test(
        lambda: Storm(core),
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            derandomize=True,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
    return Storm.operations


def test_some_hundred_operations_in_any_order_keep_the_books_right(core: ModuleType) -> None:
    assert _storm(core, examples=8, steps=20) > 300  # of each core


@pytest.mark.slow
def test_many_thousand_operations_in_any_order_keep_the_books_right(core: ModuleType) -> None:
    examples = 120 if ALL else 15
    assert _storm(core, examples=examples, steps=50) > examples * 200  # of each core
