"""LoRA on a managed module: merged into weights that stay, a side path beside those that stream.

Weights on the host never change, so removing a LoRA is exact. Streamed weights are copied
unchanged; nothing is merged again in every pass.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from holdfast.base.errors import BadInput, NotFound
from holdfast.residency.managed.module_hooks import managed_of

_TABLE = "_holdfast_loras"
_ENDINGS = ((".lora_A.weight", ".lora_B.weight"), (".lora_down.weight", ".lora_up.weight"))
_PREFIXES = ("", "transformer.", "unet.", "diffusion_model.", "base_model.model.")
_numbers = itertools.count(1)


@dataclass(eq=False)
class LowRank:
    """What is added to one weight: strength times `up` @ `down`."""

    layer: nn.Module
    path: str
    down: torch.Tensor
    up: torch.Tensor
    scale: float

    def delta(self, device: torch.device) -> torch.Tensor:
        """The change of the weight, in float32."""
        down, up = (t.to(device, torch.float32) for t in (self.down, self.up))
        product = up.flatten(1) @ down.flatten(1) * self.scale
        return product.reshape(up.shape[0], *down.shape[1:])

    def beside(self, x: torch.Tensor) -> torch.Tensor:
        """The change of the layer's output, computed beside it."""
        down, up = (t.to(x.device, x.dtype, non_blocking=True) for t in (self.down, self.up))
        self.down, self.up = down, up  # stays on the device for the next pass
        if isinstance(self.layer, nn.Linear):
            return functional.linear(functional.linear(x, down), up) * self.scale
        layer: Any = self.layer
        inner = functional.conv2d(
            x, down, None, layer.stride, layer.padding, layer.dilation, layer.groups
        )
        return functional.conv2d(inner, up) * self.scale


def add_lora(module: nn.Module, lora: Mapping[str, torch.Tensor], strength: float = 1.0) -> int:
    """Add a LoRA (its tensors by name) to a module, managed or not; returns its number.

    Names are those of files: `PATH.lora_A.weight` and `PATH.lora_B.weight`, or `lora_down` and
    `lora_up`, with `PATH.alpha` if there is one. Raises BadInput for pairs that are not whole or do
    not fit, NotFound for a layer that is not there; nothing is added then.
    """
    pairs = [
        _pair(module, path, tensors, strength) for path, tensors in _group_by_layer(lora).items()
    ]
    if not pairs:
        raise BadInput(
            "this LoRA has no low-rank pairs",
            expected="tensors called PATH.lora_A.weight and PATH.lora_B.weight",
        )
    number = next(_numbers)
    hooks = [pair.layer.register_forward_hook(_side_path(module, pair)) for pair in pairs]
    module.__dict__.setdefault(_TABLE, {})[number] = (pairs, hooks)
    _note_change(module)
    return number


def remove_lora(module: nn.Module, number: int | None = None) -> None:
    """Remove a LoRA, or all without a number. The weights are exactly as before."""
    table = module.__dict__.get(_TABLE, {})
    if number is not None and number not in table:
        raise NotFound(
            f"{type(module).__name__} has no LoRA {number!r}",
            expected=f"one of {', '.join(map(str, table))}" if table else "one that was added",
        )
    for key in list(table) if number is None else [number]:
        for hook in table.pop(key)[1]:
            hook.remove()
    if not table:
        module.__dict__.pop(_TABLE, None)
    _note_change(module)


def merge_into(module: nn.Module, layer: nn.Module, weight: torch.Tensor) -> bool:
    """Add all LoRAs of a layer to a copy of its weight; returns whether there were any."""
    table = module.__dict__.get(_TABLE, {})
    found = [pair for pairs, _ in table.values() for pair in pairs if pair.layer is layer]
    if found:
        total = weight.to(torch.float32)
        for pair in found:
            total += pair.delta(weight.device)
        weight.copy_(total)
    return bool(found)


def patched_layers(module: nn.Module) -> dict[int, nn.Module]:
    """The LoRAs of each layer, by the id of its weight."""
    table = module.__dict__.get(_TABLE, {})
    return {id(p.layer.weight): p.layer for pairs, _ in table.values() for p in pairs}


def _side_path(module: nn.Module, pair: LowRank) -> Callable[..., Any]:
    def hook(layer: nn.Module, args: tuple[torch.Tensor, ...], output: torch.Tensor) -> Any:
        managed = managed_of(module)
        if managed is not None and managed.is_merged(layer):
            return None
        return output + pair.beside(args[0])

    return hook


def _note_change(module: nn.Module) -> None:
    managed = managed_of(module)
    if managed is not None:
        managed.let_go("a LoRA was added or removed")


def _group_by_layer(lora: Mapping[str, torch.Tensor]) -> dict[str, dict[str, torch.Tensor]]:
    """down, up and alpha by the path of their layer."""
    found: dict[str, dict[str, torch.Tensor]] = {}
    for name, tensor in lora.items():
        for down, up in _ENDINGS:
            for ending, role in ((down, "down"), (up, "up"), (".alpha", "alpha")):
                if name.endswith(ending):
                    found.setdefault(name.removesuffix(ending), {})[role] = tensor
    return found


def _pair(
    module: nn.Module, path: str, tensors: Mapping[str, torch.Tensor], strength: float
) -> LowRank:
    layer = _layer(module, path)
    if "down" not in tensors or "up" not in tensors:
        raise BadInput(f"the LoRA for {path!r} is not whole", expected="a pair of tensors")
    down, up = tensors["down"], tensors["up"]
    rank = down.shape[0]
    alpha = float(tensors["alpha"]) if "alpha" in tensors else float(rank)
    weight: Any = layer.weight
    shape = (up.shape[0], *down.shape[1:])
    if up.shape[1] != rank or shape != tuple(weight.shape):
        raise BadInput(
            f"the LoRA for {path!r} does not fit: {_sizes(up.shape)} and {_sizes(down.shape)} "
            f"for a weight of {_sizes(weight.shape)}",
            expected="a LoRA made for this model",
        )
    return LowRank(layer, path, down, up, strength * alpha / rank)


def _layer(module: nn.Module, path: str) -> nn.Module:
    for prefix in _PREFIXES:
        if path.startswith(prefix):
            try:
                layer = module.get_submodule(path.removeprefix(prefix))
            except AttributeError:
                continue
            if isinstance(layer, nn.Linear | nn.Conv2d):
                return layer
    raise NotFound(
        f"the LoRA changes {path!r}, and {type(module).__name__} has no such layer",
        expected="paths of linear or convolution layers of this model",
    )


def _sizes(shape: torch.Size) -> str:
    return " x ".join(map(str, shape))
