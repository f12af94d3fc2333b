"""Wan 2.1: forty equal blocks, compiled once."""

from __future__ import annotations

from holdfast.xla.port import Port
from holdfast.xla.ports import parts

PORT = Port(
    name="wan21",
    network="diffusers:WanTransformer3DModel",
    scan={"blocks": ("hidden_states",)},
    parts={"text_encoder": parts.UMT5, "vae": parts.WAN_VAE},
)
