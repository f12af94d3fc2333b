"""Pipeline: text -> denoise -> decode as one object, for every model and device.

A run that fails or is interrupted leaves the pipeline usable. The same settings give the same
frames on the same device.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from holdfast.base.announce import offer_once
from holdfast.base.errors import BadInput, HoldfastError, MissingDependency
from holdfast.base.interrupts import is_interrupt, run_uninterrupted
from holdfast.pipeline.devices.omp_policy import share_cores
from holdfast.pipeline.model.library_errors import explain_config_errors
from holdfast.pipeline.model.placement import Placement, PlacementRequest, place
from holdfast.pipeline.model.sources import Source, list_weights, locate, require_weights
from holdfast.pipeline.run import live_runs
from holdfast.pipeline.run.call import Run, Unloaded
from holdfast.pipeline.run.families import FAMILIES
from holdfast.pipeline.run.progress import STAGES, Event, Listener, ignore
from holdfast.pipeline.run.result import Result
from holdfast.pipeline.run.settings import Limits, Settings, settle
from holdfast.residency.files.prefetch import prefetch
from holdfast.topology import Topology

if TYPE_CHECKING:
    from holdfast.pipeline.devices.streaming import NetworkGroup
    from holdfast.pipeline.devices.torch_devices import Device
    from holdfast.pipeline.run.stages import DecodeStage, DenoiseStage, Family, TextStage
    from holdfast.residency.recording.recording import ResidencyRecording


@dataclass(frozen=True, slots=True)
class Prepared:
    """A model that was found, checked and placed; its weights are not loaded yet."""

    source: Source
    limits: Limits
    placement: Placement
    took_s: float

    def check(self, prompt: object, **settings: Any) -> Settings:
        """The settings of a run; raises BadInput as the run would, without running."""
        return settle(self.limits, prompt, **settings)

    def load(self, progress: Listener = ignore) -> Pipeline:
        """Load the weights onto the devices. Raises BadInput or OutOfMemory."""
        from holdfast.pipeline.model.assembly import assemble

        started = time.perf_counter()
        run = live_runs.LiveRun(self.source.model)
        with live_runs.track(run):
            family = _family(self.source.family)
            stages, shared = assemble(family, self.source, self.placement, run.forward_to(progress))
        return Pipeline(self, stages, self.took_s + time.perf_counter() - started, shared)


class Pipeline(contextlib.AbstractContextManager["Pipeline"]):
    """A loaded model. Make one with `Pipeline.load`, then call it with a prompt.

        with Pipeline.load("tiny-flux") as pipe:
            pipe("a handwritten seven").save("seven.png")

    Not thread-safe: autoencoders and memory counters keep state.
    """

    def __init__(
        self,
        prepared: Prepared,
        stages: Sequence[Any],
        load_s: float,
        shared: dict[str, NetworkGroup],
    ) -> None:
        self.source = prepared.source
        self.limits = prepared.limits
        self.placement = prepared.placement
        self.text: TextStage = stages[0]
        self.denoise: DenoiseStage = stages[1]
        self.decode: DecodeStage = stages[2]
        self.load_s = load_s
        self.shared = shared  # networks under a budget, by device name
        self.runs = 0  # finished calls

    @classmethod
    def prepare(
        cls,
        model: str,
        device: str | Mapping[str, str] = "auto",
        budget: str | int | None = None,
        precision: str = "auto",
        *,
        config: str | None = None,
        progress: Listener = ignore,
        topology: Topology | None = None,
    ) -> Prepared:
        """The part of `load` before the weights, with the same arguments and errors."""
        started = time.perf_counter()
        request = PlacementRequest(device, budget, precision, topology).check()
        offer_once()
        run = live_runs.LiveRun(str(model))
        report = run.forward_to(progress)
        with live_runs.track(run):
            report(Event("load", 0, None, "finding files"))
            source = locate(model, config)
            require_weights(source)
            prefetch(list_weights(source))
            report(Event("load", 0, None, "importing torch and diffusers"))
            share_cores()
            family = _family(source.family)
            _require_components(source, family)
            with explain_config_errors(source):
                limits = family.limits(source.configs()).with_defaults(source.defaults)
            placement = place(source, family, request)
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
        progress: Listener = ignore,
        topology: Topology | None = None,
    ) -> Pipeline:
        """Load `model`: a built-in name, a diffusers folder, a safetensors file or a hub id.

        `device` is a name, "auto", or a name for each of the stages text, denoise and decode, as a
        mapping or as "text=cpu,denoise=cuda"; a stage that is not named is "auto".
        `budget` limits the memory taken on the device, activations included; weights that do not
        fit are streamed. `config` names the folder that completes a single file.
        Raises NotFound, BadInput, Unsupported, OutOfMemory or MissingDependency.
        """
        prepared = cls.prepare(
            model, device, budget, precision, config=config, progress=progress, topology=topology
        )
        return prepared.load(progress)

    @property
    def devices(self) -> dict[str, Device]:
        """The device of each stage."""
        return self.placement.devices

    @property
    def device_names(self) -> str | dict[str, str]:
        """The name of the device of all stages, or one for each stage."""
        names = {stage: self.devices[stage].name for stage in STAGES}
        return names["text"] if len(set(names.values())) == 1 else names

    @property
    def why(self) -> str:
        """Why it runs on these devices, in one line."""
        return self.placement.why

    @property
    def precision(self) -> str:
        """The dtype of the denoiser: "fp32", "bf16" or "fp16"."""
        names = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}
        parts = FAMILIES[self.source.family].stages["denoise"]
        dtype = next(self.placement.dtypes[p] for p in parts if p in self.placement.dtypes)
        return names[str(dtype).removeprefix("torch.")]

    def check(self, prompt: str, **settings: Any) -> Settings:
        """The settings of a call; raises BadInput as the call would, without running."""
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
        progress: Listener = ignore,
    ) -> Result:
        """Draw. None takes the model's default; without a seed, a random one.

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

    def draw(self, settings: Settings, progress: Listener = ignore) -> Result:
        """Draw with settings returned by `check`."""
        return Run(self, settings, progress).execute()

    @contextlib.contextmanager
    def recording(self) -> Iterator[dict[str, ResidencyRecording]]:
        """Record, by device, where weights under a budget are while the block runs.

        Empty for a pipeline without a budget. Raises Misuse if nested.
        """
        recorded: dict[str, ResidencyRecording] = {}
        with contextlib.ExitStack() as stack:
            if self.shared:
                from holdfast.residency.recording.recording import recording

                for name, shared in self.shared.items():
                    title = f"{self.source.model} on {name}"
                    recorded[name] = stack.enter_context(recording(shared.group, title))
            yield recorded

    def unload(self) -> None:
        """Free the memory of the model on devices and host. The pipeline cannot draw afterwards.

        Memory that is still referenced elsewhere is not freed. A second call does nothing.
        """
        import gc

        gone: Any = Unloaded(self.source.model)
        self.text = self.denoise = self.decode = gone
        for shared in self.shared.values():
            shared.close()
        self.shared = {}
        gc.collect()  # networks and their submodules form cycles
        for device in {device.name: device for device in self.devices.values()}.values():
            device.tidy()

    def __exit__(self, *_: object) -> None:
        self.unload()

    def describe(self, settings: Settings) -> dict[str, Any]:
        """Everything needed to draw the same again, as JSON values."""
        import holdfast

        completed = self.source.completed_from
        return {
            "model": self.source.model,
            **({} if completed is None else {"config": completed}),
            "family": self.source.family,
            **{name: getattr(settings, name) for name in settings.__slots__},
            "device": self.device_names,
            "precision": self.precision,
            "holdfast": holdfast.__version__,
        }


def _quiet() -> contextlib.AbstractContextManager[None]:
    from holdfast.pipeline.model.quiet import quiet

    return quiet()


def _family(name: str) -> Family:
    """The family; imports torch, diffusers and transformers."""
    try:
        with contextlib.ExitStack() as stack:
            with contextlib.suppress(ImportError):  # the registry gives a better error
                stack.enter_context(run_uninterrupted(_quiet))
            return FAMILIES[name]
    except HoldfastError:
        raise
    except RuntimeError as exc:
        # diffusers and transformers wrap their own failed imports in a RuntimeError.
        if is_interrupt(exc):
            raise KeyboardInterrupt from exc
        raise MissingDependency(
            f"cannot load model family {name!r}: {exc}",
            expected="a run installation of the extra 'run'",
            hint="pip install --upgrade 'holdfast[run]'",
        ) from exc


def _require_components(source: Source, family: Family) -> None:
    for names in family.stages.values():
        missing = [n for n in names if n not in source.components and n not in family.optional]
        if missing:
            raise BadInput(
                f"cannot load {source.model!r}: its model_index.json names no {missing[0]!r}",
                expected=f"{', '.join(names)}",
                hint="copy or download the whole model again",
            )
