"""Models of real shapes with random weights, in the form that ComfyUI reads from a file.

Covers: state dicts of Flux and SD3.5, a small decoder, conditioning as ComfyUI's nodes make it.
Promise: the same shape and seed give the same numbers on the same kind of device.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any

import torch

SEED = 7
DTYPE = torch.bfloat16


@dataclass(frozen=True)
class Shape:
    """One model: its class in ComfyUI and how it is made; what one step is fed."""

    name: str
    about: str
    network: str
    config: dict[str, Any]
    latent: tuple[int, ...]
    context: tuple[int, ...]
    pooled: int
    cfg: float


_FLUX = {
    "in_channels": 16,
    "out_channels": 16,
    "vec_in_dim": 768,
    "context_in_dim": 4096,
    "hidden_size": 3072,
    "mlp_ratio": 4.0,
    "num_heads": 24,
    "depth": 19,
    "depth_single_blocks": 38,
    "axes_dim": [16, 56, 56],
    "theta": 10000,
    "patch_size": 2,
    "qkv_bias": True,
    "guidance_embed": True,
}
SHAPES = {
    "flux": Shape(
        "flux",
        "FLUX.1-dev, 1024 x 1024, 11.9 billion weights in bf16",
        "comfy.ldm.flux.model:Flux",
        _FLUX,
        (1, 16, 128, 128),
        (1, 512, 4096),
        768,
        1.0,
    ),
    "flux-tiny": Shape(
        "flux-tiny",
        "FLUX.1-dev with 1 + 2 blocks, 256 x 256, to try the benchmark",
        "comfy.ldm.flux.model:Flux",
        _FLUX | {"depth": 1, "depth_single_blocks": 2},
        (1, 16, 32, 32),
        (1, 64, 4096),
        768,
        1.0,
    ),
}


def state_dict(shape: Shape, device: torch.device) -> dict[str, torch.Tensor]:
    """Random weights in host memory; drawn on `device`, which is faster."""
    module, _, name = shape.network.partition(":")
    kind = getattr(importlib.import_module(module), name)
    operations = importlib.import_module("comfy.ops").disable_weight_init
    network = kind(**shape.config, dtype=DTYPE, device="meta", operations=operations)
    generator = torch.Generator(device).manual_seed(SEED)
    return {
        name: _drawn(name, weight, generator, device).cpu()
        for name, weight in network.state_dict().items()
    }


def _drawn(
    name: str, weight: torch.Tensor, generator: torch.Generator, device: torch.device
) -> torch.Tensor:
    """As training leaves them, roughly: small in wide layers, norms near one."""
    values = torch.randn(weight.shape, generator=generator, device=device, dtype=torch.float32)
    if name.endswith(".scale"):
        return (1 + values * 0.02).to(DTYPE)
    if weight.ndim < 2:
        return (values * 0.02).to(DTYPE)
    return (values * weight[0].numel() ** -0.5).to(DTYPE)


def decoder(channels: int) -> dict[str, torch.Tensor]:
    """A small decoder of ComfyUI's (TAESD) with random weights, as a file has it."""
    empty = importlib.import_module("comfy.taesd.taesd").TAESD(latent_channels=channels)
    generator = torch.Generator().manual_seed(SEED)
    host = torch.device("cpu")
    return {
        name: weight if weight.ndim == 0 else _drawn(name, weight, generator, host).float()
        for name, weight in empty.state_dict().items()
    }


def conditioning(shape: Shape) -> list[Any]:
    """What a text encoder would have given."""
    generator = torch.Generator().manual_seed(SEED + 1)
    text = torch.randn(shape.context, generator=generator)
    pooled = torch.randn((1, shape.pooled), generator=generator)
    return [[text, {"pooled_output": pooled, "guidance": 3.5}]]
