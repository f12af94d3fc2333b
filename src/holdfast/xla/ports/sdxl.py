"""Stable Diffusion XL: convolutions are not split; the blocks of a U-Net all differ."""

from __future__ import annotations

from holdfast.xla.port import Port
from holdfast.xla.ports import parts

PORT = Port(
    name="sdxl",
    network="diffusers:UNet2DConditionModel",
    parts={"text_encoder": parts.CLIP, "text_encoder_2": parts.CLIP_POOLED, "vae": parts.KL},
)
