"""A whole batch: from a file of prompts to a folder of pictures.

All errors are raised before the folder is touched or a model is loaded, except for settings that
only the model can check: those are checked before the first picture.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.base.config import Config
from holdfast.base.errors import BadInput, HoldfastError
from holdfast.base.files import expand_path
from holdfast.pipeline.batch.folder import BatchStatus, Folder
from holdfast.pipeline.batch.jobs import SUFFIXES, Job, Options, plan, suffix_for
from holdfast.pipeline.batch.local import NUMBERED, gpus
from holdfast.pipeline.batch.manifest import NAME
from holdfast.pipeline.batch.reading import Row
from holdfast.pipeline.batch.runner import Failure, Outcome, Runner
from holdfast.pipeline.batch.show import Show
from holdfast.pipeline.batch.workers import POOLS, Load, LoadPipeline, WorkerPool
from holdfast.pipeline.model.placement import PlacementRequest
from holdfast.pipeline.model.sources import built_in, locate, require_weights
from holdfast.topology import discover

# Wan's default; asking the family would import torch. Only "more than one" matters here.
_WAN_FRAMES = 81
_COMPARED = ("model", "config", "precision", "seed", "suffix", "fps", "defaults")


@dataclass(frozen=True, slots=True)
class Summary:
    """How a run ended, or how far it came."""

    folder: str
    total: int
    done_before: int
    found: int
    done_now: int
    failed: tuple[Failure, ...]
    renamed: tuple[tuple[str, str], ...] = ()

    @property
    def left(self) -> int:
        """Jobs that were not started."""
        return self.total - self.done_before - self.found - self.done_now - len(self.failed)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions:
    """Where jobs run. `ray` is the address of a cluster; `load` replaces loading the model."""

    device: str = "auto"
    workers: int | None = None
    budget: str | int | None = None
    ray: str | None = None
    retries: int = 1
    load: Load | None = None


class Batch:
    """The jobs of one file, ready to run. `file` is its name, for errors and records.

    Raises BadInput for options, names and numbers that cannot be used, NotFound for the model.
    """

    def __init__(
        self, rows: Sequence[Row], options: Options, workers: WorkerOptions, folder: Path, file: str
    ) -> None:
        _check(options, workers)
        self.jobs = plan(rows, options, file)
        self.folder = folder
        self._options, self._workers, self._file = options, workers, file
        self._runner: Runner | None = None
        self._status: BatchStatus | None = None

    def status(self) -> BatchStatus:
        """What is done and what is left; draws nothing and makes no folder."""
        if not (self.folder / NAME).is_file():
            return BatchStatus((), (), tuple(self.jobs), 0)
        with Folder(self.folder) as folder:
            return folder.status(self.jobs)

    def name(self, job: Job) -> str:
        """The preferred file name of a job, as far as it is known before drawing."""
        frames = job.settings.get("num_frames") or self._usual_frames
        return job.name(job.suffix or suffix_for(frames))

    @functools.cached_property
    def _usual_frames(self) -> int:
        return _usual_frames(self._options.model, self._options.config)

    def run(self, show: Show | None = None) -> Summary:
        """Draw what is missing. After Ctrl-C, `summary` says how far it came."""
        show = show or Show()
        if self._workers.load is None and self._workers.ray is None:  # a cluster has its own files
            # Before a worker imports torch for seconds.
            require_weights(locate(self._options.model, self._options.config))
        with Folder(self.folder) as folder:
            status = self._status = folder.status(self.jobs)
            self._show_notes(folder, status, show)
            if status.to_do or status.found:
                folder.begin(file=self._file, jobs=len(self.jobs), **_record_options(self._options))
            folder.adopt()
            if status.to_do:
                self._work(folder, status, show)
        return self.summary()

    def summary(self) -> Summary:
        """Results so far."""
        status = self._status or BatchStatus((), (), tuple(self.jobs), 0)
        outcome = self._runner.outcome if self._runner else Outcome()
        return Summary(
            folder=str(self.folder),
            total=len(self.jobs),
            done_before=len(status.done),
            found=len(status.found),
            done_now=len(outcome.kept),
            failed=tuple(outcome.failures),
            renamed=tuple(outcome.renamed),
        )

    def _work(self, folder: Folder, status: BatchStatus, show: Show) -> None:
        pool = _make_pool(self._workers, self._options, len(status.to_do), show)
        self._runner = Runner(
            status.to_do,
            folder,
            pool,
            show,
            retries=self._workers.retries,
            file=self._file,
            everything=self.jobs,
        )
        with show:
            show.begin(len(self.jobs), len(self.jobs) - len(status.to_do))
            self._runner.run()

    def _show_notes(self, folder: Folder, status: BatchStatus, show: Show) -> None:
        if folder.manifest.damaged:
            show.note(f"damaged lines in the manifest, passed over: {folder.manifest.damaged}")
        if status.found:
            show.note(f"pictures found without a record, and kept: {len(status.found)}")
        if status.strangers:
            last, now = folder.last_run() or {}, _record_options(self._options)
            changes = ", ".join(
                f"{name}: {last.get(name)} before, {now[name]} now"
                for name in _COMPARED
                if last.get(name) != now[name]
            )
            show.note(
                f"pictures of other jobs in {str(self.folder)!r}: {status.strangers}"
                + (f" ({changes})" if changes else "")
                + "; they stay, new ones are put next to them"
            )


def _check(options: Options, workers: WorkerOptions) -> None:
    numbers = {"--workers": (workers.workers, 1), "--retries": (workers.retries, 0)}
    numbers["--fps"] = (options.fps, 1)
    for name, (number, least) in numbers.items():
        if number is not None and number < least:
            raise BadInput(f"cannot use {name} {number}", expected=f"{least} or more")
    if workers.ray == "":
        raise BadInput('cannot use --ray ""', expected="HOST:PORT, auto, or no address")
    if options.suffix is not None and options.suffix not in SUFFIXES:
        raise BadInput(
            f"cannot write {options.suffix!r} files", expected=f"one of {', '.join(SUFFIXES)}"
        )
    request = PlacementRequest(workers.device, workers.budget, options.precision).check()
    if workers.ray is not None and any(":" in name for name in request.by_stage().values()):
        raise BadInput(
            f"cannot use --device {workers.device} with --ray: every worker of a cluster has "
            "a GPU of its own, and that is its number 0",
            expected="a kind of device without a number",
            hint=f"--device {re.sub(r':[0-9]+', '', workers.device)}",
        )


def _usual_frames(model: str, config: str | None) -> int:
    """The model's default number of frames; 1 if only loading would tell."""
    place, rest = expand_path(model), expand_path(config or "")
    alone = model in built_in() or place.is_dir()
    if not alone and not (config and place.is_file() and rest.is_dir()):
        return 1  # incomplete: not worth a download
    try:
        source = locate(model, config)
    except HoldfastError:
        return 1  # a run will raise the error
    return source.defaults.get("num_frames", _WAN_FRAMES if source.family == "wan" else 1)


