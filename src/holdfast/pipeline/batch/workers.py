"""Who draws: what a worker is asked, what it answers, and a crew of them.

    runner ──Order──▶ Crew ──▶ Painter (here, in a process, on another machine)
           ◀─Answer──      ◀──

Covers: orders and answers, the worker itself, which workers are free, dead or given up.
Leaves to others: processes (local), machines (ray), who gets which job (runner).
Promise: a Painter loads its model once, touches no file, and answers every order; a Crew replaces
workers that die and gives up one whose model cannot be loaded.
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
from typing import Any, Protocol

from holdfast.base.errors import BadInput, HoldfastError, Unsupported
from holdfast.base.interrupts import is_interrupt
from holdfast.base.registry import Entry, Registry
from holdfast.pipeline.batch.jobs import suffix_for
from holdfast.pipeline.progress import Event, Listener

# Times in a row that a worker may die before it has loaded its model.
LOAD_DEATHS = 3
# The address of a Ray cluster that is started for one batch.
LOCAL_RAY = "local"


class Pipe(Protocol):
    """What a worker needs of a pipeline."""

    def check(self, prompt: str, **settings: Any) -> Any:
        """Raises BadInput for settings that it cannot draw."""
        ...

    def __call__(self, *args: Any, **settings: Any) -> Any:
        """Called with the settings and `progress`: a result with `frames` and `settings`."""
        ...


# Loads a pipeline on a device; has to survive pickling, as workers call it.
Load = Callable[[str, Listener], Pipe]
Watch = Callable[[int, Event], None]


@dataclass(frozen=True, slots=True)
class Recipe:
    """The Load that loads Holdfast's own pipeline."""

    model: str
    precision: str = "auto"
    budget: str | int | None = None
    config: str | None = None

    def __call__(self, device: str, progress: Listener) -> Pipe:
        from holdfast.pipeline import Pipeline

        return Pipeline.load(
            self.model, device, self.budget, self.precision, config=self.config, progress=progress
        )


@dataclass(frozen=True, slots=True)
class Task:
    """A job as a worker sees it."""

    identity: str
    settings: Mapping[str, Any]
    suffix: str | None
    fps: int


@dataclass(frozen=True, slots=True)
class LoadModel:
    """Order: get ready."""


@dataclass(frozen=True, slots=True)
class Check:
    """Order: look whether all these can be drawn."""

    tasks: tuple[Task, ...]


@dataclass(frozen=True, slots=True)
class Paint:
    """Order: draw this."""

    task: Task


Order = LoadModel | Check | Paint


@dataclass(frozen=True, slots=True)
class Loaded:
    """Answer: ready."""


@dataclass(frozen=True, slots=True)
class Checked:
    """Answer: what is wrong with which task, by identity."""

    problems: Mapping[str, HoldfastError]


@dataclass(frozen=True, slots=True)
class Painted:
    """Answer: a file's whole content, and how it came to be."""

    data: bytes
    suffix: str
    settings: Mapping[str, Any]
    seconds: float
    run_id: str | None = None  # in the history of runs


@dataclass(frozen=True, slots=True)
class Failed:
    """Answer: it did not work; `again` is whether another attempt could."""

    error: HoldfastError
    again: bool


@dataclass(frozen=True, slots=True)
class Died:
    """Instead of an answer: the worker is gone, a new one takes its place."""

    how: str


@dataclass(frozen=True, slots=True)
class Lost:
    """Instead of an answer: the worker cannot load its model and was given up."""

    error: HoldfastError


Answer = Loaded | Checked | Painted | Failed | Died | Lost


class Painter:
    """The worker itself, wherever it lives."""

    def __init__(self, load: Load, device: str) -> None:
        self._load, self._device = load, device
        self._pipe: Pipe | None = None

    def answer(self, order: Order, progress: Listener) -> Answer:
        """Do it. Only Ctrl-C comes out as an exception.

        An answer holds nothing of the attempt but words: after a failure its memory is free again.
        """
        try:
            return self._do(order, progress)
        except Exception as exc:
            if is_interrupt(exc):
                raise KeyboardInterrupt from exc
            failed = Failed(_bare(exc), again=not isinstance(exc, BadInput))
        gc.collect()  # what failed may hold its own exception, and with it its tensors
        return failed

    def _do(self, order: Order, progress: Listener) -> Answer:
        if isinstance(order, LoadModel):
            self._pipe = self._load(self._device, progress)
            return Loaded()
        assert self._pipe is not None, "the first order is LoadModel"
        if isinstance(order, Check):
            return Checked(_problems(self._pipe, order.tasks))
        return _paint(self._pipe, order.task, progress)


def _bare(exc: Exception) -> HoldfastError:
    """The error without where it came from: a traceback keeps every local variable on the way."""
    if isinstance(exc, HoldfastError):
        return copy.copy(exc)  # its three parts, as when it is pickled
    return Unsupported(f"{type(exc).__name__}: {exc}")


