"""A pipeline that draws in milliseconds and writes down what it was asked for.

Every line of the log is one append, so that several processes can share it: `begin` before a
picture, `end` after it, `load` once in each worker.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy

from holdfast.base.errors import BadInput, Unsupported
from holdfast.pipeline.batch import Options, Row, plan
from holdfast.pipeline.batch.jobs import Job
from holdfast.pipeline.batch.manifest import NAME, parse
from holdfast.pipeline.output.media import read_settings
from holdfast.pipeline.run.progress import Event, Listener

STEPS = 4
# Starts a batch on prompts, with options of `drive`, in a process of its own.
Drive = Callable[..., subprocess.Popen[bytes]]


@dataclass(frozen=True)
class FakeLoad:
    """Loads a FakePipe. Prompts that hold "poison" kill their worker, "error" raise.

    All prompts but the first `hold` that were begun wait for `let_go`. Every process waits in its
    first picture until `together` of them have begun one.
    """

    log: str
    seconds: float = 0.0
    trouble: str | None = None
    hold: int | None = None
    together: int = 1

    def __call__(self, device: str, progress: Listener) -> FakePipe:
        write(self.log, "load", device)
        progress(Event("load", 0, None, "a fake"))
        if self.trouble == "error":
            raise Unsupported("cannot load a fake", expected="better luck")
        if self.trouble == "death":
            os.kill(os.getpid(), signal.SIGKILL)
        return FakePipe(self)


@dataclass(frozen=True)
class LoggedLoad:
    """Loads the real pipeline, and writes down what it is asked for."""

    log: str
    model: str = "tiny-flux"

    def __call__(self, device: str, progress: Listener) -> LoggedPipe:
        from holdfast.pipeline import Pipeline

        write(self.log, "load", device)
        return LoggedPipe(Pipeline.load(self.model, device, progress=progress), self.log)


class LoggedPipe:
    def __init__(self, pipe: Any, log: str) -> None:
        self.check, self._pipe, self._log = pipe.check, pipe, log

    def __call__(self, prompt: str, **settings: Any) -> Any:
        write(self._log, "begin", prompt)
        result = self._pipe(prompt, **settings)
        write(self._log, "end", prompt)
        return result


class FakePipe:
    def __init__(self, load: FakeLoad) -> None:
        self._load = load

    def check(self, prompt: str, **settings: Any) -> Any:
        if settings.get("height", 1) > 64:
            raise BadInput(f"cannot draw height={settings['height']}", expected="at most 64")
        return SimpleNamespace(num_frames=settings.get("num_frames", 1))

    def __call__(self, prompt: str, *, progress: Listener, **settings: Any) -> Any:
        write(self._load.log, "begin", prompt)
        if "poison" in prompt:
            os.kill(os.getpid(), signal.SIGKILL)
        if "error" in prompt:
            raise RuntimeError("a vendor's library has failed")
        self._wait_for_others(prompt)
        for step in range(STEPS):
            time.sleep(self._load.seconds / STEPS)
            progress(Event("denoise", step + 1, STEPS))
        frames = numpy.zeros((settings.get("num_frames", 1), 8, 8, 3), numpy.uint8)
        write(self._load.log, "end", prompt)
        return SimpleNamespace(frames=frames, settings={"prompt": prompt, **settings})

    def _wait_for_others(self, prompt: str) -> None:
        log, hold = Path(self._load.log), self._load.hold
        if hold is not None and prompt not in told(log, "begin")[:hold]:
            wait_until(_gate(log).exists)
        wait_until(lambda: len(workers_in(log, "begin")) >= self._load.together)


def let_go(log: Path) -> None:
    """Have all pictures drawn that are held."""
    _gate(log).touch()


def _gate(log: Path) -> Path:
    return log.with_suffix(".go")


def write(log: str, what: str, about: str) -> None:
    line = json.dumps([what, about, os.getpid()]) + "\n"
    number = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(number, line.encode())
    os.close(number)


def told(log: Path, what: str) -> list[str]:
    """What the log says about all of one kind."""
    return [about for kind, about, _ in _lines(log) if kind == what]


def _lines(log: Path) -> list[Any]:
    return [json.loads(line) for line in log.read_text().splitlines()]


def wait_for(log: Path, what: str, count: int) -> None:
    """Until the log has told about that many."""
    wait_until(lambda: log.exists() and len(told(log, what)) >= count)


def wait_until(true: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + 120
    while not true():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


def workers_in(log: Path, what: str = "end") -> set[int]:
    """The processes that have drawn something to its end, or done something else."""
    return {pid for kind, _, pid in _lines(log) if kind == what}


def rows(*prompts: str, **values: Any) -> list[Row]:
    return [Row(f"line {n}", {"prompt": p, **values}) for n, p in enumerate(prompts, 1)]


def jobs(*prompts: str, **values: Any) -> list[Job]:
    return plan(rows(*prompts, **values), Options(model="fake"), "prompts.jsonl")


def records(folder: Path, event: str) -> list[dict[str, Any]]:
    return [r for r in parse((folder / NAME).read_bytes())[0] if r["event"] == event]


def assert_exactly_once(folder: Path, prompts: Sequence[str], log: Path, lost: int = 0) -> None:
    """By the manifest, by the files, and by what the workers say; `lost` drawings were killed."""
    done = records(folder, "done")
    assert Counter(r["settings"]["prompt"] for r in done) == Counter(prompts)
    files = sorted(p for p in folder.rglob("*") if p.is_file() and p.name != NAME)
    assert files == sorted(folder / r["file"] for r in done)
    assert Counter(read_settings(file)["prompt"] for file in files) == Counter(prompts)
    begun = told(log, "begin")
    assert set(begun) == set(prompts)
    assert len(begun) <= len(prompts) + lost
