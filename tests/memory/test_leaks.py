import ctypes
import dataclasses
import gc
import json
import os
import re
import subprocess
import sys
import weakref
from pathlib import Path

import pytest

from holdfast.base.errors import Misuse
from holdfast.memory.debug import debugging
from holdfast.memory.debug.leaks import (
    LeakFound,
    check_memory_leaks,
    mark,
    no_leaks,
    summary,
)
from holdfast.memory.debug.referrers import NOBODY
from holdfast.memory.pools.memory_pool import MemoryPool
from holdfast.memory.pools.pool import Pool
from tests.memory.conftest import CORES, core_named
from tests.memory.leak_programs import _runner
from tests.needs import ALL

pytestmark = pytest.mark.slow  # each check looks at every object of the process
PROGRAMS = _runner.programs()


@pytest.fixture(scope="module", params=CORES)
def results(request):
    """What all programs found in themselves, run one after the other in a process of their own."""
    core_named(request.param)
    done = subprocess.run(
        [sys.executable, _runner.__file__, *([] if ALL else [_runner.FROZEN])],
        env={**os.environ, "HOLDFAST_CORE": request.param, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    found = json.loads(done.stdout)
    assert found["core"] == core_named(request.param).__name__
    return found["programs"]


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_finds_its_leaks_and_no_others(results, program):
    found = results[program]
    assert "error" not in found, found["error"]
    assert [tuple(leak) for leak in found["leaks"]] == _runner.expected(program)
    assert found["problems"] == []


@pytest.mark.parametrize("program", [name for name in PROGRAMS if _runner.held(name)])
def test_a_program_learns_who_holds_its_leaks(results, program):
    found = results[program]["words"]
    missing = [words for words in _runner.held(program) if not any(words in w for w in found)]
    assert not missing, found


def test_the_programs_are_many_and_some_are_clean():
    clean = [name for name in PROGRAMS if not _runner.expected(name)]
    assert len(PROGRAMS) >= 44
    assert len(clean) >= 15
    assert len(PROGRAMS) - len(clean) >= 30


@pytest.fixture(params=CORES)
def pool(request):
    """A pool that is debugged, over either core."""
    debugging.enable_memory_debugging(True)
    yield MemoryPool(resource=Pool(core=core_named(request.param)))
    debugging.enable_memory_debugging(False)
    debugging.clear_problems()


def _line(function, offset):
    return f"{__file__}:{function.__code__.co_firstlineno + offset}"


def test_a_leak_says_all_that_is_known_of_it(pool):
    kept = []

    def work():
        kept.append(pool.allocate(1000))

    work()
    [leak] = check_memory_leaks()
    name = f"{test_a_leak_says_all_that_is_known_of_it.__name__}.<locals>.work"
    assert leak.location == f"{_line(work, 1)} in {name}"
    assert leak.size == 1000
    assert leak.address == kept[0].address
    assert (leak.device, leak.tag) == ("cpu", "")
    assert 0 <= leak.age_s < 600
    assert leak.stack[0].function == name
    assert leak.stack[1].function == test_a_leak_says_all_that_is_known_of_it.__name__
    held = f"item 0 of list ← local 'kept' (list) of {leak.stack[1].function}, which runs"
    assert leak.referrers == [held]
    text = str(dataclasses.replace(leak, age_s=3.21))
    assert text == f"1.0 KB on cpu from {leak.location}, 3.2 s ago; held by {held}"


def test_leaks_come_largest_first(pool):
    kept = [pool.allocate(size) for size in (10, 3000, 200)]
    assert [leak.size for leak in check_memory_leaks()] == [3000, 200, 10]
    assert len(kept) == 3


def test_the_summary_puts_leaks_of_one_line_together(pool):
    kept = {"many": [pool.allocate(500) for _ in range(3)]}
    kept["large"] = pool.allocate(1000)
    leaks = check_memory_leaks()
    here = test_the_summary_puts_leaks_of_one_line_together
    local = f"local 'kept' (dict) of {here.__name__}, which runs"
    function = leaks[1].stack[0].function
    assert summary(leaks) == (
        "2.5 KB leaked in 4 blocks\n"
        f"  1.5 KB in 3 blocks from {_line(here, 1)} in {function}; "
        f"held by item 0 of list ← key 'many' of dict ← {local}\n"
        f"  1.0 KB from {_line(here, 2)} in {here.__name__}; held by key 'large' of dict ← {local}"
    )
    assert summary([]) == "no leaks"


def test_a_mark_forgets_what_is_there(pool):
    kept = [pool.allocate(10)]
    mark()
    assert check_memory_leaks() == []
    kept.append(pool.allocate(20))
    assert [leak.size for leak in check_memory_leaks()] == [20]


def test_leaks_are_unknown_if_debugging_was_never_on(monkeypatch):
    monkeypatch.setattr(debugging, "_state", debugging.DebugState())
    with pytest.raises(Misuse) as caught:
        check_memory_leaks()
    assert str(caught.value) == (
        "cannot find leaks: memory debugging was never on\n"
        "  expected: enable_memory_debugging(True) before the code in question"
    )


def test_a_reference_that_c_code_forgot_is_reported_as_such(pool):
    block = pool.allocate(100)
    seen = weakref.ref(block)
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(block))
    del block
    [leak] = check_memory_leaks()
    assert leak.referrers == [NOBODY]
    ctypes.pythonapi.Py_DecRef(ctypes.py_object(seen()))
    assert seen() is None
    assert check_memory_leaks() == []


def test_a_check_leaves_the_dictionary_of_locals_alone(pool):
    block = pool.allocate(100)
    names = locals()
    assert check_memory_leaks() == []
    assert names["block"] is block


def test_a_check_keeps_nothing_alive(pool):
    kept = [pool.allocate(100), pool.allocate(200).array("uint8")]
    seen = weakref.ref(kept[0])
    assert len(check_memory_leaks()) == 2
    kept.clear()
    assert seen() is None
    assert check_memory_leaks() == []


def test_only_the_largest_of_very_many_leaks_are_traced(pool):
    kept = [pool.allocate(16) for _ in range(500)]
    leaks = check_memory_leaks()
    assert len(leaks) == len(kept)
    traced = [leak for leak in leaks if "item" in leak.referrers[0]]
    rest = {leak.referrers[0] for leak in leaks if leak not in traced}
    assert len(traced) == 50
    assert rest == {"not searched (only for the 50 largest)"}


def test_a_name_anywhere_among_running_frames_holds_a_block(pool):
    def deeper(view):
        return check_memory_leaks(), view

    held = pool.allocate(64).view()
    assert deeper(pool.allocate(32))[0] == []
    assert held.nbytes == 64


def test_an_object_that_answers_for_a_block_holds_it_by_name(pool):
    class Answers:
        def __init__(self, block):
            self.inner = block

        @property
        def __memory_block__(self):
            return self.inner

    class Breaks:
        def __memory_block__(self):
            raise ValueError("no block yet")

    answers, breaks = Answers(pool.allocate(10)), Breaks()
    assert check_memory_leaks() == []
    kept = [Answers(pool.allocate(20))]
    assert [leak.size for leak in check_memory_leaks()] == [20]
    assert all((answers, breaks, kept))


def test_code_that_frees_all_passes_the_guard(pool):
    with no_leaks():
        pool.allocate(100)
        named = pool.allocate(200)
    assert named.size == 200


def test_code_that_leaks_is_stopped_by_the_guard(pool):
    before, kept = [pool.allocate(1)], []
    with pytest.raises(LeakFound) as caught, no_leaks():
        kept.append(pool.allocate(100))
    here = test_code_that_leaks_is_stopped_by_the_guard
    assert str(caught.value) == (
        "100 B leaked in 1 block\n"
        f"  100 B from {_line(here, 3)} in {here.__name__}; "
        f"held by item 0 of list ← local 'kept' (list) of {here.__name__}, which runs\n"
        "  expected: no block that outlives this code"
    )
    assert isinstance(caught.value, AssertionError)
    assert [leak.size for leak in caught.value.leaks] == [100]
    assert len(check_memory_leaks()) == 2  # the guard marks nothing
    assert before


def test_the_guard_of_a_function_lets_its_result_go(pool):
    @no_leaks()
    def make():
        return pool.allocate(100)

    kept = []

    @no_leaks()
    def keep():
        kept.append(pool.allocate(100))

    assert make().size == 100
    assert make().size == 100
    with pytest.raises(LeakFound):
        keep()


def test_the_guard_turns_debugging_on_and_off_again(pool):
    debugging.enable_memory_debugging(False)
    kept = []
    with pytest.raises(LeakFound), no_leaks():
        kept.append((pool.allocate(100), debugging.is_enabled()))
    assert kept[0][1]
    assert not debugging.is_enabled()


def test_an_error_inside_the_guard_stays_what_it_is(pool):
    kept = []

    def work():
        with no_leaks():
            kept.append(pool.allocate(100))
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        work()


def test_a_cycle_is_collected_before_leaks_are_reported(pool):
    class Node:
        def __init__(self):
            self.me, self.data = self, pool.allocate(10)

    gc.disable()
    try:
        Node()
        assert pool.total_allocated
        assert check_memory_leaks() == []
    finally:
        gc.enable()


def test_every_program_says_what_it_shows():
    for name in PROGRAMS:
        text = (Path(_runner.__file__).parent / f"{name}.py").read_text()
        assert re.match(r'"""[A-Z].+\."""\n', text), name
        assert "LEAKS = " in text, name


def test_what_a_guarded_function_returns_in_a_container_is_the_callers():
    pool = MemoryPool("cpu")

    @no_leaks()
    def make():
        return {"all": [pool.allocate(100), pool.allocate(200)]}

    assert [block.size for block in make()["all"]] == [100, 200]
