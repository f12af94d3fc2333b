"""Workers on the machines of a Ray cluster, one for each GPU or machine.

Only messages go between machines; they need no shared disk. Actors end with this process, and so
does a cluster that it started.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import RayActorError, RayError

from holdfast.base.errors import Unsupported
from holdfast.pipeline.batch.ray_guard import guard_folder
from holdfast.pipeline.batch.workers import (
    LOCAL_RAY,
    Answer,
    Died,
    Load,
    Order,
    Watch,
    Worker,
    WorkerPool,
)
from holdfast.pipeline.model.placement import PlacementRequest
from holdfast.pipeline.run.progress import STAGES, Event

WAIT_S = 0.5
_CONNECT_S = 5.0
_PROGRESS_S = 1.0  # between two progress requests
_PATIENCE_S = 10.0  # until a note says that the cluster does not schedule


@dataclass(frozen=True, slots=True)
class ClusterShare:
    """The number of workers, and the CPUs and GPUs of each."""

    count: int
    cpus: int
    gpus: int

    def text(self) -> str:
        """All of it, with a verb: "2 GPUs are"."""
        number = self.count * (self.gpus or self.cpus)
        return f"{number} {'GPU' if self.gpus else 'CPU'}{'s are' if number > 1 else ' is'}"


class Actor:
    """The remote side. Its methods run in two threads: one draws, one reports progress."""

    def __init__(self, load: Load, device: str) -> None:
        self._worker = Worker(load, device)
        self._event: Event | None = None

    def answer(self, order: Order) -> Answer:
        return self._worker.answer(order, self._note)

    def latest(self) -> Event | None:
        """The latest progress event."""
        return self._event

    def _note(self, event: Event) -> None:
        self._event = event


class RayActors(WorkerPool):
    """`count` actors on the cluster at `address`; None is one for each GPU, else each machine.

    There are never more than `most`. `address` is "auto", "HOST:PORT", or "local" for a cluster
    that lives as long as this pool. `note` is called when the cluster makes us wait. Entering
    raises Unsupported if there is no cluster to join.
    """

    def __init__(
        self,
        load: Load,
        device: str,
        count: int | None,
        most: int,
        address: str = LOCAL_RAY,
        note: Callable[[str], None] = lambda _: None,
    ) -> None:
        super().__init__(count or 1)
        self._load, self._device, self._address = load, device, address
        self._wanted, self._most = count, most
        self._exit = contextlib.ExitStack()
        self._actors: dict[int, Any] = {}
        self._answers: dict[Any, int] = {}  # Ray's object reference -> worker
        self._questions: dict[Any, int] = {}
        self._asked_s: dict[int, float] = {}
        self._note = note
        self._note_at_s: float | None = None  # when to note that no worker has answered yet

    def _open(self) -> None:
        self._exit.enter_context(contextlib.redirect_stdout(sys.stderr))  # Ray prints deaths
        if not ray.is_initialized():
            self._join()
        machines = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        gpus = may_use_gpus(self._device)
        self._share = divide_cluster(machines, self._wanted, self._most, gpus=gpus)
        self.count = self._share.count
        remote: Any = ray.remote  # as Any: Ray's type hints lack documented options
        self._remote = remote(
            num_cpus=self._share.cpus,
            num_gpus=self._share.gpus,
            max_restarts=0,
            max_concurrency=2,
            scheduling_strategy="SPREAD",
        )(Actor)
        self._note_at_s = time.monotonic() + _PATIENCE_S

    def _join(self) -> None:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        options: dict[str, Any] = {"address": self._address}
        if self._address == LOCAL_RAY:
            options["_temp_dir"] = self._exit.enter_context(guard_folder())
            options["num_cpus"] = max(self._wanted or 1, os.cpu_count() or 1)
            options["include_dashboard"] = False
        self._exit.callback(ray.shutdown)
        try:
            host, _, port = self._address.removeprefix("ray://").rpartition(":")
            if port.isdecimal():  # Ray would try for minutes
                socket.create_connection((host.strip("[]"), int(port)), _CONNECT_S).close()
            ray.init(log_to_driver=False, logging_level=logging.ERROR, **options)
        except (ConnectionError, RuntimeError, ValueError, OSError) as exc:
            first = str(exc).strip().partition("\n")[0]
            raise Unsupported(
                f"cannot join the Ray cluster at {self._address!r}: {first}",
                expected='a running cluster as "HOST:PORT", "auto", or no address to start one',
                hint="`ray status` on a machine of that cluster, with the same Python and Ray",
            ) from exc

    def _start(self, worker: int) -> None:
        self._actors[worker] = self._remote.remote(self._load, self._device)

    def _send(self, worker: int, order: Order) -> None:
        self._answers[self._actors[worker].answer.remote(order)] = worker

    def _receive(self, watch: Watch) -> list[tuple[int, Answer]]:
        self._request_progress()
        if self._note_at_s is not None and time.monotonic() >= self._note_at_s:
            self._note_at_s = None
            self._note(f"waiting for the cluster: {self._share.text()} asked for")
        waiting = [*self._answers, *self._questions]
        ready, _ = ray.wait(waiting, num_returns=1, timeout=WAIT_S) if waiting else ([], [])
        answers: list[tuple[int, Answer]] = []
        for reference in ready:
            if reference in self._questions:
                self._hear(reference, watch)
            else:
                worker = self._answers.pop(reference)
                answers.append((worker, self._get(worker, reference)))
        return answers

    def _dismiss(self, worker: int) -> None:
        ray.kill(self._actors.pop(worker))

    def _request_progress(self) -> None:
        """Request progress from busy workers, one request at a time for each."""
        now = time.monotonic()
        for worker in set(self._answers.values()) - set(self._questions.values()):
            if now - self._asked_s.get(worker, 0) >= _PROGRESS_S:
                self._asked_s[worker] = now
                self._questions[self._actors[worker].latest.remote()] = worker

    def _hear(self, reference: Any, watch: Watch) -> None:
        worker = self._questions.pop(reference)
        with contextlib.suppress(RayError):  # dead: its answer reports it
            event: Any = ray.get(reference)
            self._note_at_s = None  # it is scheduled
            if event is not None and worker in self._answers.values():
                watch(worker, event)

    def _get(self, worker: int, reference: Any) -> Answer:
        self._note_at_s = None
        try:
            return ray.get(reference)
        except RayError as exc:
            actor = self._actors.pop(worker, None)
            if not isinstance(exc, RayActorError):  # the answer was lost: too large, or no machine
                ray.kill(actor)
            return Died(_reason(exc))

    def __exit__(self, *_: object) -> None:
        try:
            for actor in self._actors.values():
                ray.kill(actor)
        finally:
            self._exit.close()


def may_use_gpus(device: str) -> bool:
    """Whether a stage may run on a GPU."""
    asked = PlacementRequest(device).by_stage()
    return {asked.get(stage, "auto") for stage in STAGES} != {"cpu"}


def divide_cluster(
    machines: Sequence[Mapping[str, float]], wanted: int | None, most: int, *, gpus: bool = True
) -> ClusterShare:
    """Divide a cluster: one worker on each GPU, or on each machine without GPUs.

    Without `gpus`, GPUs are not used.
    """
    cards = [(int(machine.get("GPU", 0)), machine.get("CPU", 0)) for machine in machines]
    count = sum(number for number, _ in cards) if gpus else 0
    if count:
        # A machine may offer fewer CPUs than GPUs; then workers must not wait for CPUs.
        enough = all(cpus >= number for number, cpus in cards)
        return ClusterShare(min(wanted or count, count, most), cpus=1 if enough else 0, gpus=1)
    cpus = [int(machine.get("CPU", 0)) for machine in machines]
    working = [count for count in cpus if count] or [1]
    count = min(wanted or len(working), sum(working), most)
    each = min(working) // math.ceil(count / len(working))
    return ClusterShare(count, cpus=max(1, each), gpus=0)


def _reason(exc: BaseException) -> str:
    lines = [line.strip() for line in str(exc).splitlines() if line.strip()]
    causes = [line for line in lines if line.startswith("The actor is dead because")]
    return (causes or lines or [type(exc).__name__])[0].partition(" Some common causes")[0]
