"""One call of a pipeline: the three stages one after the other, timed and explained.

Covers: progress, times, peaks, what networks under a budget did, failures in Holdfast's words.
Leaves to others: what a stage does (families), loading (assembly).
Promise: what a listener raises comes out as it is.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from holdfast.base.errors import HoldfastError, Misuse, Unsupported
from holdfast.base.interrupts import is_interrupt
from holdfast.pipeline import history, runs
from holdfast.pipeline.families import FAMILIES
from holdfast.pipeline.progress import Event, Listener, Stage
from holdfast.pipeline.result import Cost, Residence, Result
from holdfast.pipeline.settings import Settings
from holdfast.pipeline.understanding import first_line
from holdfast.residency.interrupt import InterruptProcessingException

if TYPE_CHECKING:
    from holdfast.pipeline.pipeline import Pipeline
    from holdfast.pipeline.streaming import Watch


def _where(pipe: Pipeline) -> str:
    """The device of all stages, or each with its own."""
    names = {stage: device.name for stage, device in pipe.devices.items()}
    if len(set(names.values())) == 1:
        return next(iter(names.values()))
    return ", ".join(f"{stage}={name}" for stage, name in names.items())


# What comes out of a run as it is.
_PASSED_ON = (HoldfastError, InterruptProcessingException)


class Unloaded:
    """Stands where the stages of a pipeline were."""

    def __init__(self, model: str) -> None:
        self._model = model

    def __call__(self, *_: Any, **__: Any) -> Any:
        raise Misuse(
            f"cannot draw with {self._model!r}: it was unloaded",
            expected="a pipeline that is loaded",
            hint="Pipeline.load(…) again",
        )

    noise = notes = __call__


class Run:
    """One call of a pipeline."""

    def __init__(self, pipe: Pipeline, settings: Settings, progress: Listener) -> None:
        self._pipe, self._settings, self._progress = pipe, settings, progress
        self._step_ms: list[float] = []
        self._mark = 0.0
        self._watch: Watch | None = None
        self._residences: tuple[Residence, ...] = ()
        self._stopped: BaseException | None = None
        self._working = runs.Working(pipe.source.model, settings.prompt)

    def result(self) -> Result:
        """Draw, and have it in the history of runs."""
        started = time.perf_counter()
        with runs.under_way(self._working):
            try:
                result = self._draw()
            except BaseException as exc:
                self._remember(time.perf_counter() - started, failed=exc)
                raise
        self._remember(time.perf_counter() - started, result)
        self._pipe.runs += 1
        return result

    def _draw(self) -> Result:
        import torch

        from holdfast.pipeline.quiet import quiet

        pipe, settings = self._pipe, self._settings
        for device in pipe.devices.values():
            device.reset_peak()
        with torch.no_grad(), quiet():
            generator = torch.Generator("cpu").manual_seed(settings.seed)
            text_ms, conditioning = self._timed("text", lambda: pipe.text(settings))
            noise = pipe.denoise.noise(settings, generator)
            _, latents = self._timed(
                "denoise",
                lambda: pipe.denoise(conditioning, noise, settings, generator, self._step_done),
                settings.steps,
            )
            decode_ms, frames = self._timed("decode", lambda: pipe.decode(latents, settings))
        cost = Cost(
            text_ms=text_ms,
            step_ms=tuple(self._step_ms),
            decode_ms=decode_ms,
            peak_bytes=self._peaks(),
            residences=self._residences,
        )
        return Result(
            frames=frames,
            settings=pipe.describe(settings),
            cost=cost,
            notes=pipe.text.notes(settings),
            run_id=self._working.id,
        )

    def _timed(self, stage: Stage, work: Callable[[], Any], total: int = 1) -> tuple[float, Any]:
        from holdfast.pipeline.memory_errors import translated

        device = self._pipe.devices[stage]
        self._tell(Event(stage, 0, total, device.preparation))
        self._watch = self._watched(stage)
        start = self._mark = time.perf_counter()
        with self._explained(stage), translated(f"running {stage!r}", device.name):
            done = work()
            device.synchronize()
        elapsed_ms = (time.perf_counter() - start) * 1000
        if self._watch is not None:
            if stage != "denoise":
                self._watch.tick()
            self._residences += self._watch.residences()
        if stage != "denoise":  # its steps have told about themselves
            self._tell(Event(stage, total, total))
        return elapsed_ms, done

    def _watched(self, stage: Stage) -> Watch | None:
        """Looks at the networks of a stage, where they are under a budget."""
        shared = self._pipe.shared.get(self._pipe.devices[stage].name)
        if shared is None:
            return None
        from holdfast.pipeline.streaming import Watch

        return Watch(shared, stage, list(FAMILIES[self._pipe.source.family].stages[stage]))

    def _tell(self, event: Event) -> None:
        try:
            self._working.tell(event)
            self._progress(event)
        except BaseException as exc:
            self._stopped = exc
            raise

    @contextlib.contextmanager
    def _explained(self, stage: Stage) -> Iterator[None]:
        """What a network stumbles over, in Holdfast's words; what a listener raises stays."""
        try:
            yield
        except Exception as exc:
            if exc is self._stopped or isinstance(exc, _PASSED_ON):
                raise
            if is_interrupt(exc):
                raise KeyboardInterrupt from exc
            raise Unsupported(
                f"{self._pipe.source.model!r} failed in {stage!r}: {first_line(exc)}",
                expected="a model whose parts and settings fit together",
                hint="other settings, another copy of the model, or HOLDFAST_DEBUG=1 to see where",
            ) from exc

    def _step_done(self, done: int) -> None:
        self._pipe.devices["denoise"].synchronize()
        now = time.perf_counter()
        self._step_ms.append((now - self._mark) * 1000)
        if self._watch is not None:
            self._watch.tick()
        self._tell(Event("denoise", done, self._settings.steps))
        self._mark = time.perf_counter()

    def _remember(
        self, took_s: float, result: Result | None = None, failed: BaseException | None = None
    ) -> None:
        """Have the run in the history, however it ended. Never raises."""
        with history.harmless():
            frames = None if result is None else result.frames
            history.keep(self._record(took_s, result, failed), frames)

    def _record(
        self, took_s: float, result: Result | None, failed: BaseException | None
    ) -> history.RunRecord:
        pipe, settings = self._pipe, self._settings
        cost = None if result is None else result.cost
        return history.RunRecord(
            id=self._working.id,
            pid=os.getpid(),
            began_s=self._working.began_s,
            took_s=round(took_s, 3),
            model=pipe.source.model,
            prompt=settings.prompt[: history.MOST_LETTERS],
            status=self._status(failed),
            error=self._error(failed),
            device=_where(pipe),
            seed=settings.seed,
            width=settings.width,
            height=settings.height,
            steps=settings.steps,
            frames=0 if result is None else len(result.frames),
            load_s=None if pipe.runs else round(pipe.load_s, 3),
            text_ms=None if cost is None else round(cost.text_ms, 3),
            step_ms=None if cost is None else round(cost.mean_step_ms, 3),
            decode_ms=None if cost is None else round(cost.decode_ms, 3),
            peak_bytes=None if cost is None else max(cost.peak_bytes.values(), default=None),
            saved_to=None,
        )

    def _error(self, failed: BaseException | None) -> str | None:
        if failed is None or not self._has_failed(failed):
            return None
        return first_line(failed)[: history.MOST_LETTERS]

    def _status(self, failed: BaseException | None) -> history.Status:
        if failed is None:
            return "done"
        return "failed" if self._has_failed(failed) else "stopped"

    def _has_failed(self, failed: BaseException | None) -> bool:
        """Somebody who stops a run raises in a listener, interrupts it, or presses Ctrl-C."""
        return isinstance(failed, Exception) and not (
            failed is self._stopped or isinstance(failed, InterruptProcessingException)
        )

    def _peaks(self) -> dict[str, int]:
        devices = {device.name: device for device in self._pipe.devices.values()}
        peaks = {name: device.peak_bytes() for name, device in devices.items()}
        return {name: peak for name, peak in peaks.items() if peak is not None}
