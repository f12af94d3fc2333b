"""Load the components of a placed model and build its three stages.

After a failure or an interrupt nothing stays on a device, and no memory limit of ours.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from holdfast.pipeline.devices.streaming import NetworkGroup
from holdfast.pipeline.model import components
from holdfast.pipeline.model.library_errors import explain_config_errors, explain_out_of_memory
from holdfast.pipeline.model.placement import Placement
from holdfast.pipeline.model.sources import Source
from holdfast.pipeline.run import live_runs
from holdfast.pipeline.run.progress import STAGES, Event, Listener
from holdfast.pipeline.run.stages import STAGE_CLASSES, Family, Parts


def assemble(
    family: Family, source: Source, placement: Placement, progress: Listener
) -> tuple[list[Any], dict[str, NetworkGroup]]:
    """Return the three stages and, by device name, the networks that share a budget.

    Raises BadInput or OutOfMemory, and whatever `progress` raises.
    """
    assembly = _Assembly(source, placement, progress)
    try:
        built = [assembly.stage(family, stage) for stage in STAGES]
        assembly.report(None)
    except BaseException:
        for shared in assembly.shared.values():
            shared.close()
        raise
    return built, assembly.shared


class _Assembly:
    def __init__(self, source: Source, placement: Placement, progress: Listener) -> None:
        self._source, self._placement, self._progress = source, placement, progress
        self._configs = source.configs()
        elements = source.elements() if placement.shares else {}
        dtypes = placement.dtypes
        self._sizes = {name: elements.get(name, 0) * dtypes[name].itemsize for name in dtypes}
        self._done = self._done_bytes = 0
        self._stopped: BaseException | None = None
        self.shared: dict[str, NetworkGroup] = {}

    def stage(self, family: Family, stage: str) -> Any:
        """Load the components of one stage and build it."""
        source, device = self._source, self._placement.devices[stage]
        names = [name for name in family.stages[stage] if name in source.components]
        parts: dict[str, Any] = {}
        for name in names:
            self.report(name)
            with explain_out_of_memory(f"loading {name!r}", device.name):
                parts[name] = self._component(stage, name)
            self._done += 1
            self._done_bytes += self._sizes[name]
        dtype = next(self._placement.dtypes[name] for name in names if name in self._configs)
        with explain_config_errors(source):
            given = Parts(parts, device, dtype, self._configs, source.options)
            return STAGE_CLASSES[stage](family, given)

    def _component(self, stage: str, name: str) -> Any:
        device, dtype = self._placement.devices[stage], self._placement.dtypes[name]
        is_network = name in self._configs
        shared = self._network_group(stage) if is_network else None
        if shared is None:
            part = components.load(self._source, name, dtype)
            if is_network:
                part = device.place(part)
                live_runs.note_network(self._source.model, name, device.name, part)
            return part
        try:
            loaded = self._source, name, dtype, self._half(name, 0)
            part, payloads = components.load_network(*loaded, shared.schemes)
            shared.add(name, part, payloads, self._half(name, 1))
            managed = shared.members[name]
            live_runs.note_network(self._source.model, name, device.name, part, managed)
        except Exception:
            if self._stopped is not None:  # raised by a listener: pass its exception on unchanged
                raise self._stopped from None
            raise
        return part

    def _network_group(self, stage: str) -> NetworkGroup | None:
        device = self._placement.devices[stage]
        share = self._placement.shares.get(device.name)
        if share is None:
            return None
        if device.name not in self.shared:
            self.shared[device.name] = NetworkGroup(device, share.budget_bytes)
        return self.shared[device.name]

    def _half(self, name: str, before: int) -> Callable[[int, int], None]:
        """A progress callback for reading (`before` 0) or preparing (1): each is half the work."""

        def report(done: int, total: int) -> None:
            fraction = (before + done / max(total, 1)) / 2
            self.report(name, int(self._sizes[name] * fraction))

        return report

    def report(self, label: str | None, more_bytes: int = 0) -> None:
        """Send an event; `label` names the component being loaded."""
        total = sum(self._sizes.values())
        bytes_ = (self._done_bytes + more_bytes, total) if total else ()
        try:
            self._progress(Event("load", self._done, len(self._sizes), label, *bytes_))
        except BaseException as exc:
            self._stopped = exc
            raise
