"""ComfyUI's partial loading: its ModelPatcher, its operations, its offload streams and pinning.

The module's leaves become ComfyUI's operations of the same kind, which is what ComfyUI's own models
are made of; everything else is ComfyUI's own code with its own defaults.
"""

from __future__ import annotations

import importlib
import logging
from typing import Any

import torch
from torch import nn

from residency.shapes import Shape
from residency.system import Room, System

KINDS = ("Linear", "Conv1d", "Conv2d", "Conv3d", "GroupNorm", "LayerNorm", "Embedding")


def load_comfy() -> Any:
    """ComfyUI's package `comfy`; it decides about the device when it is first imported."""
    settings: Any = importlib.import_module("comfy.cli_args")
    settings.args.cpu = not torch.cuda.is_available()
    for part in ("model_management", "model_patcher", "ops"):
        importlib.import_module(f"comfy.{part}")
    logging.getLogger().setLevel(logging.WARNING)
    return importlib.import_module("comfy")


def use_operations(module: nn.Module, operations: Any) -> None:
    """Turn plain leaves into ComfyUI's operations of the same kind, in place."""
    kinds = {getattr(nn, kind): getattr(operations, kind) for kind in KINDS}
    for part in module.modules():
        if type(part) in kinds:
            part.__class__ = kinds[type(part)]


def move_the_rest(module: nn.Module, device: torch.device) -> None:
    """Put on `device` what no operation of ComfyUI brings there: lone parameters and buffers."""
    for part in module.modules():
        if hasattr(part, "comfy_cast_weights"):
            continue
        for parameter in part.parameters(recurse=False):
            parameter.data = parameter.data.to(device)
        for name, buffer in part.named_buffers(recurse=False):
            setattr(part, name, buffer.to(device))


class Holder(nn.Module):
    """What ComfyUI calls the model: an object around the network that it may write on."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.diffusion_model = network
        self.device = torch.device("cpu")


class ComfyUI(System):
    """A partial load with the weights' share of the budget."""

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape)
        self._patcher: Any = None
        self._comfy = load_comfy()

    def apply(self, module: nn.Module, room: Room) -> None:
        super().apply(module, room)
        comfy = self._comfy
        use_operations(module, comfy.ops.disable_weight_init)
        move_the_rest(module, room.device)
        self._patcher = comfy.model_patcher.ModelPatcher(
            Holder(module), load_device=room.device, offload_device=torch.device("cpu")
        )
        self._patcher.partially_load(room.device, extra_memory=room.weights_bytes)
        self.remark = f"{comfy.model_management.NUM_STREAMS} offload streams"

    def figures(self) -> dict[str, float]:
        return {"kept_bytes": self._patcher.loaded_size()}

    def undo(self) -> None:
        if self._patcher is not None:
            self._patcher.unpin_all_weights()
        self._patcher = None
        super().undo()
