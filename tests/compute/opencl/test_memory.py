"""Memory of the engine: eviction and return, limits, statistics; with buffers and with SVM."""

from __future__ import annotations

import gc
import threading
from typing import Any

import numpy
import pytest

from holdfast.base.errors import OutOfMemory
from holdfast.compute.engine import fallbacks, run, strict
from holdfast.compute.engines.opencl import Array, OpenCLEngine
from holdfast.compute.engines.opencl.runtime.memory import Memories
from holdfast.compute.ops import OPS
from holdfast.memory import memory_manager
from holdfast.memory.pools.memory_pool import MemoryPool
from holdfast.memory.resources import opencl_devices
from holdfast.memory.resources.opencl import KINDS

MB = 1 << 20
FLOAT = numpy.dtype(numpy.float32)
TWICE = """__kernel void twice(__global uchar *x_, ulong x_at, __global uchar *y_, ulong y_at) {
    const size_t i = get_global_id(0);
    AT(float, y)[i] = 2 * CAT(float, x)[i];
}"""


@pytest.fixture(params=KINDS)
def engine(request: pytest.FixtureRequest) -> OpenCLEngine:
    """An engine with a pool of its own, which may have 16 MB of the device."""
    made = OpenCLEngine(0)
    place = opencl_devices.open_device(0)
    pool = MemoryPool(place.name, resource=KINDS[request.param](place), limit=16 * MB)
    made.memories = Memories(place, pool)
    return made


def numbers(count: int, seed: int = 0) -> Any:
    return numpy.random.default_rng(seed).random(count, numpy.float32)


def twice(engine: OpenCLEngine, array: Array) -> Array:
    made = engine.alloc(array.shape, FLOAT)
    engine.launch(engine.programs.build(TWICE, "twice"), (array.size,), None, array, made)
    return made


def on_device(*arrays: Array) -> list[bool]:
    return [array.memory.host is None for array in arrays]


def test_what_makes_room_comes_back_with_its_numbers(engine: OpenCLEngine):
    plain = [numbers(MB, seed) for seed in range(6)]  # 4 MB each: 24 of 16
    arrays = [engine.upload(one) for one in plain]
    assert on_device(*arrays).count(True) <= 4
    assert engine.memories.out_count >= 2
    assert engine.memories.out_bytes == engine.memories.out_count * 4 * MB
    for one, array in zip(plain, arrays, strict=True):
        numpy.testing.assert_array_equal(engine.download(twice(engine, array)), 2 * one)
    assert engine.memories.back_count >= 2
    for one, array in zip(plain, arrays, strict=True):
        numpy.testing.assert_array_equal(engine.download(array), one)


