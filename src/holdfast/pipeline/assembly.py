"""From a placed model to its three stages: components are loaded, and brought to where they run.

Covers: the order of loading, progress in components and bytes, one budget for each device.
Leaves to others: one component (components), what a stage does (families), streaming.
Promise: after a failure or an interrupt nothing is left on a device, and no limit of ours.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from holdfast.pipeline import components, runs
from holdfast.pipeline.memory_errors import translated
from holdfast.pipeline.placement import Placement
from holdfast.pipeline.progress import Event, Listener
from holdfast.pipeline.sources import Source
from holdfast.pipeline.stages import STAGES, DecodeStage, DenoiseStage, Family, Parts, TextStage
from holdfast.pipeline.streaming import Shared
from holdfast.pipeline.understanding import understood

Stages = tuple[TextStage, DenoiseStage, DecodeStage]


def assemble(
    family: Family, source: Source, placement: Placement, progress: Listener
) -> tuple[Stages, dict[str, Shared]]:
    """The stages, and the networks that share a budget, by the names of devices.

    Raises BadInput or OutOfMemory, and whatever `progress` raises.
    """
    assembly = _Assembly(source, placement, progress)
    try:
        built = [assembly.stage(family, stage) for stage in STAGES]
        assembly.tell(None)
    except BaseException:
        for shared in assembly.shared.values():
            shared.close()
        raise
    return cast("Stages", tuple(built)), assembly.shared


class _Assembly:
    def __init__(self, source: Source, placement: Placement, progress: Listener) -> None:
        self._source, self._placement, self._progress = source, placement, progress
        self._configs = source.configs()
        elements = source.elements() if placement.shares else {}
        dtypes = placement.dtypes
        self._sizes = {name: elements.get(name, 0) * dtypes[name].itemsize for name in dtypes}
        self._done = self._done_bytes = 0
        self._stopped: BaseException | None = None
        self.shared: dict[str, Shared] = {}

    def stage(self, family: Family, stage: str) -> Any:
        """One stage with all its components."""
        source, device = self._source, self._placement.devices[stage]
        names = [name for name in family.stages[stage] if name in source.components]
        parts: dict[str, Any] = {}
        for name in names:
            self.tell(name)
            with translated(f"loading {name!r}", device.name):
                parts[name] = self._component(stage, name)
            self._done += 1
            self._done_bytes += self._sizes[name]
        dtype = next(self._placement.dtypes[name] for name in names if name in self._configs)
        with understood(source):
            build = getattr(family, stage)
            built = build(Parts(parts, device, dtype, self._configs, source.options))
        return device.sampled(built) if stage == "denoise" else built

    def _component(self, stage: str, name: str) -> Any:
        """A component where it runs."""
        device, dtype = self._placement.devices[stage], self._placement.dtypes[name]
        is_network = name in self._configs
        shared = self._sharing(stage) if is_network else None
        if shared is None:
            part = components.load(self._source, name, dtype)
            if is_network:
                part = device.place(part)
                runs.loaded(self._source.model, name, device.name, part)
            return part
        try:
            part = components.load(self._source, name, dtype, self._half(name, 0))
            shared.add(name, part, self._half(name, 1))
            managed = shared.members[name]
            runs.loaded(self._source.model, name, device.name, part, managed)
        except Exception:
            if self._stopped is not None:  # a listener, whose exception comes out as it is
                raise self._stopped from None
            raise
        return part

    def _sharing(self, stage: str) -> Shared | None:
        device = self._placement.devices[stage]
        share = self._placement.shares.get(device.name)
        if share is None:
            return None
        if device.name not in self.shared:
            self.shared[device.name] = Shared(device, share.budget_bytes)
        return self.shared[device.name]

    def _half(self, name: str, before: int) -> Callable[[int, int], None]:
        """Weights are read, then prepared for the device: each is half of the way."""

        def told(done: int, total: int) -> None:
            share = (before + done / max(total, 1)) / 2
            self.tell(name, int(self._sizes[name] * share))

        return told

    def tell(self, label: str | None, more_bytes: int = 0) -> None:
        """Where loading is; `label` is the component under way."""
        event = Event("load", self._done, len(self._sizes), label)
        total = sum(self._sizes.values())
        if total:
            done = self._done_bytes + more_bytes
            event = Event("load", self._done, len(self._sizes), label, done, total)
        try:
            self._progress(event)
        except BaseException as exc:
            self._stopped = exc
            raise
