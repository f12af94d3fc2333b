from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from holdfast.pipeline.batch.ctrl_c import delay_ctrl_c


@pytest.fixture
def another_thread() -> Iterator[threading.Thread]:
    """One that has Ctrl-C unblocked, as that of a progress bar has."""
    over = threading.Event()
    thread = threading.Thread(target=over.wait)
    thread.start()
    yield thread
    over.set()
    thread.join()


@pytest.fixture
def taken() -> Iterator[socket.socket]:
    """Says when a signal has been taken by a thread, before Python acts on it."""
    ours, theirs = socket.socketpair()
    ours.settimeout(10)
    theirs.setblocking(False)
    before = signal.set_wakeup_fd(theirs.fileno())
    yield ours
    signal.set_wakeup_fd(before)
    ours.close()
    theirs.close()


@pytest.mark.usefixtures("another_thread")
def test_ctrl_c_comes_when_the_block_is_left_and_not_before(taken: socket.socket) -> None:
    reached: list[str] = []
    handler = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):  # noqa: PT012
        with delay_ctrl_c():
            os.kill(os.getpid(), signal.SIGINT)
            assert taken.recv(1) == bytes([signal.SIGINT])  # by the other thread
            reached.append("the end of the block")
        reached.append("what follows")
    assert reached == ["the end of the block"]
    assert signal.getsignal(signal.SIGINT) is handler
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, [])


def test_nothing_comes_where_nothing_came() -> None:
    with delay_ctrl_c():
        pass


@pytest.mark.usefixtures("another_thread")
def test_ctrl_c_is_left_alone_where_it_is_ignored() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with delay_ctrl_c():
            os.kill(os.getpid(), signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_process_that_starts_in_the_block_has_ctrl_c_blocked() -> None:
    program = "import signal; print(signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, []))"
    with delay_ctrl_c():
        child = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True)
    assert child.stdout == b"True\n"


def test_another_thread_has_nothing_to_hold_back() -> None:
    def use() -> None:
        with delay_ctrl_c():
            done.append(True)

    done: list[bool] = []
    thread = threading.Thread(target=use)
    thread.start()
    thread.join()
    assert done == [True]
