"""A whole batch: from a file of prompts to a folder of pictures.

Covers: putting the parts together, where a batch stands, what a summary says.
Leaves to others: each part.
Promise: everything that can be refused is refused before the folder is touched or a model is
loaded, except settings that only the model can judge: those are refused before the first picture.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.base.config import Config
from holdfast.base.errors import BadInput, HoldfastError
from holdfast.base.files import expanded
from holdfast.pipeline.batch.folder import Folder, Standing
from holdfast.pipeline.batch.jobs import SUFFIXES, Job, Options, plan, suffix_for
from holdfast.pipeline.batch.local import NUMBERED, gpus
from holdfast.pipeline.batch.manifest import NAME
from holdfast.pipeline.batch.reading import Row
from holdfast.pipeline.batch.runner import Failure, Outcome, Runner
from holdfast.pipeline.batch.show import Show
from holdfast.pipeline.batch.workers import CREWS, Crew, Load, Recipe
from holdfast.pipeline.placement import Wish
from holdfast.topology import discover

# Those of that family, which takes torch to ask; only whether it is more than one matters here.
_WAN_FRAMES = 81
_COMPARED = ("model", "config", "precision", "seed", "suffix", "fps", "defaults")


@dataclass(frozen=True, slots=True)
class Summary:
    """How a run ended, or where it was when it was stopped."""

    folder: str
    total: int
    done_before: int
    found: int
    done_now: int
    failed: tuple[Failure, ...]
    renamed: tuple[tuple[str, str], ...] = ()

    @property
    def left(self) -> int:
        """Jobs that were not come to."""
        return self.total - self.done_before - self.found - self.done_now - len(self.failed)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hands:
    """Who is to do it. `ray` is the address of a cluster; `load` takes the place of the model."""

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
        self, rows: Sequence[Row], options: Options, hands: Hands, folder: Path, file: str
    ) -> None:
        _check(options, hands)
        self.jobs = plan(rows, options, file)
        self.folder = folder
        self._options, self._hands, self._file = options, hands, file
        self._runner: Runner | None = None
        self._standing: Standing | None = None

    def look(self) -> Standing:
        """Where it stands; draws nothing, and makes no folder."""
        if not (self.folder / NAME).is_file():
            return Standing((), (), tuple(self.jobs), 0)
        with Folder(self.folder) as folder:
            return folder.standing(self.jobs)

    def name(self, job: Job) -> str:
        """The file that a job would like to have, as far as that can be told before it is drawn."""
        frames = job.settings.get("num_frames") or self._usual_frames
        return job.name(job.suffix or suffix_for(frames))

    @functools.cached_property
    def _usual_frames(self) -> int:
        return _usual_frames(self._options)

    def run(self, show: Show | None = None) -> Summary:
        """Make what is missing. After Ctrl-C, `summary` says how far it came."""
        show = show or Show()
        if self._hands.load is None and self._hands.ray is None:  # there, they have files of theirs
            _refuse_unknown(self._options)
        with Folder(self.folder) as folder:
            standing = self._standing = folder.standing(self.jobs)
            self._tell(folder, standing, show)
            if standing.to_do or standing.found:
                folder.begin(file=self._file, jobs=len(self.jobs), **_facts(self._options))
            folder.adopt()
            if standing.to_do:
                self._work(folder, standing, show)
        return self.summary()

    def summary(self) -> Summary:
        """What is known now."""
        standing = self._standing or Standing((), (), tuple(self.jobs), 0)
        outcome = self._runner.outcome if self._runner else Outcome()
        return Summary(
            folder=str(self.folder),
            total=len(self.jobs),
            done_before=len(standing.done),
            found=len(standing.found),
            done_now=len(outcome.kept),
            failed=tuple(outcome.failures),
            renamed=tuple(outcome.renamed),
        )

    def _work(self, folder: Folder, standing: Standing, show: Show) -> None:
        crew = _crew(self._hands, self._options, len(standing.to_do), show)
        self._runner = Runner(
            standing.to_do,
            folder,
            crew,
            show,
            retries=self._hands.retries,
            file=self._file,
            everything=self.jobs,
        )
        with show:
            show.begin(len(self.jobs), len(self.jobs) - len(standing.to_do))
            self._runner.run()

    def _tell(self, folder: Folder, standing: Standing, show: Show) -> None:
        """What is in the folder that a person may not expect."""
        if folder.manifest.damaged:
            show.note(f"damaged lines in the manifest, passed over: {folder.manifest.damaged}")
        if standing.found:
            show.note(f"pictures found without a record, and kept: {len(standing.found)}")
        if standing.strangers:
            last, now = folder.last_run() or {}, _facts(self._options)
            changed = [name for name in _COMPARED if last.get(name) != now[name]]
            show.note(
                f"pictures of other jobs in {str(self.folder)!r}: {standing.strangers}"
                + (f" ({_changes(last, now, changed)})" if changed else "")
                + "; they stay, new ones are put next to them"
            )


def _check(options: Options, hands: Hands) -> None:
    numbers = {"--workers": (hands.workers, 1), "--retries": (hands.retries, 0)}
    numbers["--fps"] = (options.fps, 1)
    for name, (number, least) in numbers.items():
        if number is not None and number < least:
            raise BadInput(f"cannot use {name} {number}", expected=f"{least} or more")
    if hands.ray == "":
        raise BadInput('cannot use --ray ""', expected="HOST:PORT, auto, or no address")
    if options.suffix is not None and options.suffix not in SUFFIXES:
        raise BadInput(
            f"cannot write {options.suffix!r} files", expected=f"one of {', '.join(SUFFIXES)}"
        )
    _check_placing(options, hands)


def _check_placing(options: Options, hands: Hands) -> None:
    """What can be told without torch, in the words of those who would tell it later."""
    wish = Wish(hands.device, hands.budget, options.precision).checked()
    if hands.ray is not None and any(":" in name for name in wish.by_stage().values()):
        raise BadInput(
            f"cannot use --device {hands.device} with --ray: every worker of a cluster has "
            "a GPU of its own, and that is its number 0",
            expected="a kind of device without a number",
            hint=f"--device {re.sub(r':[0-9]+', '', hands.device)}",
        )


def _refuse_unknown(options: Options) -> None:
    """Before a worker spends seconds on importing torch only to find that there is no model."""
    from holdfast.pipeline.sources import locate, require_weights

    require_weights(locate(options.model, options.config))


def _usual_frames(options: Options) -> int:
    """How many frames the model draws unless told otherwise; 1 where only loading would tell."""
    from holdfast.pipeline.sources import built_in, locate

    place, rest = expanded(options.model), expanded(options.config or "")
    alone = options.model in built_in() or place.is_dir()
    if not alone and not (options.config and place.is_file() and rest.is_dir()):
        return 1  # not here, or not all of it: no reason to go and fetch it
    try:
        source = locate(options.model, options.config)
    except HoldfastError:
        return 1  # a run will say what is wrong
    return source.defaults.get("num_frames", _WAN_FRAMES if source.family == "wan" else 1)


def _facts(options: Options) -> dict[str, Any]:
    """The options as a record keeps them."""
    facts = {name: getattr(options, name) for name in _COMPARED}
    return facts | {"defaults": {k: v for k, v in options.defaults.items() if v is not None}}


def _changes(last: Mapping[str, Any], now: Mapping[str, Any], names: list[str]) -> str:
    return ", ".join(f"{name}: {last.get(name)} before, {now[name]} now" for name in names)


def _crew(hands: Hands, options: Options, jobs: int, show: Show) -> Crew:
    """As many workers as were asked for, as there are GPUs, and as there is work for."""
    load = hands.load or Recipe(options.model, options.precision, hands.budget, options.config)
    if hands.ray is not None:
        return CREWS["ray"](load, hands.device, hands.workers, jobs, hands.ray, show.note)
    devices = _devices(hands)[:jobs]
    if len(devices) == 1:
        return CREWS["here"](load, devices[0])
    return CREWS["local"](load, devices)


def _devices(hands: Hands) -> list[str]:
    """A device for each worker; with several GPUs of the kind, each gets its own in turn."""
    spread = hands.workers != 1 and hands.device in ("auto", *NUMBERED)
    several = gpus(hands.device) if spread and _any_gpu() else []
    if len(several) < 2:
        return [hands.device] * (hands.workers or 1)
    return [several[i % len(several)] for i in range(hands.workers or len(several))]


def _any_gpu() -> bool:
    """Asked of the system first: torch takes seconds to import."""
    return bool(discover(config=Config.load(probes="pci,kfd,nvml")).gpus)
