"""The models that have a port, and the text encoders and autoencoders that they share."""

from __future__ import annotations

from holdfast.xla.port import Port

CLIP = Port(name="clip", network="transformers:CLIPTextModel")
CLIP_POOLED = Port(name="clip-pooled", network="transformers:CLIPTextModelWithProjection")
T5 = Port(name="t5", network="transformers:T5EncoderModel")
UMT5 = Port(name="umt5", network="transformers:UMT5EncoderModel")

# Small beside the transformer, and convolutions all through: whole on every device.
_WHOLE = {".*": ()}
KL = Port(name="kl", network="diffusers:AutoencoderKL", rules=_WHOLE)
WAN_VAE = Port(name="wan-vae", network="diffusers:AutoencoderKLWan", rules=_WHOLE, precision="fp32")

# Its rules come from diffusers' own plan, both lists of blocks are scanned.
FLUX = Port(
    name="flux",
    network="diffusers:FluxTransformer2DModel",
    scan={
        "transformer_blocks": ("encoder_hidden_states", "hidden_states"),
        "single_transformer_blocks": ("encoder_hidden_states", "hidden_states"),
    },
    parts={"text_encoder": CLIP, "text_encoder_2": T5, "vae": KL},
)
# Convolutions are not split; the blocks of a U-Net all differ.
SDXL = Port(
    name="sdxl",
    network="diffusers:UNet2DConditionModel",
    parts={"text_encoder": CLIP, "text_encoder_2": CLIP_POOLED, "vae": KL},
)
# Forty equal blocks, compiled once.
WAN21 = Port(
    name="wan21",
    network="diffusers:WanTransformer3DModel",
    scan={"blocks": ("hidden_states",)},
    parts={"text_encoder": UMT5, "vae": WAN_VAE},
)
# A transformer for strong noise, one for weak; model_index.json says from where.
WAN22 = Port(
    name="wan22",
    network=WAN21.network,
    scan=WAN21.scan,
    parts={"transformer_2": WAN21, **WAN21.parts},
)
