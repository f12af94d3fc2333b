"""Text -> denoise -> decode as one object, whatever the model and the device.

Covers: loading a model's components to where they run, drawing, what a run cost.
Leaves to others: finding files (sources), the stages themselves (families), devices, files of
pictures (media).
Promise: a run that fails or is interrupted leaves the pipeline as it was; the same settings give
the same frames on the same device.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

from holdfast.base.errors import BadInput, HoldfastError, MissingDependency, Unsupported
from holdfast.base.interrupts import is_interrupt, undisturbed
from holdfast.pipeline.devices import Device
from holdfast.pipeline.families import FAMILIES
from holdfast.pipeline.placement import Placement, Wish, place
from holdfast.pipeline.progress import Event, Listener, Stage, nobody
from holdfast.pipeline.result import Cost, Result
from holdfast.pipeline.settings import Limits, Settings, settle
from holdfast.pipeline.sharing import share_cores
from holdfast.pipeline.sources import Source, locate, require_weights
from holdfast.pipeline.stages import STAGES, DecodeStage, DenoiseStage, Family, Parts, TextStage
from holdfast.topology import Topology


@dataclass(frozen=True, slots=True)
class Prepared:
    """A model that was found, understood and placed; its weights are still on the disk."""

    source: Source
    limits: Limits
    placement: Placement
    took_s: float

    def check(self, prompt: object, **settings: Any) -> Settings:
        """The settings a run would have; raises BadInput as the run would, and does no work."""
        return settle(self.limits, prompt, **settings)

    def load(self, progress: Listener = nobody) -> Pipeline:
        """Load the weights to where they run. Raises BadInput or OutOfMemory."""
        started = time.perf_counter()
        stages = _load_stages(_family(self.source.family), self, progress)
        return Pipeline(self, stages, self.took_s + time.perf_counter() - started)


class Pipeline:
    """A loaded model. Make one with `Pipeline.load`, then call it with a prompt.

    Not for several threads at once: schedulers are made anew for each run, but autoencoders and
    counters of memory keep state.
    """

    def __init__(
        self,
        prepared: Prepared,
        stages: tuple[TextStage, DenoiseStage, DecodeStage],
        load_s: float,
    ) -> None:
        self.source = prepared.source
        self.limits = prepared.limits
        self.placement = prepared.placement
        self.text, self.denoise, self.decode = stages
        self.load_s = load_s

    @classmethod
    def prepare(
        cls,
        model: str,
        device: str | Mapping[str, str] = "auto",
        budget: str | int | None = None,
        precision: str = "auto",
        *,
        config: str | None = None,
        progress: Listener = nobody,
        topology: Topology | None = None,
    ) -> Prepared:
        """All of `load` that comes before the weights, with the same arguments and errors."""
        started = time.perf_counter()
        wish = Wish(device, budget, precision, topology).checked()
        progress(Event("load", 0, None, "finding files"))
        source = locate(model, config)
        require_weights(source)
        progress(Event("load", 0, None, "importing torch and diffusers"))
        share_cores()
        family = _family(source.family)
        _require_components(source, family)
        with _understood(source):
            limits = family.limits(source.configs()).replaced(source.defaults)
        placement = place(source, family, wish)
        return Prepared(source, limits, placement, time.perf_counter() - started)

    @classmethod
    def load(
        cls,
        model: str,
        device: str | Mapping[str, str] = "auto",
        budget: str | int | None = None,
        precision: str = "auto",
        *,
        config: str | None = None,
        progress: Listener = nobody,
        topology: Topology | None = None,
    ) -> Pipeline:
        """Load `model`: a built-in name, a diffusers folder, a safetensors file or a hub id.

        `device` is a name, "auto", or a name for each of the stages text, denoise and decode, as a
        mapping or as "text=cpu,denoise=cuda"; a stage that is not named is "auto".
        `budget` limits the memory taken on the device. `config` completes a single file.
        Raises NotFound, BadInput, Unsupported, OutOfMemory or MissingDependency.
        """
        prepared = cls.prepare(
            model, device, budget, precision, config=config, progress=progress, topology=topology
        )
        return prepared.load(progress)

    @property
    def devices(self) -> dict[str, Device]:
        """Where each stage runs."""
        return self.placement.devices

    @property
    def why(self) -> str:
        """Why it runs there, in one line."""
        return self.placement.why

    @property
    def precision(self) -> str:
        """The number format of the denoiser."""
        names = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}
        parts = FAMILIES[self.source.family].stages["denoise"]
        dtype = next(self.placement.dtypes[p] for p in parts if p in self.placement.dtypes)
        return names[str(dtype).removeprefix("torch.")]

    def check(self, prompt: str, **settings: Any) -> Settings:
        """The settings a call would run with; raises BadInput as the call would, and no work."""
        return settle(self.limits, prompt, **settings)

    def __call__(
        self,
        prompt: str,
        height: int | None = None,
        width: int | None = None,
        steps: int | None = None,
        seed: int | None = None,
        guidance: float | None = None,
        num_frames: int | None = None,
        *,
        negative: str | None = None,
        progress: Listener = nobody,
    ) -> Result:
        """Draw. What is None takes the model's default; no seed takes a random one.

        Raises BadInput for settings the model cannot draw, OutOfMemory, and whatever `progress`
        raises.
        """
        settings = self.check(
            prompt,
            negative=negative,
            height=height,
            width=width,
            steps=steps,
            seed=seed,
            guidance=guidance,
            num_frames=num_frames,
        )
        return self.draw(settings, progress)

    def draw(self, settings: Settings, progress: Listener = nobody) -> Result:
        """Draw with settings that `check` gave."""
        return _Run(self, settings, progress).result()

    def describe(self, settings: Settings) -> dict[str, Any]:
        """Everything that is needed to draw the same again, for JSON and picture files."""
        import holdfast

        names = {self.devices[stage].name for stage in STAGES}
        device = names.pop() if len(names) == 1 else {s: self.devices[s].name for s in STAGES}
        completed = self.source.completed_from
        return {
            "model": self.source.model,
            **({} if completed is None else {"config": completed}),
            "family": self.source.family,
            **{name: getattr(settings, name) for name in settings.__slots__},
            "device": device,
            "precision": self.precision,
            "holdfast": holdfast.__version__,
        }


class _Run:
    """One call of a pipeline."""

    def __init__(self, pipe: Pipeline, settings: Settings, progress: Listener) -> None:
        self._pipe, self._settings, self._progress = pipe, settings, progress
        self._step_ms: list[float] = []
        self._mark = 0.0
        self._stopped: BaseException | None = None

    def result(self) -> Result:
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
        )
        notes = pipe.text.notes(settings)
        return Result(frames=frames, settings=pipe.describe(settings), cost=cost, notes=notes)

    def _timed(self, stage: Stage, work: Callable[[], Any], total: int = 1) -> tuple[float, Any]:
        from holdfast.pipeline.memory_errors import translated

        device = self._pipe.devices[stage]
        self._tell(Event(stage, 0, total))
        start = self._mark = time.perf_counter()
        with self._explained(stage), translated(f"running {stage!r}", device.name):
            done = work()
            device.synchronize()
        elapsed_ms = (time.perf_counter() - start) * 1000
        if stage != "denoise":  # its steps have told about themselves
            self._tell(Event(stage, total, total))
        return elapsed_ms, done

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
            if exc is self._stopped or isinstance(exc, HoldfastError):
                raise
            if is_interrupt(exc):
                raise KeyboardInterrupt from exc
            raise Unsupported(
                f"{self._pipe.source.model!r} failed in {stage!r}: {_first_line(exc)}",
                expected="a model whose parts and settings fit together",
                hint="other settings, another copy of the model, or HOLDFAST_DEBUG=1 to see where",
            ) from exc

    def _step_done(self, done: int) -> None:
        self._pipe.devices["denoise"].synchronize()
        now = time.perf_counter()
        self._step_ms.append((now - self._mark) * 1000)
        self._tell(Event("denoise", done, self._settings.steps))
        self._mark = time.perf_counter()

    def _peaks(self) -> dict[str, int]:
        devices = {device.name: device for device in self._pipe.devices.values()}
        peaks = {name: device.peak_bytes() for name, device in devices.items()}
        return {name: peak for name, peak in peaks.items() if peak is not None}


def _quiet() -> contextlib.AbstractContextManager[None]:
    from holdfast.pipeline.quiet import quiet

    return quiet()


def _family(name: str) -> Family:
    """Also the moment when torch, diffusers and transformers are imported."""
    try:
        with contextlib.ExitStack() as stack:
            with contextlib.suppress(ImportError):  # the registry says better what is missing
                stack.enter_context(undisturbed(_quiet))
            return FAMILIES[name]
    except HoldfastError:
        raise
    except RuntimeError as exc:
        # diffusers and transformers wrap a failed import of their own in one of these.
        if is_interrupt(exc):
            raise KeyboardInterrupt from exc
        raise MissingDependency(
            f"cannot load model family {name!r}: {exc}",
            expected="a working installation of the extra 'run'",
            hint="pip install --upgrade 'holdfast[run]'",
        ) from exc


@contextlib.contextmanager
def _understood(source: Source) -> Iterator[None]:
    """A configuration that says something else than its family expects is told as such."""
    try:
        yield
    except (KeyError, TypeError, AttributeError, IndexError, ValueError, ArithmeticError) as exc:
        if isinstance(exc, HoldfastError):
            raise
        raise BadInput(
            f"cannot understand the configuration of {source.model!r}: {_first_line(exc)}",
            expected=f"that of a {source.family} model",
            hint="copy or download the whole model again",
        ) from exc


def _first_line(exc: BaseException) -> str:
    text = str(exc).strip().partition("\n")[0]
    return f"{type(exc).__name__}: {text}" if text else type(exc).__name__


def _require_components(source: Source, family: Family) -> None:
    """Raises BadInput if a stage would have nothing to work with."""
    for names in family.stages.values():
        missing = [n for n in names if n not in source.components and n not in family.optional]
        if missing:
            raise BadInput(
                f"cannot load {source.model!r}: its model_index.json names no {missing[0]!r}",
                expected=f"{', '.join(names)}",
                hint="copy or download the whole model again",
            )


def _load_stages(
    family: Family, prepared: Prepared, progress: Listener
) -> tuple[TextStage, DenoiseStage, DecodeStage]:
    from holdfast.pipeline import components
    from holdfast.pipeline.memory_errors import translated

    source, placement = prepared.source, prepared.placement
    dtypes, configs = placement.dtypes, source.configs()
    built: list[Any] = []
    done = 0
    for stage in STAGES:
        device = placement.devices[stage]
        names = [name for name in family.stages[stage] if name in source.components]
        parts: dict[str, Any] = {}
        for name in names:
            progress(Event("load", done, len(dtypes), name))
            with translated(f"loading {name!r}", device.name):
                part = components.load(source, name, dtypes[name])
                parts[name] = device.place(part) if name in configs else part
            done += 1
        dtype = next(dtypes[name] for name in names if name in configs)
        with _understood(source):
            build = getattr(family, stage)
            built.append(build(Parts(parts, device, dtype, configs, source.options)))
    progress(Event("load", done, len(dtypes)))
    return cast("tuple[TextStage, DenoiseStage, DecodeStage]", tuple(built))
