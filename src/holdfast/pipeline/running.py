"""One call of a pipeline: the three stages one after the other, timed and explained.

Covers: progress, times, peaks, what networks under a budget did, failures in Holdfast's words.
Leaves to others: what a stage does (families), loading (assembly).
Promise: what a listener raises comes out as it is.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from holdfast.base.errors import HoldfastError, Misuse, Unsupported
from holdfast.base.interrupts import is_interrupt
from holdfast.pipeline.families import FAMILIES
from holdfast.pipeline.progress import Event, Listener, Stage
from holdfast.pipeline.result import Cost, Residence, Result
from holdfast.pipeline.settings import Settings
from holdfast.pipeline.understanding import first_line
from holdfast.residency.interrupt import InterruptProcessingException

if TYPE_CHECKING:
    from holdfast.pipeline.pipeline import Pipeline
    from holdfast.pipeline.streaming import Watch

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

    def result(self) -> Result:
        """Draw."""
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
        notes = pipe.text.notes(settings)
        return Result(frames=frames, settings=pipe.describe(settings), cost=cost, notes=notes)

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

    def _peaks(self) -> dict[str, int]:
        devices = {device.name: device for device in self._pipe.devices.values()}
        peaks = {name: device.peak_bytes() for name, device in devices.items()}
        return {name: peak for name, peak in peaks.items() if peak is not None}
