"""mmgp: pinned memory, asynchronous transfers, its own budget for weights."""

from __future__ import annotations

import importlib
from typing import Any

import torch
from torch import nn

from residency.shapes import Shape
from residency.system import Room, System

MEGABYTE = 1 << 20  # mmgp's
offload: Any = importlib.import_module("mmgp.offload")


class Mmgp(System):
    """mmgp with the budget that is left for weights; nothing is quantized."""

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape)
        self._manager: Any = None

    def apply(self, module: nn.Module, room: Room) -> None:
        super().apply(module, room)
        budget = max(1, room.weights_bytes // MEGABYTE)  # 0 would mean no limit
        try:
            self._manager = offload.all(
                {"transformer": module},
                pinnedMemory=True,
                asyncTransfers=True,
                quantizeTransformer=False,
                convertWeightsFloatTo=None,
                budgets={"transformer": budget, "*": budget},
                verboseLevel=0,
            )
        except BaseException:
            torch.set_default_device(None)
            raise

    def undo(self) -> None:
        if self._manager is not None:
            self._manager.release()
        self._manager = None
        torch.set_default_device(None)  # mmgp leaves it at the GPU
        super().undo()
