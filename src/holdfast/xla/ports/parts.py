"""Text encoders and autoencoders that several models share."""

from __future__ import annotations

from holdfast.xla.port import Port

CLIP = Port(name="clip", network="transformers:CLIPTextModel")
CLIP_POOLED = Port(name="clip-pooled", network="transformers:CLIPTextModelWithProjection")
T5 = Port(name="t5", network="transformers:T5EncoderModel")
UMT5 = Port(name="umt5", network="transformers:UMT5EncoderModel")

# Small beside the transformer, and convolutions all through: whole on every device.
_WHOLE = {".*": ()}
KL = Port(name="kl", network="diffusers:AutoencoderKL", rules=_WHOLE)
WAN_VAE = Port(
    name="wan-vae",
    network="diffusers:AutoencoderKLWan",
    rules=_WHOLE,
    precision="fp32",
)
