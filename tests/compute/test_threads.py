"""How many threads compute, and the team that shares work."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy
import pytest

from holdfast.base.errors import BadInput
from holdfast.compute.engines.numpy import threads


@pytest.fixture(autouse=True)
def number_of_threads() -> Iterator[None]:
    before = threads.get_num_threads()
    yield
    threads.set_num_threads(before)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_the_number_is_that_of_blas_too(count: int) -> None:
    threads.set_num_threads(count)
    assert threads.get_num_threads() == count
    if threads.blas_threads() is not None:
        assert threads.blas_threads() == count


@pytest.mark.parametrize("count", [0, -1, 1.5, True, "2"])
def test_no_other_number_is_taken(count: Any) -> None:
    with pytest.raises(BadInput) as caught:
        threads.set_num_threads(count)
    assert str(caught.value) == (
        f"cannot compute with {count!r} threads\n  expected: a number from 1 on"
    )


@pytest.mark.parametrize("count", [1, 4])
def test_every_number_is_done_once(count: int) -> None:
    threads.set_num_threads(count)
    done = numpy.zeros(500, int)

    def work(number: int) -> None:
        done[number] += 1

    for _ in range(20):
        threads.share_out(work, len(done))
    assert (done == 20).all()


def test_several_threads_are_at_work_at_once() -> None:
    threads.set_num_threads(3)
    meeting = threading.Barrier(3, timeout=120)
    threads.share_out(lambda number: meeting.wait(), 3)


def test_blas_has_one_thread_inside_and_all_afterwards() -> None:
    if threads.blas_threads() is None:
        pytest.skip("NumPy has another BLAS than OpenBLAS")
    threads.set_num_threads(2)
    seen: list[int | None] = []
    threads.share_out(lambda number: seen.append(threads.blas_threads()), 4)
    assert seen == [1] * 4
    assert threads.blas_threads() == 2


def test_a_middling_product_leaves_blas_the_threads_it_found() -> None:
    code = (
        "import numpy; from holdfast.compute.engines.numpy import threads\n"
        "from holdfast.compute.engines.numpy.matrix import products\n"
        "before = threads.blas_threads()\n"
        "square = numpy.ones((128, 128), numpy.float32)\n"
        "products.product(square, square)\n"  # the first call of get_num_threads
        "print(threads.blas_threads() == before == threads.get_num_threads())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "True\n"


def test_sharing_within_sharing_stays_in_its_thread() -> None:
    threads.set_num_threads(2)
    inner: list[tuple[int, int]] = []

    def work(number: int) -> None:
        here = threading.get_ident()
        threads.share_out(lambda _: inner.append((here, threading.get_ident())), 3)

    threads.share_out(work, 4)
    assert len(inner) == 12
    assert all(outside == inside for outside, inside in inner)


@pytest.mark.parametrize("count", [1, 3])
def test_an_error_is_raised_when_all_are_done(count: int) -> None:
    threads.set_num_threads(count)
    running = 0

    def work(number: int) -> None:
        nonlocal running
        running += 1
        try:
            if number == 3:
                raise ValueError("number 3")
            time.sleep(0.001)
        finally:
            running -= 1

    with pytest.raises(ValueError, match="number 3"):
        threads.share_out(work, 200)
    assert running == 0
    threads.share_out(lambda number: None, 10)  # the team is still there


def test_a_helper_s_error_is_raised_too() -> None:
    threads.set_num_threads(2)
    meeting = threading.Barrier(2, timeout=120)
    caller = threading.get_ident()

    def work(number: int) -> None:
        meeting.wait()
        if threading.get_ident() != caller:
            raise KeyError("from a helper")

    with pytest.raises(KeyError, match="from a helper"):
        threads.share_out(work, 2)


def test_helpers_do_not_warn_of_infinities() -> None:
    threads.set_num_threads(2)
    meeting = threading.Barrier(2, timeout=120)
    zero = numpy.zeros(3)

    def work(number: int) -> None:
        meeting.wait()
        with (
            numpy.errstate()
            if threading.current_thread() is not threading.main_thread()
            else (numpy.errstate(all="ignore"))
        ):
            numpy.log(zero)

    threads.share_out(work, 2)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_a_forked_process_has_a_team_of_its_own() -> None:
    threads.set_num_threads(2)
    threads.share_out(lambda number: None, 4)
    child = os.fork()
    if not child:
        try:
            meeting = threading.Barrier(2, timeout=120)
            threads.share_out(lambda number: meeting.wait(), 2)
            os._exit(0)
        except BaseException:  # noqa: BLE001
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0


def test_a_recording_ends_the_team_so_that_its_next_threads_are_watched() -> None:
    from holdfast import memory

    before = threads.get_num_threads()
    threads.set_num_threads(3)
    try:
        threads.share_out(lambda number: None, 8)
        team = [t for t in threading.enumerate() if t.name.startswith("holdfast compute")]
        assert team
        others = len(threading.enumerate()) - len(team) - 1  # what earlier tests left for good
        with memory.memory_profiler.record() as record:
            assert not any(t.is_alive() for t in team)
            threads.share_out(lambda number: None, 8)
        notes = [note for note in record.recording.notes if "started before the recording" in note]
        assert [int(word) for note in notes for word in note.split() if word.isdigit()] == (
            [others] if others else []
        )
    finally:
        threads.set_num_threads(before)
