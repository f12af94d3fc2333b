"""What a measured system is, and the two that keep all weights on the device.

A system gets a module, runs steps with it and lets go of it. It never measures itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from residency.shapes import Inputs, Shape


@dataclass(frozen=True)
class Room:
    """What a system may use of the device.

    `budget_bytes`: all device memory of the process, activations and the driver's own context
    among it. `keep_bytes`: instead of a budget, the weights that are to stay. `beside_bytes`: what
    a resident step takes beside the weights. All None: as much as there is.
    """

    device: torch.device
    budget_bytes: int | None = None
    keep_bytes: int | None = None
    beside_bytes: int | None = None

    @property
    def weights_bytes(self) -> int:
        """What is left of the budget for weights, for systems that count weights alone."""
        return max(0, (self.budget_bytes or 0) - (self.beside_bytes or 0))


class System:
    """One way to run a module.

    `in_ram` tells where it wants the weights at first, `warm_steps` how many steps it takes to
    settle. `movable` systems can be given another room without being applied anew. `remark` says
    in words how it was set up.
    """

    in_ram = True
    movable = False
    warm_steps = 2

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.module: Any = None
        self.remark = ""

    def apply(self, module: nn.Module, room: Room) -> None:
        """Take over `module`."""
        self.module = module

    def vacate(self) -> None:
        """Leave the device, to be moved; for movable systems."""
        raise NotImplementedError

    def move(self, room: Room) -> None:
        """Go on in another room, after `vacate`."""
        raise NotImplementedError

    def step(self, inputs: Inputs) -> torch.Tensor:
        """One pass."""
        with torch.no_grad():
            return self.module(**inputs)[0]

    def figures(self) -> dict[str, float]:
        """What the system itself tells about how it runs, asked after the steps."""
        return {}

    def undo(self) -> None:
        """Let go of the module and of everything that was allocated for it."""
        self.module = None


class Resident(System):
    """All weights on the device, eager."""

    in_ram = False


class Compiled(Resident):
    """All weights on the device, the blocks that repeat compiled by torch.compile."""

    def apply(self, module: nn.Module, room: Room) -> None:
        super().apply(module, room)
        self.module.compile_repeated_blocks()

    def undo(self) -> None:
        super().undo()
        torch.compiler.reset()


class Ours(System):
    """Holdfast, with the weights as they are."""

    pack = False
    movable = True
    warm_steps = 3  # finds the order, makes the plan, settles

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape)
        from holdfast import residency

        self._manage, self._unmanage = residency.manage, residency.unmanage
        self._managed: Any = None

    def apply(self, module: nn.Module, room: Room) -> None:
        super().apply(module, room)
        wanted: dict[str, Any] = {"budget": room.budget_bytes}
        if room.keep_bytes is not None:
            wanted = {"keep_bytes": room.keep_bytes}
        self._managed = self._manage(module, device=str(room.device), pack=self.pack, **wanted)

    def vacate(self) -> None:
        self._managed.let_go("another budget is tried")

    def move(self, room: Room) -> None:
        self._managed.memory.keep_bytes = room.keep_bytes
        self._managed.set_budget(room.budget_bytes)

    def figures(self) -> dict[str, float]:
        plan = self._managed.plan
        if plan is None:
            return {}
        return {
            "kept_bytes": plan.kept_bytes,
            "ring_bytes": plan.ring_bytes,
            "streamed_bytes": plan.streamed_bytes,
            "predicted_ms": plan.step_ms,
        }

    def undo(self) -> None:
        self._managed = None
        if self.module is not None:
            self._unmanage(self.module)
        super().undo()


class OursPacked(Ours):
    """Holdfast, with the weights packed without loss."""

    pack = True
