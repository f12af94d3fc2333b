import contextlib
import ctypes
import gc
import os
import subprocess
import sys
import textwrap
import threading
import warnings
import weakref

import pytest

from holdfast.base.errors import (
    BadInput,
    DoubleFree,
    ForeignPointer,
    InUse,
    OutOfMemory,
    Overrun,
    UseAfterFree,
)
from holdfast.memory.core import pool_core as python_core
from holdfast.memory.debug import debugging
from holdfast.memory.debug.debugging import (
    MemoryMisuseWarning,
    check_memory,
    enable_memory_debugging,
    problems,
    quarantined_bytes,
)
from holdfast.memory.debug.quarantine import GUARD
from holdfast.memory.pools.memory_pool import CPUMemoryPool, MemoryPool
from holdfast.memory.pools.pool import Pool
from holdfast.memory.resources.resource import Virtual

HERE = __file__


@pytest.fixture
def pool(core):
    """A pool that is debugged, over either core; nothing is left of it afterwards."""
    debugging.clear_problems()
    enable_memory_debugging(True)
    yield MemoryPool(resource=Pool(core=core, name="p"))
    enable_memory_debugging(False)
    debugging.clear_problems()


def make(pool, size):
    return pool.allocate(size)


def drop(pool, block):
    pool.deallocate(block)


def _place(function):
    return f"{HERE}:{function.__code__.co_firstlineno + 1} in {function.__name__}"


def scribble(address, count=1):
    ctypes.memset(address, 0, count)


# ---- writes past the end


def test_a_write_past_the_end_is_reported_when_the_block_is_freed(pool):
    block = make(pool, 1000)
    address = block.address
    scribble(address + 1002, 3)
    with pytest.raises(Overrun) as caught:
        pool.deallocate(block)
    assert str(caught.value) == (
        f"a write past the end of the block of 1.0 KB at {address:#x}: "
        "the first changed byte is 3 past its end\n"
        f"  allocated: {_place(make)}\n"
        f"  freed: {HERE}:{_here(6)} in "
        "test_a_write_past_the_end_is_reported_when_the_block_is_freed\n"
        "  expected: writes to its 1000 bytes only\n"
        "  try: call check_memory() between two steps to find the one that does it"
    )
    assert block.freed  # it was taken back all the same
    assert problems() == []


def _here(back):
    """The line so many lines above the caller's statement."""
    frame = sys._getframe(1)
    return frame.f_code.co_firstlineno + back - 1


@pytest.mark.parametrize("size", [0, 1, 495, 496, 497, 511, 512, 513, 4096, 1 << 20])
def test_the_first_byte_past_the_end_is_guarded_and_the_last_before_it_is_not(pool, size):
    block = pool.allocate(size)
    if size:
        scribble(block.address, size)
    assert check_memory(raises=False) == []
    scribble(block.address + size)
    [problem] = check_memory(raises=False)
    assert "the first changed byte is 1 past its end" in problem.what
    assert check_memory(raises=False) == []  # it was mended
    scribble(block.address + size + GUARD - 1)
    with pytest.raises(Overrun, match=f"is {GUARD} past its end"):
        pool.deallocate(block)


def test_a_write_past_the_end_is_a_warning_where_a_destructor_finds_it(pool):
    block = pool.allocate(1000)
    scribble(block.address + 1000)
    with pytest.warns(MemoryMisuseWarning, match="the first changed byte is 1 past its end"):
        del block
    [problem] = problems()
    assert isinstance(problem, Overrun)
    assert f"\n  freed: {HERE}:" in problem.what


def test_a_destructor_goes_on_where_warnings_are_errors(pool):
    before = pool.total_allocated
    block = pool.allocate(1000)
    scribble(block.address + 1000)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        del block  # an exception here would be reported as one that was ignored
    assert [type(problem) for problem in problems()] == [Overrun]
    enable_memory_debugging(False)
    assert pool.total_allocated == before


def test_a_check_raises_the_first_problem_and_keeps_the_rest(pool):
    blocks = [pool.allocate(100), pool.allocate(200)]
    for block in blocks:
        scribble(block.address + block.size)
    with pytest.raises(Overrun, match="the block of 100 B"):
        check_memory()
    assert [problem.what.partition(":")[0] for problem in problems()] == [
        f"a write past the end of the block of 200 B at {blocks[1].address:#x}"
    ]
    check_memory()


# ---- writes after a free


