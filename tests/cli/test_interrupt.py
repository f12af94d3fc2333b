"""Ctrl-C at any moment: a status, no traceback, no process and no file left behind."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from holdfast.cli.main import main
from tests.needs import ALL

PROGRAM = """
import sys
from holdfast.__main__ import command
print("started", flush=True)
sys.exit(command())
"""


def _interrupted(arguments: list[str], after_s: float | None, folder: Path) -> tuple[int, str]:
    environment = os.environ | {"TMPDIR": str(folder)}
    child = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
    )
    assert child.stdout is not None
    child.stdout.readline()
    grandchildren = []
    if after_s is not None:
        time.sleep(after_s)
        grandchildren = psutil.Process(child.pid).children(recursive=True)
        child.send_signal(signal.SIGINT)
    _, stderr = child.communicate(timeout=300)
    _gone, alive = psutil.wait_procs(grandchildren, timeout=300)
    assert alive == []
    return child.returncode, stderr.decode()


def test_ctrl_c_while_the_interpreter_leaves_keeps_the_status() -> None:
    late = f"import atexit, os; atexit.register(os.kill, os.getpid(), {signal.SIGINT:d})\n"
    child = subprocess.run(
        [sys.executable, "-c", late + PROGRAM, "--version"], capture_output=True, check=False
    )
    assert (child.returncode, child.stderr) == (0, b"")


def test_an_interrupted_command_runs_exit_handlers_and_takes_nothing_apart() -> None:
    early = """
import atexit, os, signal, sys, threading
from holdfast.cli import main as cli
def main():
    os.kill(os.getpid(), signal.SIGINT)
cli.main = main
class Aborts:
    def __del__(self, abort=os.abort):
        abort()
kept = Aborts()
atexit.register(print, "the handler ran")
"""
    child = subprocess.run(
        [sys.executable, "-c", early + PROGRAM], capture_output=True, check=False, text=True
    )
    assert (child.returncode, child.stderr) == (130, "")
    assert child.stdout.splitlines() == ["started", "the handler ran"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [["topo", "--measure", "--probes", "linux"], ["doctor"]],
    ids=["measuring", "asking drivers"],
)
def test_ctrl_c_leaves_nothing_behind(arguments: list[str], tmp_path: Path) -> None:
    folder = tmp_path / "tmp"
    folder.mkdir()
    begin = time.monotonic()
    assert _interrupted(arguments, None, folder)[0] == 0
    whole_s = time.monotonic() - begin
    moments = random.Random(1)
    interrupted = 0
    for _ in range(10 if ALL else 2):
        status, stderr = _interrupted(arguments, moments.uniform(0, whole_s), folder)
        assert "Traceback" not in stderr
        assert status in (0, 130), stderr
        interrupted += status == 130
        assert list(folder.iterdir()) == []
    assert interrupted


@pytest.mark.slow
def test_ctrl_c_while_drawing_leaves_no_half_picture_and_the_next_run_works(
    tmp_path: Path,
) -> None:
    folder, temporary = tmp_path / "out", tmp_path / "tmp"  # torch leaves an empty folder in it
    folder.mkdir()
    temporary.mkdir()
    picture, page = folder / "seven.png", folder / "run.html"
    drawing = ["run", "tiny-flux", "--steps", "1000", "--seed", "1", "--device", "cpu"]
    drawing += ["--out", str(picture), "--timeline", str(page)]
    moments = random.Random(1)
    interrupted = 0
    for _ in range(10 if ALL else 2):
        status, stderr = _interrupted(drawing, moments.uniform(0, 9), temporary)
        assert "Traceback" not in stderr
        assert status in (0, 130), stderr
        interrupted += status == 130
        if status == 130:
            assert list(folder.iterdir()) == []
        for file in folder.iterdir():
            file.unlink()
    assert interrupted
    assert main(["run", "tiny-flux", "--steps", "2", "--seed", "1", "--out", str(picture)]) == 0
    assert [file.name for file in folder.iterdir()] == ["seven.png"]
