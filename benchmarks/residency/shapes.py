"""The models that are measured: real shapes, random weights, and the inputs of one step.

Covers: building a module without storage, drawing its weights, inputs.
Leaves to others: where the weights lie (weights.py), who moves them (systems).
Promise: the same shape, seed and kind of device give the same weights and inputs to the last bit.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from accelerate import init_empty_weights
from torch import nn

DTYPE = torch.bfloat16
SEED = 7

Inputs = dict[str, Any]


@dataclass(frozen=True)
class Shape:
    """One model: how its module is built and what one step is fed.

    `inputs` are the keyword arguments: a tuple stands for random values of that shape.
    """

    name: str
    about: str
    build: Callable[[], nn.Module]
    inputs: Callable[[], Inputs]

    def module(self) -> nn.Module:
        """The module with parameters that have a shape and no storage; buffers are real."""
        with init_empty_weights(include_buffers=False):
            module = self.build()
        for parameter in module.parameters():
            parameter.data = parameter.data.to(DTYPE)
        return module.eval().requires_grad_(False)

    def step_inputs(self, device: torch.device) -> Inputs:
        """What every step of this shape is fed."""
        generator = torch.Generator("cpu").manual_seed(SEED + 1)
        return {name: _tensor(value, generator, device) for name, value in self.inputs().items()}


def _tensor(value: Any, generator: torch.Generator, device: torch.device) -> Any:
    """A tensor for one description of an input."""
    if isinstance(value, dict):
        return {name: _tensor(inner, generator, device) for name, inner in value.items()}
    if isinstance(value, torch.Tensor):
        return value.to(device)
    if isinstance(value, tuple):
        return torch.randn(value, generator=generator).to(device, DTYPE)
    return value


def drawn(name: str, shape: torch.Size, generator: torch.Generator) -> torch.Tensor:
    """Random values for the parameter `name`, on the generator's device.

    Matrices: a normal with 1/sqrt(fan in), so that the output stays finite. Gains: around one.
    """
    values = torch.empty(shape, dtype=DTYPE, device=generator.device)
    if len(shape) < 2:
        values.normal_(1.0 if name.endswith("weight") else 0.0, 0.02, generator=generator)
    else:
        values.normal_(0.0, shape[1:].numel() ** -0.5, generator=generator)
    return values


def network(name: str) -> Any:
    """A class of diffusers."""
    return getattr(importlib.import_module("diffusers"), name)


def flux(*, tiny: bool = False) -> Shape:
    """FLUX.1: 4096 tokens of a 1024x1024 image and 512 of text."""

    def build() -> nn.Module:
        model = network("FluxTransformer2DModel")
        if tiny:
            return model(
                num_layers=2,
                num_single_layers=3,
                attention_head_dim=16,
                num_attention_heads=2,
                joint_attention_dim=32,
                pooled_projection_dim=32,
                in_channels=8,
                axes_dims_rope=(4, 6, 6),
                guidance_embeds=True,
            )
        return model(guidance_embeds=True)  # its defaults are FLUX.1's

    side, text, channels, joint, pooled = (4, 6, 8, 32, 32) if tiny else (64, 512, 64, 4096, 768)

    def inputs() -> Inputs:
        rows, columns = torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij")
        places = torch.stack([torch.zeros_like(rows), rows, columns], dim=-1)
        return {
            "hidden_states": (1, side * side, channels),
            "encoder_hidden_states": (1, text, joint),
            "pooled_projections": (1, pooled),
            "timestep": torch.tensor([0.5], dtype=DTYPE),
            "img_ids": places.reshape(-1, 3).to(DTYPE),
            "txt_ids": torch.zeros(text, 3, dtype=DTYPE),
            "guidance": torch.tensor([3.5]),
            "return_dict": False,
        }

    about = f"{side * side}+{text} tokens"
    return Shape("flux", about, build, inputs)


def wan(*, tiny: bool = False, large: bool = False) -> Shape:
    """Wan 2.1: 1.3B at 480p with 81 frames, or 14B at 480p with 17 frames."""

    def build() -> nn.Module:
        model = network("WanTransformer3DModel")
        if tiny:
            return model(
                num_attention_heads=2,
                attention_head_dim=12,
                in_channels=4,
                out_channels=4,
                text_dim=16,
                freq_dim=16,
                ffn_dim=32,
                num_layers=3,
                rope_max_seq_len=32,
            )
        if large:
            return model()  # its defaults are those of 14B
        return model(num_attention_heads=12, ffn_dim=8960, num_layers=30)

    latent = (1, 4, 2, 8, 8) if tiny else (1, 16, 5 if large else 21, 60, 104)

    def inputs() -> Inputs:
        return {
            "hidden_states": latent,
            "timestep": torch.tensor([500]),
            "encoder_hidden_states": (1, 8, 16) if tiny else (1, 512, 4096),
            "return_dict": False,
        }

    tokens = latent[2] * latent[3] * latent[4] // 4
    return Shape("wan14b" if large else "wan", f"{tokens} tokens", build, inputs)


def sdxl(*, tiny: bool = False) -> Shape:
    """The UNet of SDXL at 1024x1024, conditional and unconditional in one batch."""

    def build() -> nn.Module:
        return network("UNet2DConditionModel")(
            sample_size=8 if tiny else 128,
            block_out_channels=(32, 64) if tiny else (320, 640, 1280),
            layers_per_block=1 if tiny else 2,
            down_block_types=("DownBlock2D", "CrossAttnDownBlock2D")
            + (() if tiny else ("CrossAttnDownBlock2D",)),
            up_block_types=(() if tiny else ("CrossAttnUpBlock2D",))
            + ("CrossAttnUpBlock2D", "UpBlock2D"),
            transformer_layers_per_block=(1, 2) if tiny else (1, 2, 10),
            attention_head_dim=(2, 4) if tiny else (5, 10, 20),
            cross_attention_dim=32 if tiny else 2048,
            use_linear_projection=True,
            addition_embed_type="text_time",
            addition_time_embed_dim=8 if tiny else 256,
            projection_class_embeddings_input_dim=80 if tiny else 2816,
        )

    def inputs() -> Inputs:
        return {
            "sample": (2, 4, 8, 8) if tiny else (2, 4, 128, 128),
            "timestep": torch.tensor(500),
            "encoder_hidden_states": (2, 7, 32) if tiny else (2, 77, 2048),
            "added_cond_kwargs": {
                "text_embeds": (2, 32) if tiny else (2, 1280),
                "time_ids": torch.tensor([[1024, 1024, 0, 0, 1024, 1024]] * 2, dtype=DTYPE),
            },
            "return_dict": False,
        }

    about = "1024x1024, batch of 2"
    return Shape("sdxl", about, build, inputs)


def qwen(*, tiny: bool = False) -> Shape:
    """Qwen-Image: 4096 tokens of a 1024x1024 image and 256 of text."""

    def build() -> nn.Module:
        model = network("QwenImageTransformer2DModel")
        if tiny:
            return model(
                in_channels=8,
                out_channels=2,
                num_layers=3,
                attention_head_dim=16,
                num_attention_heads=2,
                joint_attention_dim=32,
                axes_dims_rope=(4, 6, 6),
            )
        return model()  # its defaults are Qwen-Image's

    side, text, channels, joint = (4, 6, 8, 32) if tiny else (64, 256, 64, 3584)

    def inputs() -> Inputs:
        return {
            "hidden_states": (1, side * side, channels),
            "encoder_hidden_states": (1, text, joint),
            "timestep": torch.tensor([0.5], dtype=DTYPE),
            "img_shapes": [[(1, side, side)]],
            "return_dict": False,
        }

    return Shape("qwen", f"{side * side}+{text} tokens", build, inputs)


SHAPES: dict[str, Callable[..., Shape]] = {
    "flux": flux,
    "wan": wan,
    "sdxl": sdxl,
    "wan14b": lambda *, tiny=False: wan(tiny=tiny, large=True),
    "qwen": qwen,
}