def test_a_write_into_a_freed_block_is_reported_with_both_stacks(pool):
    block = make(pool, 5000)
    address = block.address
    drop(pool, block)
    scribble(address + 4000, 10)
    with pytest.raises(UseAfterFree) as caught:
        check_memory()
    assert str(caught.value) == (
        f"a write into the block of 5.0 KB at {address:#x} after it was freed: "
        "the first changed byte is at offset 4000\n"
        f"  allocated: {_place(make)}\n"
        f"  freed: {_place(drop)}\n"
        "  expected: no writes to a freed block\n"
        "  try: enable_memory_debugging(True, trap=True) stops the program at the write, "
        "for blocks of a page (4096 bytes) or more"
    )
    check_memory()  # found once


@pytest.mark.parametrize("at", [0, 1, 511, 999])
def test_a_late_write_is_found_wherever_it_is(pool, at):
    block = pool.allocate(1000)
    address = block.address
    del block
    scribble(address + at)
    [problem] = check_memory(raises=False)
    assert f"the first changed byte is at offset {at}\n" in problem.what


def test_a_late_write_is_a_warning_when_the_block_leaves_the_quarantine(pool):
    enable_memory_debugging(True, quarantine_bytes=4096)
    address = pool.allocate(1000).address
    scribble(address)
    with pytest.warns(MemoryMisuseWarning, match="after it was freed"):
        [pool.allocate(1000).size for _ in range(8)]
    assert [type(problem) for problem in problems()] == [UseAfterFree]
    assert quarantined_bytes() <= 4096


def test_a_block_in_quarantine_is_not_reused(pool):
    first = pool.allocate(1000).address
    assert all(pool.allocate(1000).address != first for _ in range(100))
    enable_memory_debugging(False)
    assert pool.allocate(1000).address in range(first, first + 101 * 1024)
    assert quarantined_bytes() == 0


def test_a_block_larger_than_the_quarantine_is_freed_at_once(pool):
    enable_memory_debugging(True, quarantine_bytes="1MB")
    pool.allocate(2_000_000)
    assert quarantined_bytes() == 0
    assert pool.total_allocated == 0


@pytest.mark.slow
def test_a_full_pool_empties_the_quarantine(pool):
    pool.set_limit("4MiB")
    for _ in range(10):
        pool.allocate(3 << 20).array("uint8")[:] = 1
    assert problems() == []


def test_an_error_for_a_full_pool_names_the_lines(pool):
    pool.set_limit("4MiB")
    kept = make(pool, 3 << 20)
    with pytest.raises(OutOfMemory) as caught:
        pool.allocate(3 << 20)
    assert f"from {_place(make)}" in caught.value.what
    assert pool.holders()[0].location == _place(make)
    assert pool.allocated_blocks[kept.address].location == _place(make)


# ---- frees that are wrong


def test_a_second_free_names_where_the_first_was(pool):
    block = make(pool, 1000)
    words = f"\n  allocated: {_place(make)}\n  freed: {_place(drop)}\n"
    drop(pool, block)
    with pytest.raises(DoubleFree) as caught:
        pool.deallocate(block)
    assert str(caught.value) == (
        f"<Block of 1.0 KB at {block.address:#x}, freed> was freed before{words}"
        "  expected: a block that is in use\n"
        "  try: free a block once, or drop every reference to it instead"
    )
    with pytest.raises(DoubleFree) as caught:
        pool.deallocate(block.address)
    assert str(caught.value) == (
        f"the block at {block.address:#x} of p was freed before{words}"
        "  expected: a block that is in use\n"
        "  try: free a block once, or drop every reference to it instead"
    )


def test_a_second_free_is_reported_after_the_quarantine_too(pool):
    enable_memory_debugging(True, quarantine_bytes=0)
    block = make(pool, 1000)
    drop(pool, block)
    for again in (block, block.address):
        with pytest.raises(DoubleFree) as caught:
            pool.deallocate(again)
        words = f"\n  allocated: {_place(make)}\n  freed: {_place(drop)}"
        assert caught.value.what.endswith(words)


def test_a_pointer_of_another_pool_is_named(pool, core):
    other = MemoryPool(resource=Pool(core=core, name="other"))
    block = make(other, 1000)
    with pytest.raises(ForeignPointer) as caught:
        pool.deallocate(block)
    assert caught.value.what == (
        f"{block.address:#x} was not allocated by p\n  allocated: {_place(make)}"
    )
    assert not block.freed
    other.deallocate(block)


