"""Asking work to stop."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from holdfast.residency import interrupt
from holdfast.residency.interrupt import (
    InterruptProcessingException,
    interrupt_current_processing,
    interrupting,
    processing_interrupted,
    throw_exception_if_processing_interrupted,
)


@pytest.fixture(autouse=True)
def no_request_left():
    yield
    asked = processing_interrupted()
    interrupt_current_processing(False)
    assert not asked, "a test left a request behind"


def test_nothing_happens_when_nobody_asks():
    assert not processing_interrupted()
    throw_exception_if_processing_interrupted()


def test_a_request_is_raised_once_and_is_then_gone():
    interrupt_current_processing()
    assert processing_interrupted()
    assert processing_interrupted()  # looking does not take it
    with pytest.raises(InterruptProcessingException) as caught:
        throw_exception_if_processing_interrupted()
    assert str(caught.value) == "processing was interrupted"
    assert not processing_interrupted()
    throw_exception_if_processing_interrupted()


def test_a_request_can_be_taken_back():
    interrupt_current_processing()
    interrupt_current_processing(False)
    throw_exception_if_processing_interrupted()


def test_the_exception_is_no_error_of_holdfast_and_can_be_made_bare():
    assert InterruptProcessingException.__bases__ == (Exception,)
    assert InterruptProcessingException().args == ()


def test_a_look_takes_no_lock_while_nobody_asks():
    with interrupt._request.lock:
        looked = threading.Event()

        def look():
            throw_exception_if_processing_interrupted()
            looked.set()

        thread = threading.Thread(target=look)
        thread.start()
        thread.join(timeout=300)
        assert looked.is_set()


def test_of_many_threads_that_look_one_is_stopped_for_each_request():
    stopped = []
    start = threading.Barrier(8)

    def look():
        start.wait()
        try:
            for _ in range(1000):
                throw_exception_if_processing_interrupted()
        except InterruptProcessingException:
            stopped.append(1)

    threads = [threading.Thread(target=look) for _ in range(8)]
    interrupt_current_processing()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert stopped == [1]


def test_ctrl_c_sets_the_flag_for_work_in_another_thread():
    seen = []

    def work(ready: threading.Event):
        ready.set()
        try:
            while True:
                throw_exception_if_processing_interrupted()
        except InterruptProcessingException as exc:
            seen.append(exc)

    ready = threading.Event()
    before = signal.getsignal(signal.SIGINT)
    thread = threading.Thread(target=work, args=(ready,))
    with interrupting():
        thread.start()
        ready.wait()
        os.kill(os.getpid(), signal.SIGINT)
        thread.join()
    assert len(seen) == 1
    assert signal.getsignal(signal.SIGINT) is before


def test_the_second_ctrl_c_is_ctrl_c():
    def press_twice():
        os.kill(os.getpid(), signal.SIGINT)
        assert processing_interrupted()
        os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt), interrupting():
        press_twice()
    assert not processing_interrupted()


def test_a_request_nobody_saw_does_not_stop_later_work():
    with interrupting():
        os.kill(os.getpid(), signal.SIGINT)
        assert processing_interrupted()
    throw_exception_if_processing_interrupted()


def test_ctrl_c_can_do_something_else():
    calls = []
    with interrupting(lambda: calls.append("stop")):
        os.kill(os.getpid(), signal.SIGINT)
    assert calls == ["stop"]
    assert not processing_interrupted()


def test_in_another_thread_handlers_are_left_alone():
    before = signal.getsignal(signal.SIGINT)
    found = []

    def look():
        with interrupting():
            found.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert found == [before]