def _record_options(options: Options) -> dict[str, Any]:
    facts = {name: getattr(options, name) for name in _COMPARED}
    return facts | {"defaults": {k: v for k, v in options.defaults.items() if v is not None}}


def _make_pool(workers: WorkerOptions, options: Options, jobs: int, show: Show) -> WorkerPool:
    """A pool with the requested number of workers, or one for each GPU; at most one per job."""
    load = workers.load or LoadPipeline(
        options.model, options.precision, workers.budget, options.config
    )
    if workers.ray is not None:
        return POOLS["ray"](load, workers.device, workers.workers, jobs, workers.ray, show.note)
    devices = _devices(workers)[:jobs]
    if len(devices) == 1:
        return POOLS["here"](load, devices[0])
    return POOLS["local"](load, devices)


def _devices(workers: WorkerOptions) -> list[str]:
    """A device for each worker; several GPUs are used in turn."""
    spread = workers.workers != 1 and workers.device in ("auto", *NUMBERED)
    several = gpus(workers.device) if spread and _any_gpu() else []
    if len(several) < 2:
        return [workers.device] * (workers.workers or 1)
    return [several[i % len(several)] for i in range(workers.workers or len(several))]


def _any_gpu() -> bool:
    """Ask the system first: torch takes seconds to import."""
    return bool(discover(config=Config.load(probes="pci,kfd,nvml")).gpus)
