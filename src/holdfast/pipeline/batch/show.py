"""Progress of a batch on standard error: bars on a terminal, else a line now and then.

User text is never interpreted as markup or control characters.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, TextIO

from holdfast.base.units import format_seconds
from holdfast.pipeline.batch.jobs import Job
from holdfast.pipeline.run.progress import Event

_BETWEEN_LINES_S = 10.0
_ROWS = 8
_WIDTH = 44
_STAGE_TEXTS = {"load": "loading the model", "text": "reading the prompt", "decode": "decoding"}


class Show(AbstractContextManager["Show"]):
    """Base class; shows nothing, but keeps the rate of finished jobs."""

    _clock: Callable[[], float] = staticmethod(time.monotonic)
    _start_s: float | None = None  # of the first job, after loading
    _total = _over = _now = 0

    def begin(self, total: int, done: int) -> None:
        """Start with `done` of `total` jobs finished."""
        self._total, self._over = total, done

    def step(self, worker: int, job: Job | None, event: Event) -> None:
        """Progress of a worker with a job, or with loading."""
        if job is not None and self._start_s is None:
            self._start_s = self._clock()

    def finished(self, job: Job, file: str | None) -> None:
        """A job has its picture, or has failed (`file` is None)."""
        self._over += 1
        self._now += 1

    def note(self, text: str) -> None:
        """Show a message."""

    def _pace(self) -> str:
        """ "12/40 done, 1.9 s each, 53 s left"."""
        words = [f"{self._over}/{self._total} done"]
        if self._now and self._start_s is not None:
            each_s = (self._clock() - self._start_s) / self._now
            words.append(f"{format_seconds(each_s)} each")
            if self._over < self._total:
                words.append(f"{format_seconds(each_s * (self._total - self._over))} left")
        return ", ".join(words)

    def __exit__(self, *_: object) -> None:
        return None


class Lines(Show):
    """A line at the start, then one every ten seconds at most."""

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream, self._clock = stream, clock
        self._last_s = -_BETWEEN_LINES_S

    def begin(self, total: int, done: int) -> None:
        super().begin(total, done)
        self.note(f"{total - done} of {total} to do")

    def step(self, worker: int, job: Job | None, event: Event) -> None:
        super().step(worker, job, event)
        text = describe_event(event)
        self._sometimes(text if job is None else f"{self._pace()}; {job.where}, {text}")

    def finished(self, job: Job, file: str | None) -> None:
        super().finished(job, file)
        self._sometimes(self._pace())

    def note(self, text: str) -> None:
        self._stream.write(f"holdfast: {make_printable(text)}\n")
        self._stream.flush()

    def _sometimes(self, text: str) -> None:
        if self._clock() - self._last_s >= _BETWEEN_LINES_S:
            self._last_s = self._clock()
            self.note(text)


class Bars(Show):
    """A bar for the batch, and below it a line for each worker, up to eight."""

    def __init__(self, console: Any = None) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn

        columns = [
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[state]}", markup=False),
        ]
        console = console or Console(stderr=True)
        self._progress = Progress(*columns, console=console, transient=True)
        self._rows: dict[int, Any] = {}

    def __enter__(self) -> Bars:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def begin(self, total: int, done: int) -> None:
        super().begin(total, done)
        self._all = self._progress.add_task(
            "batch", total=total, completed=done, state=self._pace()
        )

    def step(self, worker: int, job: Job | None, event: Event) -> None:
        super().step(worker, job, event)
        if worker >= _ROWS:
            return
        if worker not in self._rows:
            self._rows[worker] = self._progress.add_task("", total=None, state="")
        self._progress.update(
            self._rows[worker],
            description="  " + (shorten(job.prompt) if job else ""),
            completed=event.done,
            total=event.total,
            state=describe_event(event),
        )

    def finished(self, job: Job, file: str | None) -> None:
        super().finished(job, file)
        self._progress.update(self._all, completed=self._over, state=self._pace())

    def note(self, text: str) -> None:
        self._progress.console.print(
            f"holdfast: {make_printable(text)}", markup=False, highlight=False, soft_wrap=True
        )


def describe_event(event: Event) -> str:
    """A progress event as text."""
    if event.stage == "denoise":
        return f"step {event.done}/{event.total}" if event.total else f"step {event.done}"
    return _STAGE_TEXTS[event.stage] + (f": {event.label}" if event.label else "")


def shorten(prompt: str) -> str:
    """The beginning of a prompt on one line."""
    line = make_printable(prompt)
    return line if len(line) <= _WIDTH else line[: _WIDTH - 1] + "…"


def make_printable(text: str) -> str:
    """Replace control characters by spaces."""
    return "".join(c if c.isprintable() else " " for c in text)
