"""FLUX.1: its rules come from diffusers' own plan, both lists of blocks are scanned."""

from __future__ import annotations

from holdfast.xla.port import Port
from holdfast.xla.ports import parts

PORT = Port(
    name="flux",
    network="diffusers:FluxTransformer2DModel",
    scan={
        "transformer_blocks": ("encoder_hidden_states", "hidden_states"),
        "single_transformer_blocks": ("encoder_hidden_states", "hidden_states"),
    },
    parts={"text_encoder": parts.CLIP, "text_encoder_2": parts.T5, "vae": parts.KL},
)
