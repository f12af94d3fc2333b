from __future__ import annotations

import gc
from types import ModuleType
from typing import Any

import numpy
import pytest

from holdfast.base.errors import BadInput, DoubleFree, ForeignPointer, InUse, OutOfMemory
from holdfast.memory.core import native_build
from holdfast.memory.pools.memory_pool import CPUMemoryPool, MemoryPool, memory_pools
from holdfast.memory.pools.pool import Pool
from holdfast.memory.resources.adaptors import Limit
from holdfast.memory.resources.resource import Host
from tests.memory.conftest import audit

KB, MB = 1 << 10, 1 << 20


@pytest.fixture
def pinning(core: ModuleType, monkeypatch: pytest.MonkeyPatch) -> CPUMemoryPool:
    """A pool of the CPU, all parts of it over one core."""
    monkeypatch.setattr(native_build, "core", lambda: core)
    return CPUMemoryPool(name="host")


# ---- blocks


@pytest.mark.parametrize(("size", "bytes_"), [(0, 0), (10, 10), ("2KB", 2000), ("1MiB", MB)])
def test_a_size_may_be_a_number_or_text(people: MemoryPool, size: Any, bytes_: int) -> None:
    block = people.allocate(size)
    assert block.size == people.total_allocated == bytes_
    assert people.allocate(numpy.int32(7)).size == 7


@pytest.mark.parametrize(
    ("size", "message"),
    [
        (-1, "cannot allocate -1 bytes\n  expected: a size from 0 to 4612 PB"),
        (1.5, "cannot allocate 1.5\n  expected: a number of bytes, or text such as '2GB'"),
        (None, "cannot allocate None\n  expected: a number of bytes, or text such as '2GB'"),
        (2**70, f"cannot allocate {2**70} bytes\n  expected: a size from 0 to 4612 PB"),
        (
            "much",
            "cannot read 'much' as a size in bytes\n"
            '  expected: a size such as "2GB", "512MiB" or "80%"',
        ),
    ],
)
def test_what_is_no_size_is_refused(people: MemoryPool, size: Any, message: str) -> None:
    with pytest.raises(BadInput) as caught:
        people.allocate(size)
    assert str(caught.value) == message
    assert audit(people.pool.core) == {}


def test_a_device_without_a_pool_is_refused() -> None:
    with pytest.raises(BadInput) as caught:
        MemoryPool("abacus")
    assert str(caught.value) == (
        "there is no pool for the device 'abacus'\n"
        "  expected: cpu, cuda, cuda:N, opencl or opencl:N"
    )


def test_a_dropped_block_is_used_again(people: MemoryPool) -> None:
    address = people.allocate(1000).address
    assert people.allocate(1000).address == address
    assert people.stats().cache_hits == 1


def test_a_block_with_a_view_is_not_freed(people: MemoryPool) -> None:
    block = people.allocate(1000)
    first, second = block.array(), block.view()
    with pytest.raises(InUse) as caught:
        people.deallocate(block)
    assert str(caught.value) == (
        f"cannot free <Block of 1.0 KB at {block.address:#x}>: it has 2 views\n"
        "  expected: a block without an array, tensor or memoryview over it\n"
        "  try: delete the views first, or drop the block and let the last view free it"
    )
    assert audit(people.pool.core) == {block.address: 1000}
    second.release()
    del first, second
    people.deallocate(block)
    assert audit(people.pool.core) == {}


@pytest.mark.parametrize("again", ["block", "address"])
def test_a_block_is_freed_once(people: MemoryPool, again: str) -> None:
    block = people.allocate(1000)
    people.deallocate(block)
    with pytest.raises(DoubleFree) as caught:
        people.deallocate(block if again == "block" else block.address)
    assert str(caught.value).splitlines()[1:] == [
        "  expected: a block that is in use",
        "  try: free a block once, or drop every reference to it instead",
    ]
    assert caught.value.what == (
        f"<Block of 1.0 KB at {block.address:#x}, freed> was freed before"
        if again == "block"
        else f"the block at {block.address:#x} of the pool was freed before"
    )


def test_a_freed_block_does_not_free_the_next_one_at_its_address(people: MemoryPool) -> None:
    block = people.allocate(1000)
    people.deallocate(block.address)
    after = people.allocate(1000)
    assert after.address == block.address
    with pytest.raises(DoubleFree):
        people.deallocate(block)
    del block
    assert not after.freed


def test_a_block_of_another_pool_is_refused(people: MemoryPool, core: ModuleType) -> None:
    stranger = MemoryPool(resource=Pool(core=core)).allocate(10)
    with pytest.raises(ForeignPointer) as caught:
        people.deallocate(stranger)
    assert str(caught.value) == (
        f"{stranger.address:#x} was not allocated by the pool\n"
        "  expected: the address that allocate() returned"
    )
    assert not stranger.freed


# ---- figures


def test_blocks_in_use_and_free_pieces_are_listed(people: MemoryPool) -> None:
    block, gone = people.allocate(1000), people.allocate(600)
    address = gone.address
    del gone
    ((where, info),) = people.allocated_blocks.items()
    assert (where, info.size, info.rounded, info.tag) == (block.address, 1000, 1024, "")
    assert people.free_blocks[1024] == [address]
    assert sum(size * len(at) for size, at in people.free_blocks.items()) == MB - 1024
    assert (people.total_allocated, people.peak_allocated) == (1000, 1600)
    people.reset_peaks()
    assert people.peak_allocated == 1000


