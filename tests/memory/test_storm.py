"""Threads, collections, signals, Ctrl-C and forks in the middle of everything."""

from __future__ import annotations

import ctypes
import gc
import os
import queue
import random
import resource
import signal
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest

from holdfast.memory.core import system_pages
from holdfast.memory.pools.memory_pool import MemoryPool
from holdfast.memory.pools.pool import Pool
from holdfast.memory.resources.adaptors import Limit, Statistics
from tests.memory.conftest import audit

pytestmark = pytest.mark.slow  # many turns, and processes of their own

MB = 1 << 20
THREADS = 8

START = """
import faulthandler, gc, os, random, signal, sys, threading, time, weakref
faulthandler.dump_traceback_later(60, exit=True)
from tests.memory.conftest import audit, core_named
from holdfast.memory.pools.memory_pool import MemoryPool
from holdfast.memory.pools.pool import Pool
pool = MemoryPool(resource=Pool(core=core_named(sys.argv[1])))
core = pool.pool.core
"""


def fill(address: int, size: int, pattern: int) -> None:
    ctypes.memset(address, pattern, size)


def holds(address: int, size: int, pattern: int) -> bool:
    return ctypes.string_at(address, size) == bytes([pattern]) * size


def run_threads(work: Callable[[int], None]) -> None:
    """`work(number)` in eight threads that begin together; the first error is raised here."""
    errors: list[BaseException] = []
    ready = threading.Barrier(THREADS)

    def one(number: int) -> None:
        ready.wait()
        try:
            work(number)
        except BaseException as exc:  # noqa: BLE001 - whatever it is belongs to the test
            errors.append(exc)

    threads = [threading.Thread(target=one, args=(n,), daemon=True) for n in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive(), "a thread waits for ever"
    if errors:
        raise errors[0]


@pytest.fixture
def often() -> Iterator[None]:
    """Threads change places, and garbage is collected, far more often than usual."""
    import sys

    before, threshold = sys.getswitchinterval(), gc.get_threshold()
    gc.collect()
    gc.freeze()
    sys.setswitchinterval(1e-5)
    gc.set_threshold(50)
    yield
    sys.setswitchinterval(before)
    gc.set_threshold(*threshold)
    gc.unfreeze()


# ---- threads


def test_eight_threads_get_blocks_of_their_own(core: ModuleType, often: None) -> None:
    pool = MemoryPool(resource=Pool(core=core))
    parcels: queue.SimpleQueue[tuple[Any, int, int]] = queue.SimpleQueue()

    def work(number: int) -> None:
        rng = random.Random(number)
        mine: list[tuple[Any, int, int]] = []
        for turn in range(600):
            size = rng.choice((rng.randrange(2000), rng.randrange(2000), rng.randrange(200_000)))
            pattern = rng.randrange(256)
            block = pool.allocate(size)
            fill(block.address, size, pattern)
            (mine.append if rng.random() < 0.7 else parcels.put)((block, size, pattern))
            if rng.random() < 0.05:  # dropped in a cycle: the collector frees it, in any thread
                cycle: list[Any] = [pool.allocate(size)]
                cycle.append(cycle)
                del cycle
            if len(mine) > 12:
                block, size, pattern = mine.pop(rng.randrange(len(mine)))
                assert holds(block.address, size, pattern)
                if rng.random() < 0.5:
                    pool.deallocate(block)
            if rng.random() < 0.4:
                try:
                    block, size, pattern = parcels.get_nowait()
                except queue.Empty:
                    continue
                assert holds(block.address, size, pattern)
            if not turn % 97:
                rng.choice((pool.empty_cache, pool.compact, pool.stats))()

    run_threads(work)
    while not parcels.empty():
        block, size, pattern = parcels.get()
        assert holds(block.address, size, pattern)
    block = None
    gc.collect()
    assert audit(pool.pool.core) == {}
    stats = pool.stats()
    assert stats.num_allocs == stats.num_frees >= THREADS * 600
    assert (stats.allocated_bytes, stats.active_bytes) == (0, 0)
    assert stats.inactive_bytes == stats.reserved_bytes


def test_adaptors_count_right_in_eight_threads(core: ModuleType, often: None) -> None:
    pool = Pool(core=core)
    limit = Limit(pool, "64MB")
    stack = Statistics(limit)

    def work(number: int) -> None:
        rng = random.Random(number)
        mine: list[tuple[int, int]] = []
        for _ in range(400):
            size = rng.randrange(50_000)
            address = stack.allocate(size)
            fill(address, size, number)
            mine.append((address, size))
            while len(mine) > 10:
                address, size = mine.pop(rng.randrange(len(mine)))
                assert holds(address, size, number)
                stack.free(address)
        for address, _ in mine:
            stack.free(address)

    run_threads(work)
    counter = stack.counter
    assert (counter.current_bytes, counter.current_count) == (0, 0)
    assert counter.total_count == THREADS * 400
    assert limit.used_bytes == 0
    assert pool.allocated_bytes == 0
    assert audit(pool.core) == {}
    assert pool.core.counters()["cumulative"] == counter.total_bytes


def test_a_limit_is_never_passed_by_threads_that_ask_at_once(core: ModuleType, often: None) -> None:
    pool = Pool(core=core)
    pool.set_limit(8 * MB)
    refused: list[int] = []

    def work(number: int) -> None:
        rng = random.Random(number)
        for _ in range(40):
            try:
                address = pool.allocate(rng.randrange(3 * MB))
            except MemoryError:
                refused.append(number)
                continue
            assert pool.reserved_bytes <= 8 * MB
            pool.free(address)

    run_threads(work)
    assert audit(pool.core) == {}
    assert pool.peak_reserved_bytes <= 8 * MB


# ---- frees in the middle of other calls


def test_garbage_that_holds_blocks_is_collected_in_the_middle_of_allocations(
    pool: Pool, often: None
) -> None:
    gc.set_threshold(1)
    for turn in range(3000):
        cycle: list[Any] = [pool.core.allocate(turn % 5000)]
        cycle.append(cycle)
        del cycle
    gc.collect()
    assert audit(pool.core) == {}
    assert pool.stats().num_frees == 3000


def test_blocks_of_several_pools_are_freed_in_each_others_calls(
    core: ModuleType, often: None
) -> None:
    pools = [Pool(core=core) for _ in range(4)]
    gc.set_threshold(1)
    for turn in range(1500):
        cycle: list[Any] = [pool.core.allocate(turn) for pool in pools]
        cycle.append(cycle)
        del cycle
        pools[turn % 4].empty_cache()
    gc.collect()
    assert [audit(pool.core) for pool in pools] == [{}] * 4


def test_a_finalizer_may_free(people: MemoryPool, often: None) -> None:
    class Thing:
        pass

    gc.set_threshold(1)
    for turn in range(1500):
        thing: Any = Thing()
        thing.itself = thing
        weakref.finalize(thing, people.deallocate, people.allocate(turn))
        del thing
    gc.collect()
    assert audit(people.pool.core) == {}


def test_a_signal_handler_may_free(core: ModuleType, script: Any) -> None:
    text = (
        START
        + """
free_these = []
freed = 0

def handler(number, frame):
    global freed
    if free_these:
        block = free_these.pop()
        if freed % 2:
            pool.deallocate(block.address)
        del block
        freed += 1

signal.signal(signal.SIGALRM, handler)
signal.setitimer(signal.ITIMER_REAL, 1e-4, 1e-4)
turn = 0
while freed < 1000:
    turn += 1
    block = pool.allocate(turn % 3000)
    free_these.append(block)
    del block
    if not turn % 7:
        pool.stats()
        core.chunks()
        core.flush()
    if len(free_these) > 50:
        free_these.pop(0)
signal.setitimer(signal.ITIMER_REAL, 0)
left = len(free_these)
assert len(audit(core)) == left, (len(audit(core)), left)
free_these.clear()
assert audit(core) == {}
print("done")
"""
    )
    name = "python" if core.__name__.endswith(".core") else "compiled"
    assert script(text, name) == "done\n"


# ---- Ctrl-C

INTERRUPTED = (
    START
    + """
sys.unraisablehook = lambda problem: None  # an exception in a destructor
rng = random.Random(3)
held, hits, kept_errors = {}, 0, []

def interrupt(number, frame):
    while frame and frame.f_code is not sys.unraisablehook.__code__:
        if frame.f_code is churn.__code__:
            raise KeyboardInterrupt
        frame = frame.f_back

signal.signal(signal.SIGALRM, interrupt)

def churn():
    while True:
        what = rng.random()
        if what < 0.5:
            block = pool.allocate(rng.randrange(20000))
            held[id(block)] = block
        elif what < 0.9 and held:
            del held[rng.choice(list(held))]
        elif what < 0.93:
            pool.empty_cache()
        elif what < 0.96:
            pool.stats()
            core.chunks()
        elif held and not (block := held[rng.choice(list(held))]).freed:
            pool.deallocate(block)
        if len(held) > 60:
            held.clear()

while hits < int(sys.argv[2]):
    try:
        # Again and again: Python drops what is raised in a __del__.
        signal.setitimer(signal.ITIMER_REAL, rng.uniform(1e-5, 1e-3), 1e-3)
        churn()
    except KeyboardInterrupt as exc:
        hits += 1
        # As in a console, where sys.last_traceback keeps every frame of the last error.
        kept_errors[:] = [exc]
        alive = {b.address for b in held.values() if not b.freed}
        used = set(audit(core))
        assert alive <= used, "a block that is held was given away"
signal.setitimer(signal.ITIMER_REAL, 0)
kept_errors.clear()
block = None
gc.collect()
alive = {b.address for b in held.values() if not b.freed}
lost = len(set(audit(core)) - alive)
held.clear()
assert len(audit(core)) == lost
again = [pool.allocate(5000) for _ in range(100)]
assert len(audit(core)) == lost + 100
print(lost)
"""
)


def _interrupted(script: Any, core: ModuleType, times: int) -> None:
    name = "python" if core.__name__.endswith(".core") else "compiled"
    assert script(INTERRUPTED, name, str(times)) == "0\n"


def test_ctrl_c_in_the_middle_leaves_the_pool_usable(core: ModuleType, script: Any) -> None:
    _interrupted(script, core, 500)


def test_ctrl_c_many_times_in_the_middle_leaves_the_pool_usable(
    core: ModuleType, script: Any
) -> None:
    _interrupted(script, core, 10_000)


# ---- fork


def _in_child(pool: Pool, mine: list[tuple[Any, int, int]]) -> int:
    """What a child does after the fork; its exit status."""
    blocks = [pool.core.allocate(1000 * n) for n in range(40)]
    for number, block in enumerate(blocks):
        fill(block.address, block.size, number)
    good = all(holds(b.address, b.size, number) for number, b in enumerate(blocks))
    good = good and all(holds(block.address, size, pattern) for block, size, pattern in mine)
    for block, size, _ in mine:
        fill(block.address, size, 0xEE)  # a copy: the parent must not see it
    used = audit(pool.core)
    good = good and all(block.address in used for block in blocks)
    blocks.clear()
    mine.clear()
    pool.empty_cache()
    return 0 if good and len(audit(pool.core)) < len(used) else 3


def test_a_fork_while_threads_are_at_work_leaves_both_sides_usable(
    core: ModuleType, often: None
) -> None:
    pool = Pool(core=core)
    mine = [(pool.core.allocate(5000), 5000, n) for n in range(20)]
    for block, size, pattern in mine:
        fill(block.address, size, pattern)
    stop = threading.Event()

    def hammer() -> None:
        rng = random.Random(1)
        while not stop.is_set():
            blocks = [pool.core.allocate(rng.randrange(9000)) for _ in range(20)]
            del blocks[::2]

    threads = [threading.Thread(target=hammer, daemon=True) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(6):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)
                child = os.fork()
            if not child:
                status = 9
                try:
                    signal.alarm(30)  # a deadlock ends the child, and the test
                    status = _in_child(pool, mine)
                finally:
                    os._exit(status)
            assert os.waitpid(child, 0)[1] == 0
            pool.core.allocate(100)
    finally:
        stop.set()
        for thread in threads:
            thread.join(30)
    assert all(holds(block.address, size, pattern) for block, size, pattern in mine)
    assert len(audit(pool.core)) == len(mine)
    mine.clear()
    del block
    gc.collect()
    assert audit(pool.core) == {}


# ---- the end


@pytest.mark.parametrize("name", ["compiled", "python"])
def test_a_process_that_ends_with_blocks_and_arrays_ends_quietly(name: str, script: Any) -> None:
    text = (
        START
        + """
import atexit
import numpy
block = pool.allocate(1 << 20)
array = block.array("float32")
class Late:
    def __del__(self):
        array[:] = 1
        self.block = None
late = Late()
late.block = pool.allocate(100)
late.cycle = late
view = memoryview(pool.allocate(100).view())
atexit.register(lambda: array.sum())
threading.Thread(target=lambda: [pool.allocate(9) for _ in iter(int, 1)], daemon=True).start()
sys.keep = (pool, block, late)
print("done")
"""
    )
    assert script(text, name) == "done\n"


# ---- page faults


def _faults(work: Callable[[], None]) -> int:
    before = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
    work()
    return resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - before


def test_memory_that_is_used_again_costs_no_page_fault(pool: Pool) -> None:
    size = 64 * MB

    def pooled() -> None:
        for _ in range(4):
            block = pool.core.allocate(size)
            fill(block.address, size, 7)

    def fresh() -> None:
        address = system_pages.reserve(size)
        assert system_pages.make_usable(address, size)
        fill(address, size, 7)
        system_pages.release(address, size)

    pooled()
    assert _faults(pooled) < 20
    # Where the system hands out huge pages unasked there are fewer, but still one each.
    assert _faults(fresh) >= size // system_pages.HUGE_PAGE
    pool.empty_cache()
    assert _faults(pooled) >= size // system_pages.HUGE_PAGE
