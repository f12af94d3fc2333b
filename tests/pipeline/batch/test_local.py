"""Real processes, a pipeline that is quick."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import psutil
import pytest

from holdfast.base.errors import Unsupported
from holdfast.pipeline.batch import Batch, Options, Summary, WorkerOptions
from tests.pipeline.batch.fakes import (
    Drive,
    FakeLoad,
    assert_exactly_once,
    let_go,
    records,
    rows,
    told,
    wait_for,
    workers_in,
)

PROMPTS = [f"prompt {number}" for number in range(12)]


def _batch(tmp_path: Path, *prompts: str, load: FakeLoad, workers: int = 2) -> Batch:
    hands = WorkerOptions(device="cpu", workers=workers, load=load)
    return Batch(rows(*prompts), Options(model="fake"), hands, tmp_path / "out", "prompts.jsonl")


def _workers(pid: int) -> list[psutil.Process]:
    children = psutil.Process(pid).children()
    return [child for child in children if "spawn_main" in " ".join(child.cmdline())]


def _run(tmp_path: Path, *prompts: str, together: int = 1) -> Summary:
    load = FakeLoad(str(tmp_path / "log"), 0.02, together=together)
    summary = _batch(tmp_path, *prompts, load=load).run()
    assert _workers(os.getpid()) == []
    return summary


def test_two_processes_share_the_work_and_load_once_each(tmp_path: Path) -> None:
    summary = _run(tmp_path, *PROMPTS, together=2)
    assert (summary.done_now, summary.failed) == (12, ())
    assert told(tmp_path / "log", "load") == ["cpu", "cpu"]
    assert len(workers_in(tmp_path / "log")) == 2
    assert_exactly_once(tmp_path / "out", PROMPTS, tmp_path / "log")


def test_a_job_that_kills_its_process_fails_and_the_rest_is_done(tmp_path: Path) -> None:
    summary = _run(tmp_path, "a", "poison", "b", "c")
    (failure,) = summary.failed
    assert (failure.where, failure.attempts) == ("line 2", 2)
    assert failure.reason == "its worker died: it was ended by signal 9"
    assert summary.done_now == 3
    assert Counter(told(tmp_path / "log", "begin")) == {"a": 1, "b": 1, "c": 1, "poison": 2}


@pytest.mark.slow
def test_what_failed_is_tried_again_by_the_next_run(tmp_path: Path) -> None:
    assert len(_run(tmp_path, "a", "an error").failed) == 1
    summary = _run(tmp_path, "a", "an error")
    assert (summary.done_before, summary.done_now, len(summary.failed)) == (1, 0, 1)
    assert told(tmp_path / "log", "begin").count("an error") == 4


def test_a_model_that_cannot_be_loaded_comes_out_as_it_is(tmp_path: Path) -> None:
    load = FakeLoad(str(tmp_path / "log"), trouble="error")
    with pytest.raises(Unsupported) as caught:
        _batch(tmp_path, "a", "b", load=load).run()
    assert str(caught.value) == "cannot load a fake\n  expected: better luck"


@pytest.mark.slow
def test_loading_that_kills_is_given_up(tmp_path: Path) -> None:
    load = FakeLoad(str(tmp_path / "log"), trouble="death")
    with pytest.raises(Unsupported, match="died 3 times while it loaded the model"):
        _batch(tmp_path, "a", "b", load=load).run()


# A process that only says how it would be started; the tracker is what multiprocessing starts too.
STARTING = """
import signal
from multiprocessing import resource_tracker
from types import SimpleNamespace
from holdfast.pipeline.batch import local
def start():
    resource_tracker.ensure_running()
    print(signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, []))
local._SPAWN = SimpleNamespace(
    Pipe=local._SPAWN.Pipe, Process=lambda **_: SimpleNamespace(start=start)
)
local.LocalProcesses(None, ["cpu"])._start(0)
"""


def test_the_first_process_is_started_with_ctrl_c_blocked() -> None:
    child = subprocess.run([sys.executable, "-c", STARTING], check=True, capture_output=True)
    assert child.stdout == b"True\n"


def _finish(child: subprocess.Popen[bytes]) -> None:
    _, stderr = child.communicate(timeout=300)
    assert child.returncode == 0, stderr.decode()


@pytest.mark.slow
@pytest.mark.parametrize("workers", ["1", "2"])
def test_killed_in_the_middle_and_started_again_every_prompt_is_done_once(
    tmp_path: Path, drive: Drive, workers: str
) -> None:
    child = drive(PROMPTS, "--workers", workers, "--hold", "6")
    wait_for(tmp_path / "log", "end", 4)
    children = psutil.Process(child.pid).children(recursive=True)
    child.kill()
    child.communicate()
    assert psutil.wait_procs(children, timeout=300)[1] == []
    done = len(records(tmp_path / "out", "done"))
    assert 0 < done <= 6
    _finish(drive(PROMPTS, "--workers", workers))
    assert_exactly_once(tmp_path / "out", PROMPTS, tmp_path / "log", lost=2 * int(workers))


@pytest.mark.slow
def test_a_worker_that_is_killed_has_its_prompt_done_by_another(
    tmp_path: Path, drive: Drive
) -> None:
    child = drive(PROMPTS, "--workers", "2", "--hold", "2")
    wait_for(tmp_path / "log", "begin", 4)  # two are done, and each worker has one that it holds
    victim = _workers(child.pid)[0]
    os.kill(victim.pid, signal.SIGKILL)
    wait_for(tmp_path / "log", "load", 3)
    let_go(tmp_path / "log")
    _finish(child)
    assert_exactly_once(tmp_path / "out", PROMPTS, tmp_path / "log", lost=1)
    assert len(told(tmp_path / "log", "load")) == 3
