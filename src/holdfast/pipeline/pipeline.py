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
from collections.abc import Callable, Mapping
from typing import Any, cast

from holdfast.base.errors import HoldfastError, MissingDependency
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


class Pipeline:
    """A loaded model. Make one with `Pipeline.load`, then call it with a prompt."""

    def __init__(
        self,
        source: Source,
        limits: Limits,
        placement: Placement,
        stages: tuple[TextStage, DenoiseStage, DecodeStage],
        load_s: float,
    ) -> None:
        self.source = source
        self.limits = limits
        self.placement = placement
        self.text, self.denoise, self.decode = stages
        self.load_s = load_s

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
        Raises NotFound, BadInput, Unsupported, OutOfMemory or MissingDependency, each before
        or during loading, with nothing left on any device.
        """
        started = time.perf_counter()
        wish = Wish(device, budget, precision, topology).checked()
        progress(Event("load", 0, None, "finding files"))
        source = locate(model, config)
        require_weights(source)
        progress(Event("load", 0, None, "importing torch and diffusers"))
        share_cores()
        family = _family(source.family)
        limits = family.limits(source.configs(), source.options).replaced(source.defaults)
        placement = place(source, family, wish)
        stages = _load_stages(family, source, placement, progress)
        return cls(source, limits, placement, stages, time.perf_counter() - started)

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
        denoiser = FAMILIES[self.source.family].stages["denoise"][0]
        return names[str(self.placement.dtypes[denoiser]).removeprefix("torch.")]

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

    def result(self) -> Result:
        import torch

        pipe, settings = self._pipe, self._settings
        for device in pipe.devices.values():
            device.reset_peak()
        with torch.no_grad():
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
        return Result(frames=frames, settings=pipe.describe(settings), cost=cost)

    def _timed(self, stage: Stage, work: Callable[[], Any], total: int = 1) -> tuple[float, Any]:
        from holdfast.pipeline.memory_errors import translated

        device = self._pipe.devices[stage]
        self._progress(Event(stage, 0, total))
        start = self._mark = time.perf_counter()
        with translated(f"running {stage!r}", device.name):
            done = work()
            device.synchronize()
        elapsed_ms = (time.perf_counter() - start) * 1000
        if stage != "denoise":  # its steps have told about themselves
            self._progress(Event(stage, total, total))
        return elapsed_ms, done

    def _step_done(self, done: int) -> None:
        self._pipe.devices["denoise"].synchronize()
        now = time.perf_counter()
        self._step_ms.append((now - self._mark) * 1000)
        self._progress(Event("denoise", done, self._settings.steps))
        self._mark = time.perf_counter()

    def _peaks(self) -> dict[str, int]:
        devices = {device.name: device for device in self._pipe.devices.values()}
        peaks = {name: device.peak_bytes() for name, device in devices.items()}
        return {name: peak for name, peak in peaks.items() if peak is not None}


def _family(name: str) -> Family:
    """Also the moment when torch, diffusers and transformers are imported."""
    try:
        with contextlib.ExitStack() as stack:
            with contextlib.suppress(ImportError):  # the registry says better what is missing
                from holdfast.pipeline.quiet import quiet

                stack.enter_context(quiet())
            return FAMILIES[name]
    except HoldfastError:
        raise
    except RuntimeError as exc:
        # diffusers and transformers wrap a failed import of their own in one of these.
        if isinstance(exc.__cause__, KeyboardInterrupt):
            raise KeyboardInterrupt from exc
        raise MissingDependency(
            f"cannot load model family {name!r}: {exc}",
            expected="a working installation of the extra 'run'",
            hint="pip install --upgrade 'holdfast[run]'",
        ) from exc


def _load_stages(
    family: Family, source: Source, placement: Placement, progress: Listener
) -> tuple[TextStage, DenoiseStage, DecodeStage]:
    from holdfast.pipeline import components
    from holdfast.pipeline.memory_errors import translated

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
        build = getattr(family, stage)
        built.append(build(Parts(parts, device, dtype, configs, source.options)))
    progress(Event("load", done, len(dtypes)))
    return cast("tuple[TextStage, DenoiseStage, DecodeStage]", tuple(built))