def _problems(pipe: Pipe, tasks: Sequence[Task]) -> dict[str, HoldfastError]:
    problems: dict[str, HoldfastError] = {}
    refusal = functools.cache(_refusal)  # few forms for many tasks
    for task in tasks:
        try:
            settled = pipe.check(**task.settings)
        except HoldfastError as exc:
            problems[task.identity] = _bare(exc)
            continue
        refused = refusal(task.suffix, settled.num_frames) if task.suffix else None
        if refused is not None:
            problems[task.identity] = refused
    return problems


def _refusal(suffix: str, num_frames: int) -> HoldfastError | None:
    """Why so many frames cannot go into such a file; where the file goes is not for a worker."""
    import numpy

    from holdfast.pipeline import media

    try:
        media.check_format(suffix, num_frames)
        media.encode(numpy.zeros((1, 16, 16, 3), numpy.uint8), suffix, {})  # are its libraries here
    except HoldfastError as exc:
        return _bare(exc)
    return None


def _paint(pipe: Pipe, task: Task, progress: Listener) -> Painted:
    from holdfast.pipeline import media

    start = time.perf_counter()
    result = pipe(**task.settings, progress=progress)
    suffix = task.suffix or suffix_for(len(result.frames))
    # With its identity inside, a picture can be told from all others when its record is lost.
    settings = {**result.settings, "job": task.identity}
    data = media.encode(result.frames, suffix, settings, fps=task.fps)
    seconds = round(time.perf_counter() - start, 3)
    return Painted(data, suffix, settings, seconds, getattr(result, "run_id", None))


class Crew(AbstractContextManager["Crew"]):
    """`count` workers. A subclass starts them, sends orders and receives answers.

    Leaving the block ends every worker at once: none holds anything that could be lost.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self._deaths: Counter[int] = Counter()
        self._loading: set[int] = set()
        self._idle: set[int] = set()

    def _open(self) -> None:
        """What has to be done before workers can be started; may set `count`."""

    @abstractmethod
    def _start(self, worker: int) -> None:
        """Have a new worker in this place; the old one is gone."""

    @abstractmethod
    def _send(self, worker: int, order: Order) -> None:
        """Pass an order on; a worker that has died meanwhile is told by `_receive`."""

    def _dismiss(self, worker: int) -> None:
        """Let a worker go that cannot load its model."""

    @abstractmethod
    def _receive(self, watch: Watch) -> list[tuple[int, Answer]]:
        """Wait a moment for answers."""

    def __enter__(self) -> Crew:
        try:
            self._open()
            for worker in range(self.count):
                self._employ(worker)
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def idle(self) -> list[int]:
        """Workers that have their model and nothing to do."""
        return sorted(self._idle)

    def give(self, worker: int, order: Order) -> None:
        """Ask an idle worker."""
        self._idle.remove(worker)
        self._send(worker, order)

    def wait(self, watch: Watch) -> list[tuple[int, Answer]]:
        """What came, after a moment at most: perhaps nothing. `watch` hears of progress."""
        return [(worker, self._settle(worker, answer)) for worker, answer in self._receive(watch)]

    def _employ(self, worker: int) -> None:
        self._loading.add(worker)
        self._start(worker)
        self._send(worker, LoadModel())

    def _settle(self, worker: int, answer: Answer) -> Answer:
        """Keep the books; the answer, or what has become of the worker."""
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
            self._employ(worker)
            return died
        return Lost(
            Unsupported(
                f"a worker died {LOAD_DEATHS} times while it loaded the model: {died.how}",
                expected="a process that has the memory for the model",
                hint="fewer --workers, a smaller --precision, or `dmesg` for what ended it",
            )
        )


class Here(Crew):
    """One worker, and it is this process."""

    def __init__(self, load: Load, device: str) -> None:
        super().__init__(1)
        self._load, self._device = load, device
        self._order: Order | None = None

    def _start(self, worker: int) -> None:
        self._painter = Painter(self._load, self._device)

    def _send(self, worker: int, order: Order) -> None:
        self._order = order

    def _receive(self, watch: Watch) -> list[tuple[int, Answer]]:
        if self._order is None:
            return []
        order, self._order = self._order, None
        return [(0, self._painter.answer(order, lambda event: watch(0, event)))]

    def __exit__(self, *_: object) -> None:
        return None


# Ways to have more than one worker: each is called with what its own file says.
CREWS: Registry[Callable[..., Crew]] = Registry(
    "crew",
    {
        "here": Entry("holdfast.pipeline.batch.workers:Here", "this process"),
        "local": Entry("holdfast.pipeline.batch.local:Local", "processes on this machine"),
        "ray": Entry("holdfast.pipeline.batch.ray:Actors", "machines of a Ray cluster", "ray"),
    },
)
