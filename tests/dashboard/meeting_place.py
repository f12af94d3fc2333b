"""A folder where this test's processes meet, and processes to look at."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.dashboard.ipc import server


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of its own, with a short name, as sockets need one; this process is not there."""
    server.withdraw()
    folder = Path(tempfile.mkdtemp(prefix="hf-"))
    monkeypatch.setenv("HOLDFAST_RUNTIME_DIR", str(folder / "meet"))
    monkeypatch.setattr(tempfile, "tempdir", str(folder))  # where processes meet otherwise
    try:
        yield folder / "meet"
    finally:
        server.withdraw()
        shutil.rmtree(folder)


@pytest.fixture
def offered(place: Path) -> Path:
    """The same, and this process is there."""
    assert server.offer()
    return place


@contextlib.contextmanager
def child(code: str, **settings: str) -> Iterator[subprocess.Popen[str]]:
    """A process that runs `code`, has printed a line and waits for one."""
    program = f"{code}\nprint('ready', flush=True)\ninput()\n"
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **settings},
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "ready\n"
        yield process
    finally:
        process.send_signal(signal.SIGCONT)
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()


def stop(process: subprocess.Popen[str]) -> None:
    """Have a process stand still, and wait until it does."""
    process.send_signal(signal.SIGSTOP)
    os.waitpid(process.pid, os.WUNTRACED)


A_POOL = """
from holdfast.memory import MemoryPool
pool = MemoryPool("cpu", name="mine")
block = pool.allocate("3MB")
"""
