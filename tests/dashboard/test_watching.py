"""Looking at this machine and several of its processes, again and again."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import pytest

from holdfast.base.errors import NotFound
from holdfast.dashboard.ipc import watching
from holdfast.dashboard.ipc.watching import Watcher
from holdfast.dashboard.snapshot.snapshot import VERSION, Snapshot
from tests.dashboard.meeting_place import A_POOL, child, stop

HERE = os.getpid()


@pytest.fixture(autouse=True)
def searching_at_every_look(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "SEARCH_S", 0.0)
    monkeypatch.setattr(watching, "LOOK_S", 240.0)  # the machine may be busy


def pids(snapshot: Snapshot) -> list[int]:
    return [one.pid for one in snapshot.processes]


def test_processes_come_and_go_by_themselves(offered: Path) -> None:
    with Watcher() as watcher:
        assert pids(watcher.look()) == [HERE]
        with child(A_POOL) as process:
            found = watcher.look()
            assert pids(found) == sorted([HERE, process.pid])
            assert found.version == VERSION
            assert found.machine.ram_total_bytes > 0
            assert found.process(process.pid) is not None
        assert pids(watcher.look()) == [HERE]


def test_processes_that_were_not_named_are_left_out(offered: Path) -> None:
    with child(A_POOL) as process, Watcher([process.pid]) as watcher:
        assert pids(watcher.look()) == [process.pid]
        with pytest.raises(NotFound) as caught, watcher.attached(HERE):
            pass
        assert str(caught.value) == (
            f"process {HERE} is not watched\n  expected: one of the processes that are shown"
        )


def test_a_process_that_does_not_answer_is_left_out_and_left_in_peace(
    offered: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with child(A_POOL) as process, Watcher() as watcher:
        assert process.pid in pids(watcher.look())
        stop(process)
        monkeypatch.setattr(watching, "LOOK_S", 5.0)  # for this process to answer
        assert pids(watcher.look()) == [HERE]
        process.send_signal(signal.SIGCONT)
        assert pids(watcher.look()) == [HERE]  # not asked yet
        monkeypatch.setattr(watching, "LOOK_S", 240.0)
        watcher._watched[process.pid].not_before_s = 0.0
        assert pids(watcher.look()) == sorted([HERE, process.pid])


def test_a_connection_for_longer_acts_leaves_looks_alone(offered: Path) -> None:
    with Watcher() as watcher:
        watcher.look()
        with watcher.attached(HERE) as attached:
            assert attached.holders(1) is not None
            assert pids(watcher.look()) == [HERE]
        with watcher.attached(HERE) as again:
            assert again is attached


def test_a_process_that_is_not_there_is_not_found(offered: Path) -> None:
    with Watcher() as watcher, pytest.raises(NotFound), watcher.attached(2**22 + 7):
        pass


def test_several_threads_is_allowed_at_once(offered: Path) -> None:
    found: list[list[int]] = []
    with Watcher() as watcher:

        def look() -> None:
            found.extend(pids(watcher.look()) for _ in range(10))

        threads = [threading.Thread(target=look) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert found == [[HERE]] * 40


def test_after_closing_there_is_the_machine_alone(offered: Path) -> None:
    watcher = Watcher()
    assert pids(watcher.look()) == [HERE]
    watcher.close()
    assert pids(watcher.look()) == []
    with pytest.raises(NotFound), watcher.attached(HERE):
        pass
