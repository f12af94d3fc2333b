"""The main loop of a batch: hand jobs to idle workers and keep the results until none is left.

A job is with one worker at a time, and its picture is kept once. A job that fails or kills its
worker too often is recorded as failed; the others continue.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from holdfast.base.errors import HoldfastError, Unsupported
from holdfast.pipeline.batch.folder import Folder
from holdfast.pipeline.batch.jobs import Job, fold_name
from holdfast.pipeline.batch.reading import bad_rows
from holdfast.pipeline.batch.show import Show
from holdfast.pipeline.batch.workers import (
    Answer,
    Check,
    Checked,
    Died,
    Draw,
    Drawn,
    Failed,
    Lost,
    WorkerPool,
)
from holdfast.pipeline.output import history
from holdfast.pipeline.run.progress import Event


@dataclass(frozen=True, slots=True)
class Failure:
    """A job without a picture."""

    where: str
    prompt: str
    reason: str
    attempts: int


@dataclass(slots=True)
class Outcome:
    """Results so far."""

    kept: list[str] = field(default_factory=list)
    renamed: list[tuple[str, str]] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)


class Runner:
    """Runs `jobs`. `file` is where they come from, for errors; `outcome` grows while it runs.

    `everything` is all jobs of the batch, also finished ones, whose names are reserved.
    """

    def __init__(
        self,
        jobs: Sequence[Job],
        folder: Folder,
        pool: WorkerPool,
        show: Show,
        *,
        retries: int,
        file: str,
        everything: Sequence[Job],
    ) -> None:
        self.outcome = Outcome()
        self._folder, self._pool, self._show = folder, pool, show
        self._retries, self._file = retries, file
        self._queue = deque(jobs)
        self._running: dict[int, Job] = {}
        self._attempts: Counter[str] = Counter()
        self._checking: int | None = None
        self._checked = False
        self._died_checking = 0
        self._lost = 0
        self._reserved = {fold_name(job.out): job.identity for job in everything if job.out}

    def run(self) -> None:
        """Run until every job is kept or has failed.

        Raises BadInput before the first one is drawn if the model cannot draw some, the error of
        loading if no worker can load the model, and Ctrl-C.
        """
        with self._pool:
            while self._queue or self._running:
                self._hand_out()
                self._listen()

    def _listen(self) -> None:
        # A method of its own, so that no local keeps an answer while the next picture is drawn.
        for worker, answer in self._pool.wait(self._watch):
            self._handle(worker, answer)

    def _watch(self, worker: int, event: Event) -> None:
        self._show.step(worker, self._running.get(worker), event)

    def _hand_out(self) -> None:
        for worker in self._pool.idle():
            if not self._checked:
                if self._checking is None:
                    self._checking = worker
                    self._pool.give(worker, Check(tuple(self._queue)))
            elif self._queue:
                job = self._queue.popleft()
                self._running[worker] = job
                self._attempts[job.identity] += 1
                self._pool.give(worker, Draw(job))

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
                self._retry_or_fail(job, f"its worker died: {answer.how}")
        elif job is not None and isinstance(answer, Drawn):
            self._keep(worker, job, answer)
        elif job is not None and isinstance(answer, Failed):
            self._retry_or_fail(job, str(answer.error), again=answer.again)
        elif isinstance(answer, Failed):
            raise answer.error  # the check itself failed

    def _refuse(self, answer: Checked) -> None:
        jobs = {job.identity: job for job in self._queue}
        bad = [(jobs[one].where, _one_line(error)) for one, error in answer.problems.items()]
        if bad:
            raise bad_rows(self._file, bad, "settings that this model can draw")

    def _give_up_worker(self, error: HoldfastError) -> None:
        self._lost += 1
        if self._lost == self._pool.count:
            raise error
        self._show.note(f"one worker less: {_one_line(error)}")

    def _keep(self, worker: int, job: Job, drawn: Drawn) -> None:
        file = self._folder.keep(
            job,
            drawn.data,
            drawn.suffix,
            reserved=self._reserved,
            seconds=drawn.seconds,
            worker=worker,
            attempts=self._attempts[job.identity],
            settings=dict(drawn.settings),
        )
        if drawn.run_id is not None:
            history.note_file(drawn.run_id, self._folder.path / file)
        self.outcome.kept.append(file)
        if job.out is not None and fold_name(file) != fold_name(job.out):
            self.outcome.renamed.append((job.out, file))
        self._show.finished(job, file)

    def _retry_or_fail(self, job: Job, reason: str, again: bool = True) -> None:
        attempts = self._attempts[job.identity]
        if again and attempts <= self._retries:
            self._show.note(f"{job.where} is tried again: {reason.partition(chr(10))[0]}")
            self._queue.append(job)
            return
        self._folder.fail(job, reason, attempts)
        self.outcome.failures.append(Failure(job.where, job.prompt, reason, attempts))
        self._show.finished(job, None)


def _one_line(error: HoldfastError) -> str:
    parts: list[Any] = [error.what, error.expected and f"expected {error.expected}"]
    return "; ".join(part for part in parts if part)
