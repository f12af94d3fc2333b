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
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from holdfast.base.errors import BadInput, HoldfastError, MissingDependency
from holdfast.base.interrupts import is_interrupt, undisturbed
from holdfast.base.offering import offer_once
from holdfast.pipeline import runs
from holdfast.pipeline.devices import Device
from holdfast.pipeline.families import FAMILIES
from holdfast.pipeline.placement import Placement, Wish, place
from holdfast.pipeline.progress import Event, Listener, nobody
from holdfast.pipeline.result import Result
from holdfast.pipeline.running import Run, Unloaded
from holdfast.pipeline.settings import Limits, Settings, settle
from holdfast.pipeline.sharing import share_cores
from holdfast.pipeline.sources import Source, locate, require_weights
from holdfast.pipeline.stages import STAGES, DecodeStage, DenoiseStage, Family, TextStage
from holdfast.pipeline.understanding import understood
from holdfast.topology import Topology

if TYPE_CHECKING:
    from holdfast.pipeline.streaming import Shared
    from holdfast.residency.recording.recorded import Recorded


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
        from holdfast.pipeline.assembly import assemble

        started = time.perf_counter()
        working = runs.Working(self.source.model)
        with runs.under_way(working):
            family = _family(self.source.family)
            heard = working.heard(progress)
            stages, shared = assemble(family, self.source, self.placement, heard)
        return Pipeline(self, stages, self.took_s + time.perf_counter() - started, shared)


class Pipeline(contextlib.AbstractContextManager["Pipeline"]):
    """A loaded model. Make one with `Pipeline.load`, then call it with a prompt.

        with Pipeline.load("tiny-flux") as pipe:
            pipe("a handwritten seven").save("seven.png")

    Not for several threads at once: schedulers are made anew for each run, but autoencoders and
    counters of memory keep state.
    """

    def __init__(
        self,
        prepared: Prepared,
        stages: tuple[TextStage, DenoiseStage, DecodeStage],
        load_s: float,
        shared: Mapping[str, Shared] | None = None,
    ) -> None:
        self.source = prepared.source
        self.limits = prepared.limits
        self.placement = prepared.placement
        self.text, self.denoise, self.decode = stages
        self.load_s = load_s
        self.shared = dict(shared or {})  # networks under a budget, by the names of devices
        self.runs = 0  # calls that came to their end

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
        offer_once()
        working = runs.Working(str(model))
        tell = working.heard(progress)
        with runs.under_way(working):
            tell(Event("load", 0, None, "finding files"))
            source = locate(model, config)
            require_weights(source)
            tell(Event("load", 0, None, "importing torch and diffusers"))
            share_cores()
            family = _family(source.family)
            _require_components(source, family)
            with understood(source):
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
        `budget` limits the memory taken on the device, activations included; weights that do not
        fit are streamed through it. `config` completes a single file.
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
        return Run(self, settings, progress).result()

    @contextlib.contextmanager
    def recording(self) -> Iterator[dict[str, Recorded]]:
        """Record inside of the block what weights under a budget do, for each device.

        Empty for a pipeline without a budget. Raises Misuse inside of another recording.
        """
        recorded: dict[str, Recorded] = {}
        with contextlib.ExitStack() as stack:
            if self.shared:
                from holdfast.residency.recording.recorded import recording

                for name, shared in self.shared.items():
                    title = f"{self.source.model} on {name}"
                    recorded[name] = stack.enter_context(recording(shared.group, title))
            yield recorded

    def unload(self) -> None:
        """Give the memory of the model back, on devices and host. The pipeline is of no use then.

        Memory that somebody else holds, such as a network taken out of a stage, stays with him.
        Does nothing the second time.
        """
        import gc

        gone: Any = Unloaded(self.source.model)
        self.text = self.denoise = self.decode = gone
        for shared in self.shared.values():
            shared.close()
        self.shared = {}
        gc.collect()  # networks and their parts refer to each other
        for device in {device.name: device for device in self.devices.values()}.values():
            device.tidy()

    def __exit__(self, *_: object) -> None:
        self.unload()

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