def test_a_pool_tells_what_it_holds(people: MemoryPool) -> None:
    block = people.allocate(1000)
    assert repr(people) == ("<MemoryPool 'the pool' on cpu: 1.0 KB in 1 blocks, 1.0 MB reserved>")
    assert [holder.address for holder in people.holders()] == [block.address]


def test_pools_are_listed_while_they_are_there(people: MemoryPool) -> None:
    assert people in memory_pools()


# ---- settings


def test_settings_may_be_given_at_the_beginning() -> None:
    pool = MemoryPool(limit="4MB", cache_size="1MB", name="small")
    assert pool.name == "small"
    with pytest.raises(OutOfMemory):
        pool.allocate("5MB")
    block = pool.allocate("3MB")
    del block
    assert pool.stats().cached_bytes <= 10**6
    pool.set_limit(None)
    pool.set_cache_size(None)
    assert pool.allocate("5MB")


def test_a_pool_takes_its_memory_from_the_resource_it_is_given() -> None:
    limit = Limit(Host(), "64MB")
    pool = MemoryPool(resource=limit)
    block = pool.allocate("3MB")
    assert limit.used_bytes == 8 * MB
    del block
    assert pool.empty_cache() == 8 * MB
    assert limit.used_bytes == 0


def test_a_name_is_that_of_the_pool_underneath_too() -> None:
    under = Pool(name="under")
    assert MemoryPool(resource=under).name == "under"
    named = MemoryPool(resource=under, name="mine")
    assert (named.name, under.name) == ("mine", "mine")
    assert repr(named).startswith("<MemoryPool 'mine' on cpu: ")


def test_garbage_that_holds_blocks_is_counted(people: MemoryPool) -> None:
    gc.disable()
    try:
        cycle: list[Any] = [people.allocate(5000)]
        cycle.append(cycle)
        del cycle
        assert people.total_allocated == 5000
        assert people.collect_garbage() == 5000
    finally:
        gc.enable()
    assert people.collect_garbage() == 0


def test_a_compact_pool_keeps_no_free_pages(people: MemoryPool) -> None:
    keep = [people.allocate(100 * KB) for _ in range(10)]
    del keep[::2]
    before = people.stats()
    given = people.compact()
    after = people.stats()
    assert given == before.reserved_bytes - after.reserved_bytes > 0
    assert after.cached_bytes < 11 * 2 * 4096
    assert after.allocated_bytes == before.allocated_bytes


def test_a_closed_pool_hands_out_nothing_and_takes_back(people: MemoryPool) -> None:
    block = people.allocate(100)
    people.close()
    with pytest.raises(OutOfMemory) as caught:
        people.allocate(1)
    assert str(caught.value) == "this pool is closed\n  expected: a pool that is open"
    people.deallocate(block)
    assert audit(people.pool.core) == {}


def test_a_pool_closed_within_a_step_stays_closed_after_it(people: MemoryPool) -> None:
    with people.step():
        block = people.allocate(100)
        people.close()
        with pytest.raises(OutOfMemory, match="this pool is closed"):
            people.allocate(1)
        people.deallocate(block)
    with pytest.raises(OutOfMemory, match="this pool is closed"):
        people.allocate(1)


# ---- steps


def test_a_step_that_repeats_gets_the_same_places(people: MemoryPool) -> None:
    places = []
    for _ in range(4):
        with people.step() as planned:
            blocks = [people.allocate(size) for size in (3 * MB, 5000, 2 * MB)]
            places.append([block.address for block in blocks])
            for block in blocks:
                block.array()[:] = 1
            del block, blocks
    assert places[1] == places[2] == places[3]
    assert planned.hits == 9
    people.empty_cache()
    assert audit(people.pool.core) == {}


# ---- pinned memory


def test_pinned_blocks_are_known(pinning: CPUMemoryPool) -> None:
    plain, pinned = pinning.allocate(100), pinning.allocate_pinned(200)
    assert (plain.pinned, pinned.pinned) == (False, True)
    assert (pinning.is_pinned(plain), pinning.is_pinned(pinned)) == (False, True)
    assert pinning.is_pinned(pinned.address)
    assert not pinning.is_pinned(12345)
    assert pinning.pinned_blocks == {pinned.address}
    assert repr(pinned) == f"<Block of 200 B at {pinned.address:#x}, pinned>"
    pinned.array()[:] = 3
    stats = pinning.stats()
    assert (stats.allocated_bytes, stats.num_allocs) == (300, 2)
    pinning.deallocate(pinned)
    pinning.deallocate(plain.address)
    assert pinning.pinned_blocks == set()
    assert pinning.empty_cache() > 2 * MB
    assert pinning.stats().reserved_bytes == 0


def test_all_blocks_are_pinned_if_that_is_set(pinning: CPUMemoryPool) -> None:
    pinning.use_pinned_memory = True
    assert pinning.allocate(10).pinned
    assert pinning.device_type == "cpu"


def test_a_closed_pool_hands_out_no_pinned_block_either(pinning: CPUMemoryPool) -> None:
    pinned = pinning.allocate_pinned(10)
    pinning.close()
    with pytest.raises(OutOfMemory, match="this pool is closed"):
        pinning.allocate_pinned(10)
    pinning.deallocate(pinned)