def test_what_was_not_used_for_longest_goes_first(engine: OpenCLEngine):
    arrays = [engine.upload(numbers(MB // 2, seed)) for seed in range(6)]  # 2 MB each
    for place in (3, 0, 5, 1, 4, 2):
        twice(engine, arrays[place])
    assert all(on_device(*arrays))
    kept = engine.alloc((2 * MB,), FLOAT)
    found = on_device(*arrays)
    gone = found.count(False)
    assert 2 <= gone < 6
    assert [found[place] for place in (3, 0, 5, 1, 4, 2)] == [False] * gone + [True] * (6 - gone)
    assert on_device(kept) == [True]


def test_what_a_launch_needs_stays_while_the_rest_comes(engine: OpenCLEngine):
    one, other = engine.upload(numbers(MB, 1)), engine.upload(numbers(MB, 2))
    engine.memories.make_room(None)
    assert on_device(one, other) == [False, False]
    made = twice(engine, one)
    assert on_device(one, made) == [True, True]
    numpy.testing.assert_array_equal(engine.download(made), 2 * numbers(MB, 1))


def test_room_in_pieces_is_made_whole(engine: OpenCLEngine):
    arrays = [engine.upload(numbers(MB // 4, seed)) for seed in range(16)]  # 1 MB each: full
    for array in arrays[::2]:
        twice(engine, array)  # the odd ones go first, which lie between the others
    large = engine.upload(numbers(2 * MB, 99))  # 8 MB in one piece
    assert on_device(large) == [True]
    for seed, array in enumerate(arrays):
        numpy.testing.assert_array_equal(engine.download(array), numbers(MB // 4, seed))
    numpy.testing.assert_array_equal(engine.download(large), numbers(2 * MB, 99))


def test_views_go_and_come_with_their_memory(engine: OpenCLEngine):
    plain = numbers(1024).reshape(32, 32)
    array = engine.upload(plain)
    part = array.view(FLOAT, (16,), (8,), 32 * 4 * 3)
    engine.memories.make_room(None)
    assert on_device(part) == [False]
    numpy.testing.assert_array_equal(engine.download(part), plain[3, :32:2])
    twice(engine, array)
    assert on_device(part) == [True]
    numpy.testing.assert_array_equal(engine.download(part), plain[3, :32:2])


def test_what_is_larger_than_the_device_stays_on_the_host_and_is_computed_there(
    engine: OpenCLEngine,
):
    plain = numbers(6 * MB)  # 24 MB of 16
    array = engine.upload(plain)
    assert on_device(array) == [False]
    before = fallbacks["opencl", "neg"]
    found = run(OPS["neg"], engine, [array], {})
    assert fallbacks["opencl", "neg"] == before + 1
    assert on_device(found) == [False]
    numpy.testing.assert_array_equal(engine.download(found), -plain)


def test_what_does_not_fit_together_is_computed_on_the_host(engine: OpenCLEngine):
    plain = [numbers(2 * MB, seed) for seed in range(2)]  # with the result 24 MB of 16
    arrays = [engine.upload(one) for one in plain]
    before = fallbacks["opencl", "add.Tensor"]
    found = run(OPS["add.Tensor"], engine, arrays, {})
    assert fallbacks["opencl", "add.Tensor"] == before + 1
    numpy.testing.assert_array_equal(engine.download(found), plain[0] + plain[1])


def test_where_the_host_is_refused_it_is_an_error_that_names_the_holders(engine: OpenCLEngine):
    kept = engine.upload(numbers(3 * MB // 2))  # 6 MB
    kept.memory.busy += 1  # as if it were in a launch
    with strict(), pytest.raises(OutOfMemory) as caught:
        engine.alloc((3 * MB,), FLOAT)
    pool = engine.memories.pool
    assert str(caught.value) == (
        "cannot allocate 12.6 MB on opencl:0: 6.3 MB are in use in 1 blocks, "
        f"the limit of {pool.name} is 16.8 MB\n"
        "  largest holders:\n"
        f"    {pool.holders(1)[0]}\n"
        "  expected: room for 12.6 MB after collecting garbage, emptying the cache and calling "
        "every callback\n"
        "  try: free one of these blocks, or raise the limit; "
        "enable_memory_debugging(True) records where blocks come from"
    )
    assert "opencl:0" in str(pool.holders(1)[0])


def test_coming_back_is_refused_by_the_same_error(engine: OpenCLEngine):
    array = engine.upload(numbers(6 * MB))
    with strict(), pytest.raises(OutOfMemory, match=r"^cannot allocate 25.2 MB on opencl:0: "):
        run(OPS["neg"], engine, [array], {})
    numpy.testing.assert_array_equal(engine.download(array), numbers(6 * MB))


def test_a_limit_can_be_moved_while_there_are_arrays(engine: OpenCLEngine):
    pool = engine.memories.pool
    arrays = [engine.upload(numbers(MB, seed)) for seed in range(2)]
    pool.set_limit(8 * MB)
    arrays += [engine.upload(numbers(MB, seed)) for seed in range(2, 4)]
    assert on_device(*arrays) == [False, False, True, True]
    assert pool.stats().reserved_bytes <= 8 * MB
    pool.set_limit(64 * MB)
    for seed, array in enumerate(arrays):
        numpy.testing.assert_array_equal(
            engine.download(twice(engine, array)), 2 * numbers(MB, seed)
        )
    assert all(on_device(*arrays))


def test_freed_memory_is_used_again_and_given_back(engine: OpenCLEngine):
    pool = engine.memories.pool
    for seed in range(20):
        found = engine.download(twice(engine, engine.upload(numbers(MB, seed))))
        numpy.testing.assert_array_equal(found, 2 * numbers(MB, seed))
    assert (pool.total_allocated, engine.memories.out_count) == (0, 0)
    assert pool.stats().reserved_bytes <= 16 * MB
    pool.empty_cache()
    assert pool.stats().reserved_bytes == 0


def test_an_upload_leaves_the_array_of_the_host_alone(engine: OpenCLEngine):
    plain = numbers(MB)
    arrays = []
    for step in range(3):
        plain[:] = step
        arrays.append(engine.upload(plain))
    plain[:] = -1
    assert [float(engine.download(array).max()) for array in arrays] == [0, 1, 2]


def test_threads_that_press_for_room_lose_nothing(engine: OpenCLEngine):
    wrong: list[int] = []

    def work(seed: int) -> None:
        kept = [engine.upload(numbers(MB // 4, seed * 100 + i)) for i in range(8)]
        for i, array in enumerate(kept):
            expected = 2 * numbers(MB // 4, seed * 100 + i)
            found = engine.download(twice(engine, array))
            if not numpy.array_equal(found, expected):
                wrong.append(seed * 100 + i)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert engine.memories.out_count > 0


def test_the_usual_pool_is_the_managers_with_a_cap_below_what_the_device_has():
    made = OpenCLEngine(0)
    assert made.memories.pool is memory_manager.pool("opencl:0")
    limit = made.memories.pool.pool.core.limit
    assert 0 < limit < opencl_devices.open_device(0).total_bytes
    array = made.upload(numbers(1000))
    assert memory_manager.stats("opencl:0").allocated_bytes >= 4000
    assert "opencl:0" in {holder.device for holder in memory_manager.detailed().allocations}
    del array


def test_a_memory_that_nobody_looks_at_is_forgotten(engine: OpenCLEngine):
    array = engine.upload(numbers(1000))
    del array
    gc.collect()
    assert engine.memories.make_room(None) == 0