def test_a_pointer_into_a_block_is_foreign(pool):
    block = pool.allocate(1000)
    with pytest.raises(ForeignPointer) as caught:
        pool.deallocate(block.address + 8)
    assert caught.value.what == f"{block.address + 8:#x} lies inside a block of p"


def test_a_block_with_a_view_stays(pool):
    block = pool.allocate(1000)
    view = block.view()
    with pytest.raises(InUse):
        pool.deallocate(block)
    view[999] = 7
    del view
    assert check_memory() == []
    pool.deallocate(block)


def test_a_block_freed_by_its_address_knows_it(pool):
    block = pool.allocate(1000)
    pool.deallocate(block.address)
    assert block.freed
    with pytest.raises(BufferError):
        block.view()
    del block
    check_memory()
    enable_memory_debugging(False)
    assert pool.total_allocated == 0


# ---- on, off, and in between


def test_blocks_from_before_are_freed_as_usual(pool):
    enable_memory_debugging(False)
    block, other = pool.allocate(1000), pool.allocate(1000)
    enable_memory_debugging(True)
    pool.deallocate(block)
    pool.deallocate(other.address)
    assert pool.total_allocated == 0


def test_blocks_are_still_checked_and_freed_after_debugging_is_off(pool):
    blocks = [pool.allocate(1000) for _ in range(3)]
    enable_memory_debugging(False)
    assert not debugging.is_enabled()
    scribble(blocks[0].address + 1000)
    with pytest.raises(Overrun):
        pool.deallocate(blocks[0])
    pool.deallocate(blocks[1])
    blocks.clear()
    assert pool.total_allocated == 0
    assert pool.stats().num_allocs == pool.stats().num_frees == 3
    assert pool.pool.where(pool.allocate(10).address) is None


def test_pools_that_come_later_are_watched_too(pool, core):
    later = MemoryPool(resource=Pool(core=core))
    block = later.allocate(100)
    scribble(block.address + 100)
    with pytest.raises(Overrun):
        later.deallocate(block)


def test_a_closed_pool_stays_closed_when_debugging_goes_on_and_off(pool):
    pool.close()
    for enabled in (True, False, True):
        enable_memory_debugging(enabled)
        with pytest.raises(OutOfMemory, match="this pool is closed"):
            pool.allocate(10)


def test_debugging_that_begins_within_a_step_goes_on_after_it(pool):
    enable_memory_debugging(False)
    for _ in range(2):
        with pool.step() as plan:
            block = pool.allocate(10_000)
            enable_memory_debugging(True)
            planned = make(pool, 20_000)
            assert pool.pool.where(planned.address) == _place(make)
            del block, planned
        block = make(pool, 1000)
        assert pool.pool.where(block.address) == _place(make)
        scribble(block.address + 1000)
        with pytest.raises(Overrun):
            pool.deallocate(block)
        enable_memory_debugging(False)
    assert plan.hits == 2  # the plan was followed all the same


def test_debugging_that_ends_within_a_step_stays_off_after_it(pool):
    with pool.step():
        block = make(pool, 1000)
        enable_memory_debugging(False)
        assert pool.pool.where(make(pool, 1000).address) is None
        del block
    assert pool.pool.where(make(pool, 1000).address) is None
    pool.empty_cache()  # the plan goes too, if all its blocks came back
    assert pool.total_allocated == 0


def test_another_thread_is_watched_while_a_step_lasts(pool):
    found = []

    def work():
        block = make(pool, 1000)
        found.append(pool.pool.where(block.address))
        scribble(block.address + 1000)
        with pytest.raises(Overrun):
            pool.deallocate(block)
        found.append("caught")

    with pool.step():
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert found == [_place(make), "caught"]


def test_pools_over_the_same_memory_have_one_watcher(pool):
    other = MemoryPool(resource=pool.pool, name="renamed")
    assert other.watcher is pool.watcher
    block = make(pool, 1000)
    other.deallocate(block)
    with pytest.raises(DoubleFree, match="of renamed was freed before"):
        other.deallocate(block.address)


def test_a_pool_that_was_never_debugged_has_no_watcher(core):
    pool = MemoryPool(resource=Pool(core=core))
    assert pool.watcher is None
    assert pool._route is None  # the core is asked at once


