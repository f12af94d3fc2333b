"""Recognises the denoiser in a single file by the names and shapes of its tensors.

Knows FLUX.1, Wan 2.1/2.2 and SDXL, in their original layouts and in that of diffusers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from holdfast.residency.files.checkpoint import TensorInfo

_PREFIX = "model.diffusion_model."
# The U-Net of SDXL has only one shape.
_SDXL: dict[str, Any] = {
    "sample_size": 128,
    "block_out_channels": (320, 640, 1280),
    "layers_per_block": 2,
    "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
    "up_block_types": ("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"),
    "transformer_layers_per_block": (1, 2, 10),
    "attention_head_dim": (5, 10, 20),
    "cross_attention_dim": 2048,
    "use_linear_projection": True,
    "addition_embed_type": "text_time",
    "addition_time_embed_dim": 256,
    "projection_class_embeddings_input_dim": 2816,
}

Tensors = Mapping[str, TensorInfo]


def guess(tensors: Tensors) -> tuple[str, dict[str, Any]] | None:
    """The diffusers class and its configuration; None for an unknown network."""
    inside = {n.removeprefix(_PREFIX): t for n, t in tensors.items() if n.startswith(_PREFIX)}
    named = inside or dict(tensors)
    for class_name, read in _READERS.items():
        try:
            config = read(named)
        except (KeyError, IndexError, ZeroDivisionError):
            continue
        return class_name, config
    return None


def count_denoiser_elements(tensors: Tensors) -> int:
    """The number of elements of the denoiser in a file."""
    inside = [t for n, t in tensors.items() if n.startswith(_PREFIX)]
    return sum(t.elements for t in inside or tensors.values())


def _first(tensors: Tensors, *names: str) -> TensorInfo:
    return tensors[next((name for name in names if name in tensors), names[0])]


def _count_blocks(tensors: Tensors, *names: str) -> int:
    pattern = re.compile(rf"(?:{'|'.join(names)})\.(\d+)\.")
    indices = [int(m[1]) for name in tensors if (m := pattern.match(name))]
    if not indices:
        raise KeyError(names[0])
    return max(indices) + 1


def _flux(tensors: Tensors) -> dict[str, Any]:
    width, channels = _first(tensors, "img_in.weight", "x_embedder.weight").shape
    head = _first(
        tensors,
        "double_blocks.0.img_attn.norm.key_norm.scale",
        "transformer_blocks.0.attn.norm_k.weight",
    ).shape[0]
    text = _first(tensors, "txt_in.weight", "context_embedder.weight").shape[1]
    pooled = _first(
        tensors, "vector_in.in_layer.weight", "time_text_embed.text_embedder.linear_1.weight"
    ).shape[1]
    return {
        "in_channels": channels,
        "num_layers": _count_blocks(tensors, "double_blocks", "transformer_blocks"),
        "num_single_layers": _count_blocks(tensors, "single_blocks", "single_transformer_blocks"),
        "attention_head_dim": head,
        "num_attention_heads": width // head,
        "joint_attention_dim": text,
        "pooled_projection_dim": pooled,
        "guidance_embeds": any("guidance" in name for name in tensors),
        "axes_dims_rope": (head // 8, head * 7 // 16, head * 7 // 16),
    }


def _wan(tensors: Tensors) -> dict[str, Any]:
    if not any(name.endswith(("head.modulation", "scale_shift_table")) for name in tensors):
        raise KeyError("head.modulation")
    patch = tensors["patch_embedding.weight"].shape
    feed = _first(tensors, "blocks.0.ffn.0.weight", "blocks.0.ffn.net.0.proj.weight").shape[0]
    text = _first(
        tensors, "text_embedding.0.weight", "condition_embedder.text_embedder.linear_1.weight"
    ).shape[1]
    moment = _first(
        tensors, "time_embedding.0.weight", "condition_embedder.time_embedder.linear_1.weight"
    ).shape[1]
    out = _first(tensors, "head.head.weight", "proj_out.weight").shape[0]
    return {
        "patch_size": tuple(patch[2:]),
        "in_channels": patch[1],
        "out_channels": out // (patch[2] * patch[3] * patch[4]),
        "num_attention_heads": patch[0] // 128,
        "attention_head_dim": 128,
        "num_layers": _count_blocks(tensors, "blocks"),
        "ffn_dim": feed,
        "text_dim": text,
        "freq_dim": moment,
        "cross_attn_norm": True,
        "qk_norm": "rms_norm_across_heads",
    }


def _sdxl(tensors: Tensors) -> dict[str, Any]:
    shape = _first(tensors, "input_blocks.0.0.weight", "conv_in.weight").shape
    _first(tensors, "label_emb.0.0.weight", "add_embedding.linear_1.weight")
    if shape[:2] != (320, 4):
        raise KeyError("320 x 4")
    return dict(_SDXL)


_READERS = {
    "FluxTransformer2DModel": _flux,
    "WanTransformer3DModel": _wan,
    "UNet2DConditionModel": _sdxl,
}
