"""Messages to and from a worker, the worker itself, and a pool of workers.

    runner ──Order──▶ WorkerPool ──▶ Worker (here, in a process, on another machine)
           ◀─Answer──            ◀──

A Worker loads its model once, touches no file, and answers every order. A WorkerPool replaces
workers that die and gives up on one that cannot load the model.
"""

from __future__ import annotations

import copy
import functools
import gc
import time
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, NamedTuple

from holdfast.base.errors import BadInput, HoldfastError, Unsupported
from holdfast.base.interrupts import is_interrupt
from holdfast.base.registry import Entry, Registry
from holdfast.pipeline.batch.jobs import Job, suffix_for
from holdfast.pipeline.run.progress import Event, Listener

# Consecutive deaths of a worker while it loads its model.
LOAD_DEATHS = 3
# The address of a Ray cluster that is started for one batch.
LOCAL_RAY = "local"


# Loads a pipeline, or what has its `check` and `__call__`, on a device; must be picklable.
Load = Callable[[str, Listener], Any]
Watch = Callable[[int, Event], None]


@dataclass(frozen=True, slots=True)
class LoadPipeline:
    """The `Load` for Pipeline.load."""

    model: str
    precision: str = "auto"
    budget: str | int | None = None
    config: str | None = None

    def __call__(self, device: str, progress: Listener) -> Any:
        from holdfast.pipeline import Pipeline

        return Pipeline.load(
            self.model, device, self.budget, self.precision, config=self.config, progress=progress
        )


@dataclass(frozen=True, slots=True)
class LoadModel:
    """Order: load the model."""


class Check(NamedTuple):
    """Order: check that all these can be drawn."""

    jobs: tuple[Job, ...]


class Draw(NamedTuple):
    """Order: draw this."""

    job: Job


Order = LoadModel | Check | Draw


@dataclass(frozen=True, slots=True)
class Loaded:
    """Answer: the model is loaded."""


class Checked(NamedTuple):
    """Answer: errors by the identity of the job."""

    problems: Mapping[str, HoldfastError]


class Drawn(NamedTuple):
    """Answer: the content of the file, with settings and time."""

    data: bytes
    suffix: str
    settings: Mapping[str, Any]
    seconds: float
    run_id: str | None = None  # in the history of runs


class Failed(NamedTuple):
    """Answer: it failed; `again` is whether a retry makes sense."""

    error: HoldfastError
    again: bool


class Died(NamedTuple):
    """Instead of an answer: the worker died and is replaced."""

    how: str


class Lost(NamedTuple):
    """Instead of an answer: the worker cannot load its model and is not replaced."""

    error: HoldfastError


Answer = Loaded | Checked | Drawn | Failed | Died | Lost


class Worker:
    """The worker itself, in whichever process."""

    def __init__(self, load: Load, device: str) -> None:
        self._load, self._device = load, device
        self._pipe: Any = None

    def answer(self, order: Order, progress: Listener) -> Answer:
        """Execute an order. Raises only KeyboardInterrupt.

        A Failed answer references nothing of the attempt, so that its memory is freed.
        """
        try:
            return self._do(order, progress)
        except Exception as exc:
            if is_interrupt(exc):
                raise KeyboardInterrupt from exc
            failed = Failed(_strip(exc), again=not isinstance(exc, BadInput))
        gc.collect()  # objects of the attempt may form cycles with tensors
        return failed

    def _do(self, order: Order, progress: Listener) -> Answer:
        if isinstance(order, LoadModel):
            self._pipe = self._load(self._device, progress)
            return Loaded()
        assert self._pipe is not None, "the first order is LoadModel"
        if isinstance(order, Check):
            return Checked(_problems(self._pipe, order.jobs))
        return _draw(self._pipe, order.job, progress)


def _strip(exc: Exception) -> HoldfastError:
    """A copy of the error without traceback, which would keep local variables alive."""
    if isinstance(exc, HoldfastError):
        return copy.copy(exc)  # as pickling does
    return Unsupported(f"{type(exc).__name__}: {exc}")


def _problems(pipe: Any, jobs: Sequence[Job]) -> dict[str, HoldfastError]:
    check_format = functools.cache(_check_format)  # few file formats for many jobs
    problems: dict[str, HoldfastError | None] = {}
    for job in jobs:
        try:
            frames = pipe.check(**job.settings).num_frames
            problems[job.identity] = check_format(job.suffix, frames) if job.suffix else None
        except HoldfastError as exc:
            problems[job.identity] = _strip(exc)
    return {identity: error for identity, error in problems.items() if error is not None}


