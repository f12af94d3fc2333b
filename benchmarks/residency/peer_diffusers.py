"""Group offloading of diffusers, and accelerate's cpu_offload.

Neither has a budget: each takes the least memory that its way of working needs.
"""

from __future__ import annotations

from typing import Any

from accelerate.big_modeling import cpu_offload
from accelerate.hooks import remove_hook_from_submodules
from diffusers.hooks.group_offloading import apply_group_offloading
from torch import nn

from residency.shapes import Shape
from residency.system import Room, System


class GroupOffload(System):
    """diffusers' group offloading with `options`."""

    def __init__(self, shape: Shape, **options: Any) -> None:
        super().__init__(shape)
        self._options = options
        self.remark = ", ".join(name for name, value in options.items() if value is True)

    def apply(self, module: nn.Module, room: Room) -> None:
        super().apply(module, room)
        options = dict(self._options)
        if room.device.type == "cpu":  # it refuses streams there
            options |= {"use_stream": False, "record_stream": False, "low_cpu_mem_usage": False}
        apply_group_offloading(module, onload_device=room.device, **options)


class CpuOffload(System):
    """accelerate's cpu_offload: every leaf is fetched when it is called."""

    def apply(self, module: nn.Module, room: Room) -> None:
        super().apply(module, room)
        cpu_offload(module, execution_device=room.device)

    def undo(self) -> None:
        if self.module is not None:
            remove_hook_from_submodules(self.module)
        super().undo()


LEAF: dict[str, Any] = {"offload_type": "leaf_level", "use_stream": True}
BLOCK: dict[str, Any] = {
    "offload_type": "block_level",
    "num_blocks_per_group": 1,
    "use_stream": True,
}
NO_STREAM: dict[str, Any] = {"offload_type": "block_level", "num_blocks_per_group": 2}