def test_without_canaries_only_places_are_recorded(pool):
    enable_memory_debugging(True, canaries=False)
    block = make(pool, 512)
    assert pool.total_allocated == 512
    scribble(block.address, 512)
    drop(pool, block)
    assert pool.total_allocated == 0
    with pytest.raises(DoubleFree, match="allocated: "):
        pool.deallocate(block)


def test_memory_that_is_nowhere_has_its_places_recorded_and_is_not_touched(core):
    enable_memory_debugging(True)
    try:
        pool = MemoryPool(resource=Pool(Virtual(), core=core))
        block = make(pool, 1000)
        assert pool.pool.where(block.address) == _place(make)
        pool.deallocate(block)
        assert check_memory() == []
    finally:
        enable_memory_debugging(False)


def test_pinned_blocks_are_watched(core):
    enable_memory_debugging(True)
    try:
        pool = CPUMemoryPool()
        block = pool.allocate_pinned(1000)
        assert block.pinned
        scribble(block.address + 1000)
        with pytest.raises(Overrun):
            pool.deallocate(block)
    finally:
        enable_memory_debugging(False)


def test_steps_of_a_plan_have_their_places_recorded(pool):
    for _ in range(3):
        with pool.step() as plan:
            first, second = make(pool, 10_000), make(pool, 20_000)
            assert pool.pool.where(first.address) == _place(make)
            pool.deallocate(second)
            with pytest.raises(DoubleFree, match="freed: "):
                pool.deallocate(second)
            del first
    assert plan.hits == 4
    assert problems() == []


def test_a_stack_is_as_deep_as_it_was_asked_to_be(pool):
    enable_memory_debugging(True, depth=2)
    block = make(pool, 10)
    record = debugging.live_records()[-1]
    assert [frame.function for frame in record.frames] == [
        "make",
        "test_a_stack_is_as_deep_as_it_was_asked_to_be",
    ]
    assert record.block() is block


def test_a_stack_of_no_frames_is_refused():
    with pytest.raises(BadInput) as caught:
        enable_memory_debugging(True, depth=0)
    assert str(caught.value) == "cannot keep 0 frames of a stack\n  expected: at least 1"
    assert not debugging.is_enabled()


def test_a_pool_and_its_memory_go_although_blocks_were_in_quarantine(core):
    enable_memory_debugging(True)
    try:
        pool = MemoryPool(resource=Pool(core=core))
        gone = weakref.ref(pool.pool.core)
        block = pool.allocate(1000)
        pool.allocate(2000)
        assert quarantined_bytes() >= 2000
        gc.disable()
        del pool
        assert quarantined_bytes() == 0
        assert gone() is not None
        del block
        assert gone() is None
    finally:
        gc.enable()
        enable_memory_debugging(False)


def test_a_pool_and_its_plan_go_although_blocks_of_it_are_remembered(core):
    enable_memory_debugging(True)
    try:
        pool = MemoryPool(resource=Pool(core=core))
        gone = weakref.ref(pool.pool.core)
        for _ in range(2):
            with pool.step():
                pool.allocate(10_000)
        del pool
        gc.collect()
        assert gone() is None
    finally:
        enable_memory_debugging(False)


