"""One call of a pipeline: runs the three stages, measures them and records the run.

An exception raised by a listener comes out unchanged.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from holdfast.base.errors import HoldfastError, Misuse, Unsupported
from holdfast.base.interrupts import is_interrupt
from holdfast.pipeline.model.library_errors import explain_out_of_memory, first_line
from holdfast.pipeline.output import history
from holdfast.pipeline.run import live_runs
from holdfast.pipeline.run.families import FAMILIES
from holdfast.pipeline.run.progress import Event, Listener, Stage
from holdfast.pipeline.run.result import Cost, Residence, Result
from holdfast.pipeline.run.settings import Settings
from holdfast.residency.interrupt import InterruptProcessingException

if TYPE_CHECKING:
    from holdfast.pipeline.devices.streaming import StageWatch
    from holdfast.pipeline.run.pipeline import Pipeline


# Exceptions that come out of a run unchanged.
_UNCHANGED = (HoldfastError, InterruptProcessingException)


class Unloaded:
    """Takes the place of the stages of an unloaded pipeline."""

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
        self._watch: StageWatch | None = None
        self._residences: tuple[Residence, ...] = ()
        self._stopped: BaseException | None = None
        self._live = live_runs.LiveRun(pipe.source.model, settings.prompt)

    def execute(self) -> Result:
        """Draw, and add the run to the history."""
        started = time.perf_counter()
        with live_runs.track(self._live):
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

        from holdfast.pipeline.model.quiet import quiet

        pipe, settings = self._pipe, self._settings
        for device in pipe.devices.values():
            device.reset_peak()
        with torch.no_grad(), quiet():
            generator = torch.Generator("cpu").manual_seed(settings.seed)
            text_ms, conditioning = self._run_stage("text", 1, pipe.text, settings)
            noise = pipe.denoise.noise(settings, generator)
            inputs = (conditioning, noise, settings, generator, self._step_done)
            _, latents = self._run_stage("denoise", settings.steps, pipe.denoise, *inputs)
            decode_ms, frames = self._run_stage("decode", 1, pipe.decode, latents, settings)
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
            run_id=self._live.id,
        )

    def _run_stage(
        self, stage: Stage, total: int, work: Callable[..., Any], *inputs: Any
    ) -> tuple[float, Any]:
        device = self._pipe.devices[stage]
        self._report(Event(stage, 0, total, device.preparation))
        self._watch = self._watch_networks(stage)
        start = self._mark = time.perf_counter()
        with self._explain_errors(stage), explain_out_of_memory(f"running {stage!r}", device.name):
            done = work(*inputs)
            device.synchronize()
        elapsed_ms = (time.perf_counter() - start) * 1000
        if self._watch is not None:
            if stage != "denoise":
                self._watch.tick()
            self._residences += self._watch.residences()
        if stage != "denoise":  # its steps have reported themselves
            self._report(Event(stage, total, total))
        return elapsed_ms, done

    def _watch_networks(self, stage: Stage) -> StageWatch | None:
        shared = self._pipe.shared.get(self._pipe.devices[stage].name)
        if shared is None:
            return None
        from holdfast.pipeline.devices.streaming import StageWatch

        return StageWatch(shared, stage, list(FAMILIES[self._pipe.source.family].stages[stage]))

    def _report(self, event: Event) -> None:
        try:
            self._live.report(event)
            self._progress(event)
        except BaseException as exc:
            self._stopped = exc
            raise

    @contextlib.contextmanager
    def _explain_errors(self, stage: Stage) -> Iterator[None]:
        """Raise Unsupported for errors inside a network; those of listeners pass unchanged."""
        try:
            yield
        except Exception as exc:
            if exc is self._stopped or isinstance(exc, _UNCHANGED):
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
        self._report(Event("denoise", done, self._settings.steps))
        self._mark = time.perf_counter()

    def _remember(
        self, took_s: float, result: Result | None = None, failed: BaseException | None = None
    ) -> None:
        """Add the run to the history, however it ended. Never raises."""
        with contextlib.suppress(Exception):
            frames = None if result is None else result.frames
            history.keep(self._record(took_s, result, failed), frames)

    def _record(
        self, took_s: float, result: Result | None, failed: BaseException | None
    ) -> history.RunRecord:
        pipe, settings = self._pipe, self._settings
        cost, where = None if result is None else result.cost, pipe.device_names
        # A run that a listener, an interrupt or Ctrl-C stopped has not failed.
        is_failure = isinstance(failed, Exception) and not (
            failed is self._stopped or isinstance(failed, InterruptProcessingException)
        )
        error = first_line(failed)[: history.MAX_CHARACTERS] if failed and is_failure else None
        return history.RunRecord(
            id=self._live.id,
            pid=os.getpid(),
            began_s=self._live.began_s,
            took_s=round(took_s, 3),
            model=pipe.source.model,
            prompt=settings.prompt[: history.MAX_CHARACTERS],
            status="done" if failed is None else "failed" if error else "stopped",
            error=error,
            device=where if isinstance(where, str) else ", ".join(map("=".join, where.items())),
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

    def _peaks(self) -> dict[str, int]:
        devices = {device.name: device for device in self._pipe.devices.values()}
        peaks = {name: device.peak_bytes() for name, device in devices.items()}
        return {name: peak for name, peak in peaks.items() if peak is not None}
