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

    `budget_bytes`: all device memory of the run, activations among it. `keep_bytes`: instead of a
    budget, the weights that are to stay. `activation_bytes`: what a resident step takes beside the
    weights. All None: as much as there is.
    """

    device: torch.device
    budget_bytes: int | None = None
    keep_bytes: int | None = None
    activation_bytes: int | None = None

    @property
    def weights_bytes(self) -> int:
        """What is left of the budget for weights, for systems that count weights alone."""
        return max(0, (self.budget_bytes or 0) - (self.activation_bytes or 0))


class System:
    """One way to run a module. `in_ram` tells where it wants the weights at first."""

    in_ram = True

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.module: Any = None
        self.remark = ""

    def apply(self, module: nn.Module, room: Room) -> None:
        """Take over `module`."""
        self.module = module

    def step(self, inputs: Inputs) -> torch.Tensor:
        """One pass."""
        with torch.no_grad():
            return self.module(**inputs)[0]

    def undo(self) -> None:
        """Let go of the module and of everything that was allocated for it."""
        self.module = None


class Resident(System):
    """All weights on the device, eager."""

    in_ram = False


class Compiled(Resident):
    """All weights on the device, each block compiled by torch.compile."""

    def apply(self, module: nn.Module, room: Room) -> None:
        super().apply(module, room)
        for block in self.shape.repeated(module):
            block.compile()

    def undo(self) -> None:
        super().undo()
        torch.compiler.reset()


class Ours(System):
    """Holdfast, with the weights as they are."""

    pack = False

    def apply(self, module: nn.Module, room: Room) -> None:
        from holdfast import residency

        super().apply(module, room)
        wanted: dict[str, Any] = {"budget": room.budget_bytes}
        if room.keep_bytes is not None:
            wanted = {"keep_bytes": room.keep_bytes}
        residency.manage(module, device=str(room.device), pack=self.pack, **wanted)

    def undo(self) -> None:
        from holdfast import residency

        if self.module is not None:
            residency.unmanage(self.module)
        super().undo()


class OursPacked(Ours):
    """Holdfast, with the weights packed without loss."""

    pack = True
