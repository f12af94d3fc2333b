from __future__ import annotations

import _thread
import threading
import time

import pytest

from holdfast.base.threads import Team


def test_leaving_the_block_waits_for_every_thread() -> None:
    ended: list[int] = []

    def work(number: int) -> None:
        time.sleep(0.05)
        ended.append(number)

    with Team() as team:
        for number in range(4):
            team.start(work, number)
    assert sorted(ended) == [0, 1, 2, 3]


def test_ctrl_c_is_raised_only_when_the_threads_are_over() -> None:
    ended = threading.Event()

    def work() -> None:
        _thread.interrupt_main()
        time.sleep(0.3)
        ended.set()

    def run() -> None:
        with Team() as team:
            team.start(work)
            team.wait()

    with pytest.raises(KeyboardInterrupt):
        run()
    assert ended.is_set()


def test_a_second_ctrl_c_waits_as_well() -> None:
    ended = threading.Event()

    def work() -> None:
        for _ in range(3):
            _thread.interrupt_main()
            time.sleep(0.1)
        ended.set()

    def run() -> None:
        with Team() as team:
            team.start(work)
            team.wait()

    with pytest.raises(KeyboardInterrupt):
        run()
    assert ended.is_set()


def test_a_thread_that_cannot_be_had_is_an_error_and_no_hang(monkeypatch) -> None:
    def refused(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    def run() -> None:
        with Team() as team:
            monkeypatch.setattr(threading.Thread, "start", refused)
            team.start(print)

    with pytest.raises(RuntimeError, match="can't start new thread"):
        run()
