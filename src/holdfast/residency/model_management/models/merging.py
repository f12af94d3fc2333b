"""Patches to weights (LoRA and the like), and merging them.

Merging gives the same bits on the same device whenever it is done: one order of operations, in fp32
(fp64 for fp64 weights), rounded once at the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from holdfast.base.errors import BadInput

Change = torch.Tensor | tuple[torch.Tensor, torch.Tensor]
MERGING_FACTOR = 3  # weight, change and sum are in memory in fp32 during a merge


@dataclass(frozen=True, slots=True)
class Patch:
    """weight · `strength_model` + `strength` · change.

    The change is a tensor of the weight's shape, or a pair (up, down) whose product has as many
    elements as the weight. Compared by identity.
    """

    strength: float
    change: Change
    strength_model: float = 1.0


def check_patch(key: str, patch: Patch, weight: torch.Tensor) -> Patch:
    """Return `patch` if it fits `weight`. Raises BadInput with the key and both shapes."""
    tensors = patch.change if isinstance(patch.change, tuple) else (patch.change,)
    shape, wanted = " × ".join(str(tuple(x.shape)) for x in tensors), tuple(weight.shape)
    if not weight.dtype.is_floating_point:
        raise BadInput(
            f"cannot patch {key!r}: its numbers are {weight.dtype}",
            expected="a weight of floating-point numbers",
        )
    if isinstance(patch.change, torch.Tensor):
        fits = tuple(patch.change.shape) == wanted
    else:
        up, down = patch.change
        fits = up.shape[1] == down.shape[0] and up.shape[0] * down[0].numel() == weight.numel()
    if not fits:
        raise BadInput(
            f"cannot patch {key!r}: a change of shape {shape} on a weight of shape {wanted}",
            expected="a tensor of the weight's shape, or (up, down) whose product has that shape",
        )
    return patch


def merge(
    weight: torch.Tensor, patches: Sequence[Patch], device: torch.device | None = None
) -> torch.Tensor:
    """A new tensor on `device` with the dtype of `weight` and all patches applied in order."""
    device = weight.device if device is None else device
    wide = torch.float64 if weight.dtype == torch.float64 else torch.float32
    with torch.no_grad():
        total = weight.detach().to(device).to(wide, copy=True)
        for patch in patches:
            if patch.strength_model != 1.0:
                total *= patch.strength_model
            if patch.strength != 0.0:
                total += patch.strength * _delta(patch.change, total)
        return total.to(weight.dtype)


def _delta(change: Change, like: torch.Tensor) -> torch.Tensor:
    if isinstance(change, torch.Tensor):
        return change.to(like.device, like.dtype)
    up, down = (tensor.to(like.device, like.dtype).flatten(1) for tensor in change)
    return (up @ down).reshape(like.shape)


def merging_bytes(weight_numel: int) -> int:
    """Temporary bytes of a merge, beside the weight."""
    return weight_numel * torch.float32.itemsize * MERGING_FACTOR
