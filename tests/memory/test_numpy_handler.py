"""The pool under NumPy."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading

import numpy as np
import pytest
from numpy._core.multiarray import get_handler_name

from holdfast.base.errors import Unsupported
from holdfast.memory.core import native_build, pool_core
from holdfast.memory.hooks.numpy_handler import numpy_pool
from holdfast.memory.pools.pool import Pool


@pytest.fixture
def pool() -> Pool:
    return Pool(name="under numpy", core=native_build.load_core())


def live(pool: Pool) -> int:
    return pool.core.counters()["live"]


def test_arrays_inside_come_from_the_pool_and_arrays_outside_do_not(pool):
    with numpy_pool(pool) as used:
        inside = np.zeros(10_000)
        assert used is pool
    outside = np.zeros(10_000)
    assert (get_handler_name(inside), get_handler_name(outside)) == (
        "holdfast",
        "default_allocator",
    )
    assert pool.owns(inside.ctypes.data)
    assert not pool.owns(outside.ctypes.data)
    assert live(pool) == 1


def test_an_array_lives_on_after_the_block_and_goes_back_to_its_pool(pool):
    with numpy_pool(pool):
        array = np.arange(100_000)
    assert array.sum() == 4_999_950_000
    del array
    assert live(pool) == 0
    assert pool.core.counters()["allocs"] == 1


def test_an_array_from_the_pool_can_die_in_another_thread(pool):
    with numpy_pool(pool):
        arrays = [np.arange(10_000) for _ in range(10)]
        assert live(pool) == 10
    thread = threading.Thread(target=arrays.clear)
    thread.start()
    thread.join()
    assert live(pool) == 0


def test_an_array_from_outside_can_die_inside(pool):
    array = np.ones(1_000_000)
    with numpy_pool(pool):
        del array
        assert live(pool) == 0


def test_a_thread_that_starts_inside_begins_with_numpys_own(pool):
    names = []
    with numpy_pool(pool):
        thread = threading.Thread(target=lambda: names.append(get_handler_name(np.ones(5))))
        thread.start()
        thread.join()
    assert names == ["default_allocator"]


def test_blocks_nest_and_an_error_puts_the_pool_before_it_back(pool):
    inner = Pool(name="inner", core=native_build.load_core())
    with numpy_pool(pool):
        with contextlib.suppress(ZeroDivisionError), numpy_pool(inner):
            of_inner = np.ones(10_000)
            1 / 0  # noqa: B018
        of_outer = np.ones(10_000)
    assert inner.owns(of_inner.ctypes.data)
    assert pool.owns(of_outer.ctypes.data)
    assert get_handler_name() == "default_allocator"


def test_growing_an_array_keeps_what_is_in_it(pool):
    with numpy_pool(pool):
        array = np.arange(10_000)
        array.resize(100_000, refcheck=False)
    assert pool.owns(array.ctypes.data)
    assert array[:10_000].tolist() == list(range(10_000))
    assert not array[10_000:].any()


def test_small_arrays_stay_with_malloc_and_may_grow_there(pool):
    with numpy_pool(pool):
        array = np.arange(1000)
        assert live(pool) == 0
        array.resize(100_000, refcheck=False)
    assert array[:1000].tolist() == list(range(1000))
    assert not array[1000:].any()


def test_results_are_the_same_bit_for_bit(pool):
    def work() -> list[bytes]:
        random = np.random.default_rng(3)
        a = random.normal(size=(300, 200))
        b = a.T @ a
        values = np.linalg.eigvalsh(b)
        return [a.tobytes(), b.tobytes(), np.sort(values).tobytes(), np.zeros(999).tobytes()]

    plain = work()
    for _ in range(3):  # the second time blocks are used again, with old content in them
        with numpy_pool(pool):
            assert work() == plain


def test_without_a_pool_given_one_is_made_and_used_again():
    with numpy_pool() as first:
        array = np.ones(10_000)
    with numpy_pool() as second:
        pass
    assert first is second
    assert first.name == "numpy"
    assert first.owns(array.ctypes.data)


def test_a_pool_with_the_python_core_is_refused():
    pool = Pool(core=pool_core)
    with pytest.raises(Unsupported) as caught, numpy_pool(pool):
        pass
    assert str(caught.value) == (
        "numpy_pool needs the compiled core: this pool has the Python one\n"
        "  expected: a pool made without HOLDFAST_CORE=python"
    )


def test_without_a_compiler_the_error_says_what_to_install(monkeypatch, pool):
    def refuse():
        raise Unsupported("there is no C compiler on this machine", hint="apt-get install g++")

    monkeypatch.setattr(native_build, "load_core", refuse)
    with pytest.raises(Unsupported) as caught, numpy_pool(pool):
        pass
    assert str(caught.value) == (
        "numpy_pool needs the compiled core: there is no C compiler on this machine\n"
        "  try: apt-get install g++"
    )


def test_arrays_that_outlive_everything_do_not_crash_the_end_of_python():
    program = (
        "import numpy as np\n"
        "from holdfast.memory.hooks.numpy_handler import numpy_pool\n"
        "with numpy_pool():\n"
        "    kept = [np.ones(n) for n in (1, 1000, 1_000_000)]\n"
        "np.kept = kept\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