def test_an_interrupt_while_a_block_is_made_loses_no_memory(pool, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    watched = pool.watcher
    monkeypatch.setattr(watched, "_make", interrupted)
    with pytest.raises(KeyboardInterrupt):
        pool.allocate(1000)
    assert pool.total_allocated == 0
    assert watched.live == {}


def test_memory_that_is_garbage_together_with_its_last_block_is_not_touched(core):
    enable_memory_debugging(True)
    try:
        pool = MemoryPool(resource=Pool(core=core))
        gone = weakref.ref(pool.pool.core)
        cycle = {"block": pool.allocate(1000)}
        cycle["me"] = cycle
        del pool, cycle  # the last block holds the memory, and both are found at once
        gc.collect()
        assert gone() is None
        assert problems() == []
    finally:
        enable_memory_debugging(False)


# ---- threads, collections, forks


def test_threads_that_allocate_and_free_at_once_lose_nothing(pool):
    enable_memory_debugging(True, quarantine_bytes=100_000)

    def work(seed):
        held = []
        for n in range(400):
            held.append(pool.allocate((n * 37 + seed * 101) % 5000))
            if n % 3 == 0:
                pool.deallocate(held.pop(0))
            elif n % 3 == 1:
                del held[0]

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert check_memory(raises=False) == problems() == []
    enable_memory_debugging(False)
    assert pool.total_allocated == 0
    assert pool.stats().num_allocs == pool.stats().num_frees


def test_frees_by_the_collector_in_the_middle_of_anything_are_safe(pool):
    enable_memory_debugging(True, quarantine_bytes=20_000)

    class Node:
        def __init__(self):
            self.me, self.data = self, pool.allocate(700)

    before = gc.get_threshold()
    gc.set_threshold(1, 1, 1)
    try:
        for n in range(300):
            Node()
            if n % 10 == 0:
                check_memory()
    finally:
        gc.set_threshold(*before)
    gc.collect()
    enable_memory_debugging(False)
    assert problems() == []
    assert pool.total_allocated == 0


def test_a_block_freed_while_guards_are_checked_is_no_overrun(pool, monkeypatch):
    first, second = pool.allocate(700), pool.allocate(700)
    records = debugging.live_records()
    monkeypatch.setattr(debugging, "live_records", lambda: records)
    pool.deallocate(first)  # between the list and the look
    read = ctypes.string_at

    def give_back_then_read(*place):
        monkeypatch.undo()
        pool.deallocate(second)  # between the look and the answer
        return read(*place)

    monkeypatch.setattr(ctypes, "string_at", give_back_then_read)
    assert check_memory(raises=False) == []
    assert check_memory(raises=False) == problems() == []


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_child_goes_on_debugging_even_when_a_lock_was_held(pool):
    block = pool.allocate(1000)
    pool.allocate(500)
    with debugging._state.lock, debugging._state.quarantine._lock, warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # a fork beside threads
        child = os.fork()
    if not child:
        code = 1
        with contextlib.suppress(BaseException):
            scribble(block.address + 1000)
            try:
                pool.deallocate(block)
            except Overrun:
                pool.allocate(2000)
                enable_memory_debugging(False)
                code = 0 if pool.total_allocated == 0 else 2
        os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    pool.deallocate(block)  # the parent's is whole


# ---- whole programs

PRELUDE = """
import ctypes
from holdfast.memory import MemoryPool, enable_memory_debugging
pool = MemoryPool()
"""


@pytest.fixture
def program(core, tmp_path):
    """Runs a program over a core; returns how it ended and what it said."""

    def run(text):
        path = tmp_path / "program.py"
        path.write_text(PRELUDE + textwrap.dedent(text))
        name = "python" if core is python_core else "compiled"
        environ = {**os.environ, "HOLDFAST_CORE": name}
        done = subprocess.run(
            [sys.executable, str(path)], env=environ, capture_output=True, text=True
        )
        return done.returncode, done.stderr

    return run


def test_a_program_that_ends_with_blocks_in_use_says_nothing(program):
    text = """
    enable_memory_debugging(True)
    kept = [pool.allocate(n * 100) for n in range(10)]
    array = pool.allocate(100).view()
    class Last:
        def __init__(self): self.me, self.block = self, pool.allocate(10)
    Last()
    del kept[::2]
    """
    assert program(text) == (0, "")


def test_damage_at_the_end_of_a_program_is_reported(program):
    text = """
    enable_memory_debugging(True)
    kept = pool.allocate(100)
    ctypes.memset(kept.address + 100, 0, 1)
    ctypes.memset(pool.allocate(1000).address, 0, 1)
    """
    code, said = program(text)
    assert code == 0
    assert said.count("MemoryMisuseWarning: ") == 2
    assert "past the end of the block of 100 B" in said
    assert "into the block of 1.0 KB" in said


@pytest.mark.parametrize("access", ["ctypes.string_at(address, 1)", "ctypes.memset(address, 0, 1)"])
def test_a_trap_ends_the_program_at_the_line_that_reads_or_writes(program, access):
    code, said = program(
        f"""
        enable_memory_debugging(True, trap=True)
        address = pool.allocate(100_000).address
        def late():
            {access}
        late()
        """
    )
    assert code < 0  # ended by a signal
    assert "Fatal Python error: Segmentation fault" in said
    assert 'program.py", line 9 in late' in said


def test_pages_of_a_trap_are_usable_again_when_they_leave(pool):
    enable_memory_debugging(True, trap=True, quarantine_bytes=300_000)
    for _ in range(20):
        pool.allocate(100_000).array("uint8")[:] = 1
    enable_memory_debugging(False)
    pool.allocate(2_000_000).array("uint8")[:] = 2
    for _ in range(20):
        pool.allocate(100_000).array("uint8")[:] = 3
    assert pool.total_allocated == 0
