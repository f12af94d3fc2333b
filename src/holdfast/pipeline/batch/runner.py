"""One loop: hand jobs to free workers, keep what they bring, until nothing is left.

Covers: order of work, attempts, what failed and why.
Leaves to others: workers (workers), files (folder), what is shown (show).
Promise: a job is handed to one worker at a time, and its picture is kept once. A job that fails or
kills its worker more often than allowed is recorded and left; the others go on.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from holdfast.base.errors import HoldfastError, Unsupported
from holdfast.pipeline import history
from holdfast.pipeline.batch.folder import Folder
from holdfast.pipeline.batch.jobs import Job, folded
from holdfast.pipeline.batch.reading import bad_rows
from holdfast.pipeline.batch.show import Show
from holdfast.pipeline.batch.workers import (
    Answer,
    Check,
    Checked,
    Crew,
    Died,
    Failed,
    Lost,
    Paint,
    Painted,
    Task,
)
from holdfast.pipeline.progress import Event


@dataclass(frozen=True, slots=True)
class Failure:
    """A job without a picture."""

    where: str
    prompt: str
    reason: str
    attempts: int


@dataclass(slots=True)
class Outcome:
    """What a run has brought so far."""

    kept: list[str] = field(default_factory=list)
    renamed: list[tuple[str, str]] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)


class Runner:
    """Works off `jobs`. `file` is where they come from, for errors; `outcome` grows while it runs.

    `everything` are all jobs of the batch, also those done: their names are not for others.
    """

    def __init__(
        self,
        jobs: Sequence[Job],
        folder: Folder,
        crew: Crew,
        show: Show,
        *,
        retries: int,
        file: str,
        everything: Sequence[Job],
    ) -> None:
        self.outcome = Outcome()
        self._folder, self._crew, self._show = folder, crew, show
        self._retries, self._file = retries, file
        self._queue = deque(jobs)
        self._running: dict[int, Job] = {}
        self._attempts: Counter[str] = Counter()
        self._checking: int | None = None
        self._checked = False
        self._died_checking = 0
        self._lost = 0
        self._reserved = {folded(job.out): job.identity for job in everything if job.out}

    def run(self) -> None:
        """Until every job is kept or has failed.

        Raises BadInput before the first one is drawn if the model cannot draw some, the error of
        loading if no worker can load the model, and Ctrl-C.
        """
        with self._crew:
            while self._queue or self._running:
                self._hand_out()
                self._listen()

    def _listen(self) -> None:
        # On its own, so that no answer is kept while the next picture is drawn.
        for worker, answer in self._crew.wait(self._watch):
            self._handle(worker, answer)

    def _watch(self, worker: int, event: Event) -> None:
        self._show.step(worker, self._running.get(worker), event)

    def _hand_out(self) -> None:
        for worker in self._crew.idle():
            if not self._checked:
                if self._checking is None:
                    self._checking = worker
                    self._crew.give(worker, Check(tuple(map(_task, self._queue))))
            elif self._queue:
                job = self._queue.popleft()
                self._running[worker] = job
                self._attempts[job.identity] += 1
                self._crew.give(worker, Paint(_task(job)))

    def _handle(self, worker: int, answer: Answer) -> None:
        job = self._running.pop(worker, None)
        was_checking = worker == self._checking
        if was_checking:
            self._checking = None
        if isinstance(answer, Checked):
            self._refuse(answer)
            self._checked = True
        elif isinstance(answer, Lost):
            self._give_up_worker(answer.error)
        elif isinstance(answer, Died):
            self._show.note(f"worker {worker} died and is replaced: {answer.how}")
            self._died_checking += was_checking
            if self._died_checking > self._retries:
                raise Unsupported(f"checking the settings has ended a worker: {answer.how}")
            if job is not None:
                self._again_or_fail(job, f"its worker died: {answer.how}")
        elif job is not None and isinstance(answer, Painted):
            self._keep(worker, job, answer)
        elif job is not None and isinstance(answer, Failed):
            self._again_or_fail(job, str(answer.error), again=answer.again)
        elif isinstance(answer, Failed):
            raise answer.error  # of checking: nothing is known about the jobs

    def _refuse(self, answer: Checked) -> None:
        jobs = {job.identity: job for job in self._queue}
        bad = [
            (jobs[identity].where, _one_line(error)) for identity, error in answer.problems.items()
        ]
        if bad:
            raise bad_rows(self._file, bad, "settings that this model can draw")

    def _give_up_worker(self, error: HoldfastError) -> None:
        self._lost += 1
        if self._lost == self._crew.count:
            raise error
        self._show.note(f"one worker less: {_one_line(error)}")

    def _keep(self, worker: int, job: Job, painted: Painted) -> None:
        file = self._folder.keep(
            job,
            painted.data,
            painted.suffix,
            reserved=self._reserved,
            seconds=painted.seconds,
            worker=worker,
            attempts=self._attempts[job.identity],
            settings=dict(painted.settings),
        )
        if painted.run_id is not None:
            history.note_file(painted.run_id, self._folder.path / file)
        self.outcome.kept.append(file)
        if job.out is not None and folded(file) != folded(job.out):
            self.outcome.renamed.append((job.out, file))
        self._show.finished(job, file)

    def _again_or_fail(self, job: Job, reason: str, again: bool = True) -> None:
        attempts = self._attempts[job.identity]
        if again and attempts <= self._retries:
            self._show.note(f"{job.where} is tried again: {reason.partition(chr(10))[0]}")
            self._queue.append(job)
            return
        self._folder.fail(job, reason, attempts)
        self.outcome.failures.append(Failure(job.where, job.prompt, reason, attempts))
        self._show.finished(job, None)


def _task(job: Job) -> Task:
    return Task(job.identity, dict(job.settings), job.suffix, job.fps)


def _one_line(error: HoldfastError) -> str:
    parts: list[Any] = [error.what, error.expected and f"expected {error.expected}"]
    return "; ".join(part for part in parts if part)
