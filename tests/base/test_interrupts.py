from __future__ import annotations

import os
import signal
import threading

import pytest

from holdfast.base.interrupts import is_interrupt, run_uninterrupted


def _import_lazily() -> None:
    try:
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt as exc:
            raise ImportError("no module") from exc
    except ImportError:
        raise RuntimeError("failed to import")  # noqa: B904  the context is what is tested


def test_ctrl_c_is_found_behind_what_a_library_made_of_it() -> None:
    with pytest.raises(RuntimeError) as caught:
        _import_lazily()
    assert is_interrupt(caught.value)
    assert is_interrupt(KeyboardInterrupt())


def test_other_errors_are_no_ctrl_c() -> None:
    assert not is_interrupt(RuntimeError("x"))


def test_ctrl_c_comes_out_at_once_and_the_work_goes_on_to_its_end() -> None:
    go, ended, disturbed = threading.Event(), threading.Event(), []

    def work() -> None:
        try:
            os.kill(os.getpid(), signal.SIGINT)
            go.wait(30)
        except BaseException as exc:  # noqa: BLE001  as a library that swallows it
            disturbed.append(exc)
        ended.set()

    with pytest.raises(KeyboardInterrupt):
        run_uninterrupted(work)
    assert not ended.is_set()
    go.set()
    assert ended.wait(30)
    assert disturbed == []


def test_what_is_done_undisturbed_returns_and_raises() -> None:
    assert run_uninterrupted(lambda: 7) == 7
    with pytest.raises(ZeroDivisionError):
        run_uninterrupted(lambda: 1 // 0)


def test_work_of_another_thread_stays_in_it() -> None:
    threads = []
    other = threading.Thread(
        target=lambda: run_uninterrupted(lambda: threads.append(threading.current_thread()))
    )
    other.start()
    other.join()
    assert threads == [other]