def _check_format(suffix: str, num_frames: int) -> HoldfastError | None:
    """Why that many frames cannot be written in this format, or None."""
    import numpy

    from holdfast.pipeline.output import media

    try:
        media.check_format(suffix, num_frames)
        media.encode(numpy.zeros((1, 16, 16, 3), numpy.uint8), suffix, {})  # needs its libraries
    except HoldfastError as exc:
        return _strip(exc)
    return None


def _draw(pipe: Any, job: Job, progress: Listener) -> Drawn:
    from holdfast.pipeline.output import media

    start = time.perf_counter()
    result = pipe(**job.settings, progress=progress)
    suffix = job.suffix or suffix_for(len(result.frames))
    # The identity inside identifies a picture whose record is lost.
    settings = {**result.settings, "job": job.identity}
    data = media.encode(result.frames, suffix, settings, fps=job.fps)
    seconds = round(time.perf_counter() - start, 3)
    return Drawn(data, suffix, settings, seconds, getattr(result, "run_id", None))


class WorkerPool(AbstractContextManager["WorkerPool"]):
    """`count` workers. A subclass starts them, sends orders and receives answers.

    Leaving the block kills the workers; they hold nothing that could be lost.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self._deaths: Counter[int] = Counter()
        self._loading: set[int] = set()
        self._idle: set[int] = set()

    def _open(self) -> None:
        """Prepare before workers are started; may set `count`."""

    @abstractmethod
    def _start(self, worker: int) -> None:
        """Start a worker with this number; the old one is gone."""

    @abstractmethod
    def _send(self, worker: int, order: Order) -> None:
        """Send an order; `_receive` reports a worker that has died."""

    def _dismiss(self, worker: int) -> None:
        """Drop a worker that cannot load its model."""

    @abstractmethod
    def _receive(self, watch: Watch) -> list[tuple[int, Answer]]:
        """Wait a short time for answers."""

    def __enter__(self) -> WorkerPool:
        try:
            self._open()
            for worker in range(self.count):
                self._launch(worker)
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def idle(self) -> list[int]:
        """Workers with a loaded model and nothing to do."""
        return sorted(self._idle)

    def give(self, worker: int, order: Order) -> None:
        """Send an order to an idle worker."""
        self._idle.remove(worker)
        self._send(worker, order)

    def wait(self, watch: Watch) -> list[tuple[int, Answer]]:
        """Answers after a short wait, perhaps none. `watch` is called with progress."""
        return [(worker, self._update(worker, answer)) for worker, answer in self._receive(watch)]

    def _launch(self, worker: int) -> None:
        self._loading.add(worker)
        self._start(worker)
        self._send(worker, LoadModel())

    def _update(self, worker: int, answer: Answer) -> Answer:
        """Update the state of the worker; returns the answer, or Died or Lost."""
        was_loading = worker in self._loading
        self._loading.discard(worker)
        self._idle.discard(worker)
        if isinstance(answer, Died):
            return self._replace(worker, answer, was_loading)
        if was_loading and isinstance(answer, Failed):
            self._dismiss(worker)
            return Lost(answer.error)
        self._deaths[worker] = 0
        self._idle.add(worker)
        return answer

    def _replace(self, worker: int, died: Died, was_loading: bool) -> Answer:
        self._deaths[worker] += was_loading
        if self._deaths[worker] < LOAD_DEATHS:
            self._launch(worker)
            return died
        return Lost(
            Unsupported(
                f"a worker died {LOAD_DEATHS} times while it loaded the model: {died.how}",
                expected="a process that has the memory for the model",
                hint="fewer --workers, a smaller --precision, or `dmesg` for what ended it",
            )
        )


class InProcess(WorkerPool):
    """One worker in this process."""

    def __init__(self, load: Load, device: str) -> None:
        super().__init__(1)
        self._load, self._device = load, device
        self._order: Order | None = None

    def _start(self, worker: int) -> None:
        self._worker = Worker(self._load, self._device)

    def _send(self, worker: int, order: Order) -> None:
        self._order = order

    def _receive(self, watch: Watch) -> list[tuple[int, Answer]]:
        if self._order is None:
            return []
        order, self._order = self._order, None
        return [(0, self._worker.answer(order, lambda event: watch(0, event)))]

    def __exit__(self, *_: object) -> None:
        return None


# Kinds of pools; their arguments differ, see each class.
POOLS: Registry[Callable[..., WorkerPool]] = Registry(
    "pool",
    {
        "here": Entry("holdfast.pipeline.batch.workers:InProcess", "this process"),
        "local": Entry("holdfast.pipeline.batch.local:LocalProcesses", "processes on this machine"),
        "ray": Entry("holdfast.pipeline.batch.ray:RayActors", "machines of a Ray cluster", "ray"),
    },
)
