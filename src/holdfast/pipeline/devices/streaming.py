"""Networks that share the memory budget of one device, and what they did in a stage.

Times are those of the device's own clock, so that they can be compared with predictions.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from itertools import pairwise
from typing import Any

from torch import nn

from holdfast.pipeline.devices.torch_devices import Device
from holdfast.pipeline.run.result import Residence
from holdfast.residency.managed.group import Group
from holdfast.residency.managed.manage import manage
from holdfast.residency.managed.managed import Managed
from holdfast.residency.packing.pack import decoder
from holdfast.residency.stream.weights import Payloads

# The first pass records the order, the next two the times; then the plan is final.
_UNSETTLED = 3


class NetworkGroup:
    """Networks that share the memory of a device, in execution order."""

    def __init__(self, device: Device, budget_bytes: int | None) -> None:
        self.device = device
        self.group = Group(device.carrier(), budget_bytes)
        self.members: dict[str, Managed] = {}

    @property
    def schemes(self) -> tuple[str, ...]:
        """How weights may be packed so that the device decodes them while it computes."""
        return decoder(self.group.carrier.device).schemes

    def add(
        self,
        name: str,
        module: nn.Module,
        payloads: Payloads,
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        """Add a network; `progress` is called with bytes prepared and bytes total.

        `payloads` are those of its weights that were read packed. Raises OutOfMemory,
        InterruptProcessingException, or whatever `progress` raises.
        """
        self.members[name] = manage(module, group=self.group, payloads=payloads, progress=progress)
        self.members[name].schedule.progress = None  # it reports loading only, not runs
        self.group.follow(list(self.members.values()))

    def close(self) -> None:
        """Release all networks with their weights; they cannot run again.

        Not `unmanage`, which would first copy every weight into memory of its own.
        """
        while self.members:
            _, managed = self.members.popitem()
            managed.let_go("unloaded")
            self.group.leave(managed)
        self.group.follow([])


class StageWatch:
    """Measures what the networks of a stage do, from its begin to its end."""

    def __init__(self, shared: NetworkGroup, stage: str, names: list[str]) -> None:
        self._shared, self._stage = shared, stage
        self._names = [name for name in names if name in shared.members]
        self._marks: list[tuple[Any, dict[str, int]]] = []
        self.tick()

    def tick(self) -> None:
        """Mark the end of a step, or of the stage."""
        mark = self._shared.group.carrier.mark(timed=True)
        passes = {name: managed.passes for name, managed in self._shared.members.items()}
        self._marks.append((mark, passes))

    def residences(self) -> tuple[Residence, ...]:
        """One Residence for each network. Waits for the device."""
        self._shared.group.carrier.synchronize()
        return tuple(self._residence(name) for name in self._names)

    def _residence(self, name: str) -> Residence:
        managed = self._shared.members[name]
        plan, (calls, took_ms) = managed.plan, self._step(name)
        kept = streamed = on_link = None
        if plan is not None:
            kept, on_link = plan.kept_bytes, plan.streamed_bytes
            streamed = sum(
                plan.chunks[v.chunk].raw_bytes for v in plan.visits if v.slot is not None
            )
        return Residence(
            network=name,
            stage=self._stage,
            device=self._shared.device.name,
            weight_bytes=managed.weight_bytes,
            kept_bytes=kept,
            streamed_bytes=streamed,
            link_bytes=on_link,
            predicted_ms=managed.predicted_ms(max(calls, 1)),
            took_ms=took_ms if self._stage == "denoise" else None,
        )

    def _step(self, name: str) -> tuple[int, float | None]:
        """Calls of a network in one step, and the median time of a step in ms."""
        between_ms = self._shared.group.carrier.between_ms
        steps = [
            (after[name] - before[name], between_ms(start, end))
            for (start, before), (end, after) in pairwise(self._marks)
            if after[name] > before[name]
        ]
        if not steps:
            return 0, None
        settled = steps[_UNSETTLED:] or steps[-1:]
        return steps[-1][0], statistics.median(ms for _, ms in settled)
