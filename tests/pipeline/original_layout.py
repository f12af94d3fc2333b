"""Checkpoints as their makers name the tensors: the way back from what diffusers converts them to.

Each function takes the networks of a diffusers folder and gives what people download as one file.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from types import FunctionType
from typing import Any

import torch
from diffusers.loaders.single_file_utils import convert_flux_transformer_checkpoint_to_diffusers
from safetensors.torch import load_file

Tensors = dict[str, torch.Tensor]
Renames = list[tuple[str, str | Callable[[re.Match[str]], str]]]


def weights(place: Path) -> Tensors:
    """The tensors of one component's folder, under the names of diffusers."""
    return load_file(next(place.glob("*.safetensors")))


def sdxl(folder: Path, *, layers: int = 1, levels: int = 2) -> Tensors:
    """A whole SDXL checkpoint: U-Net, autoencoder, both text encoders."""
    unet = sdxl_unet(weights(folder / "unet"), layers=layers)
    return {
        **{f"model.diffusion_model.{name}": tensor for name, tensor in unet.items()},
        **{
            f"first_stage_model.{name}": tensor
            for name, tensor in _autoencoder(weights(folder / "vae"), levels).items()
        },
        **{
            f"conditioner.embedders.0.transformer.text_model.{name}": tensor
            for name, tensor in _clip(weights(folder / "text_encoder")).items()
        },
        **{
            f"conditioner.embedders.1.model.{name}": tensor
            for name, tensor in _open_clip(weights(folder / "text_encoder_2")).items()
        },
    }


def sdxl_unet(unet: Tensors, *, layers: int = 1) -> Tensors:
    """The U-Net alone, without a prefix; `layers` is how many each level has."""
    per_level = layers + 1
    attends = {name.split(".")[1] for name in unet if re.match(r"up_blocks\.\d+\.attentions", name)}

    def down(match: re.Match[str]) -> str:
        level, kind, layer = match.groups()
        number = 1 + int(level) * per_level + int(layer)
        return f"input_blocks.{number}.{int(kind == 'attentions')}"

    def up(match: re.Match[str]) -> str:
        level, kind, layer = match.groups()
        return f"output_blocks.{int(level) * per_level + int(layer)}.{int(kind == 'attentions')}"

    def upsample(match: re.Match[str]) -> str:
        level = match[1]
        return (
            f"output_blocks.{int(level) * per_level + layers}.{2 if level in attends else 1}.conv"
        )

    renames: Renames = [
        (r"^down_blocks\.(\d+)\.(resnets|attentions)\.(\d+)", down),
        (
            r"^down_blocks\.(\d+)\.downsamplers\.0\.conv",
            lambda match: f"input_blocks.{(int(match[1]) + 1) * per_level}.0.op",
        ),
        (r"^up_blocks\.(\d+)\.(resnets|attentions)\.(\d+)", up),
        (r"^up_blocks\.(\d+)\.upsamplers\.0\.conv", upsample),
        (r"^mid_block\.resnets\.(\d)", lambda match: f"middle_block.{2 * int(match[1])}"),
        (r"^mid_block\.attentions\.0", "middle_block.1"),
        (r"^time_embedding\.linear_1", "time_embed.0"),
        (r"^time_embedding\.linear_2", "time_embed.2"),
        (r"^add_embedding\.linear_1", "label_emb.0.0"),
        (r"^add_embedding\.linear_2", "label_emb.0.2"),
        (r"^conv_in", "input_blocks.0.0"),
        (r"^conv_norm_out", "out.0"),
        (r"^conv_out", "out.2"),
        (r"(blocks?\.\d+(\.0)?)\.norm1", r"\1.in_layers.0"),
        (r"(blocks?\.\d+(\.0)?)\.conv1", r"\1.in_layers.2"),
        (r"(blocks?\.\d+(\.0)?)\.norm2", r"\1.out_layers.0"),
        (r"(blocks?\.\d+(\.0)?)\.conv2", r"\1.out_layers.3"),
        (r"time_emb_proj", "emb_layers.1"),
        (r"conv_shortcut", "skip_connection"),
    ]
    # Inside attention there are layers called norm1 and norm2 too, which keep their names.
    inside = {name: tensor for name, tensor in unet.items() if "transformer_blocks" in name}
    outside = {name: tensor for name, tensor in unet.items() if name not in inside}
    return _renamed(outside, renames) | _renamed(inside, renames[:6])


def _autoencoder(vae: Tensors, levels: int) -> Tensors:
    renames: Renames = [
        (r"down_blocks\.(\d)\.resnets", r"down.\1.block"),
        (r"down_blocks\.(\d)\.downsamplers\.0", r"down.\1.downsample"),
        (r"up_blocks\.(\d)", lambda match: f"up.{levels - 1 - int(match[1])}"),
        (r"(up\.\d)\.resnets", r"\1.block"),
        (r"(up\.\d)\.upsamplers\.0", r"\1.upsample"),
        (r"mid_block\.resnets\.(\d)", lambda match: f"mid.block_{int(match[1]) + 1}"),
        (r"mid_block\.attentions\.0", "mid.attn_1"),
        (r"conv_norm_out", "norm_out"),
        (r"group_norm", "norm"),
        (r"to_out\.0", "proj_out"),
        (r"to_([qkv])", r"\1"),
        (r"conv_shortcut", "nin_shortcut"),
    ]
    renamed = _renamed(vae, renames)
    return {  # attention was made of convolutions of one point
        name: tensor[:, :, None, None] if "attn" in name and tensor.dim() == 2 else tensor
        for name, tensor in renamed.items()
    }


def _clip(encoder: Tensors) -> Tensors:
    found = {name.removeprefix("text_model."): tensor for name, tensor in encoder.items()}
    length = len(found["embeddings.position_embedding.weight"])
    return found | {"embeddings.position_ids": torch.arange(length)[None]}


def _open_clip(encoder: Tensors) -> Tensors:
    renames: Renames = [
        (r"^text_model\.", ""),
        (r"^encoder\.layers", "transformer.resblocks"),
        (r"^embeddings\.position_embedding\.weight", "positional_embedding"),
        (r"^embeddings\.token_embedding", "token_embedding"),
        (r"final_layer_norm", "ln_final"),
        (r"layer_norm(\d)", r"ln_\1"),
        (r"mlp\.fc1", "mlp.c_fc"),
        (r"mlp\.fc2", "mlp.c_proj"),
        (r"self_attn", "attn"),
    ]
    found = _renamed(encoder, renames)
    found["text_projection"] = found.pop("text_projection.weight").T.contiguous()
    for name in [name for name in found if ".q_proj." in name]:
        block, kind = name.split(".q_proj.")
        parts = [found.pop(f"{block}.{which}_proj.{kind}") for which in "qkv"]
        found[f"{block}.in_proj_{kind}"] = torch.cat(parts)
    return found | {"logit_scale": torch.tensor(4.6)}


def wan(transformer: Tensors) -> Tensors:
    """The denoiser, without a prefix."""
    renames: Renames = [
        (r"^condition_embedder\.time_embedder\.linear_1", "time_embedding.0"),
        (r"^condition_embedder\.time_embedder\.linear_2", "time_embedding.2"),
        (r"^condition_embedder\.text_embedder\.linear_1", "text_embedding.0"),
        (r"^condition_embedder\.text_embedder\.linear_2", "text_embedding.2"),
        (r"^condition_embedder\.time_proj", "time_projection.1"),
        (r"^scale_shift_table", "head.modulation"),
        (r"^proj_out", "head.head"),
        (r"scale_shift_table", "modulation"),
        (r"attn1", "self_attn"),
        (r"attn2", "cross_attn"),
        (r"to_out\.0", "o"),
        (r"to_([qkv])", r"\1"),
        (r"ffn\.net\.0\.proj", "ffn.0"),
        (r"ffn\.net\.2", "ffn.2"),
        (r"norm([23])", lambda match: {"2": "norm3", "3": "norm2"}[match[1]]),
    ]
    return _renamed(transformer, renames)


def flux(transformer: Tensors) -> Tensors:
    """The denoiser, without a prefix."""
    renames: Renames = [
        (r"^time_text_embed\.timestep_embedder\.linear_1", "time_in.in_layer"),
        (r"^time_text_embed\.timestep_embedder\.linear_2", "time_in.out_layer"),
        (r"^time_text_embed\.text_embedder\.linear_1", "vector_in.in_layer"),
        (r"^time_text_embed\.text_embedder\.linear_2", "vector_in.out_layer"),
        (r"^time_text_embed\.guidance_embedder\.linear_1", "guidance_in.in_layer"),
        (r"^time_text_embed\.guidance_embedder\.linear_2", "guidance_in.out_layer"),
        (r"^context_embedder", "txt_in"),
        (r"^x_embedder", "img_in"),
        (r"^proj_out", "final_layer.linear"),
        (r"^norm_out\.linear", "final_layer.adaLN_modulation.1"),
        (r"^single_transformer_blocks", "single_blocks"),
        (r"^transformer_blocks", "double_blocks"),
        (r"norm1\.linear", "img_mod.lin"),
        (r"norm1_context\.linear", "txt_mod.lin"),
        (r"(single.*)norm\.linear", r"\1modulation.lin"),
        (r"(single.*)attn\.norm_q\.weight", r"\1norm.query_norm.scale"),
        (r"(single.*)attn\.norm_k\.weight", r"\1norm.key_norm.scale"),
        (r"(single.*)proj_out", r"\1linear2"),
        (r"attn\.norm_q\.weight", "img_attn.norm.query_norm.scale"),
        (r"attn\.norm_k\.weight", "img_attn.norm.key_norm.scale"),
        (r"attn\.norm_added_q\.weight", "txt_attn.norm.query_norm.scale"),
        (r"attn\.norm_added_k\.weight", "txt_attn.norm.key_norm.scale"),
        (r"ff\.net\.(\d)(\.proj)?", r"img_mlp.\1"),
        (r"ff_context\.net\.(\d)(\.proj)?", r"txt_mlp.\1"),
        (r"attn\.to_out\.0", "img_attn.proj"),
        (r"attn\.to_add_out", "txt_attn.proj"),
    ]
    found = _renamed(transformer, renames)
    for name in [name for name in found if ".attn.to_q." in name]:
        block, kind = name.split(".attn.to_q.")
        parts = [found.pop(f"{block}.attn.to_{which}.{kind}") for which in "qkv"]
        if block.startswith("single"):
            joined = torch.cat([*parts, found.pop(f"{block}.proj_mlp.{kind}")])
            found[f"{block}.linear1.{kind}"] = joined
            continue
        found[f"{block}.img_attn.qkv.{kind}"] = torch.cat(parts)
        added = [found.pop(f"{block}.attn.add_{which}_proj.{kind}") for which in "qkv"]
        found[f"{block}.txt_attn.qkv.{kind}"] = torch.cat(added)
    for kind in ("weight", "bias"):
        name = f"final_layer.adaLN_modulation.1.{kind}"
        scale, shift = found[name].chunk(2)
        found[name] = torch.cat([shift, scale])
    return found


def flux_converter(width: int) -> Callable[..., Any]:
    """diffusers' converter for a FLUX of this width; its own holds the 3072 of the real one."""
    code = convert_flux_transformer_checkpoint_to_diffusers.__code__
    constants = tuple(width if value == 3072 else value for value in code.co_consts)
    return FunctionType(code.replace(co_consts=constants), {"torch": torch})


def _renamed(tensors: Tensors, renames: Renames) -> Tensors:
    found = {}
    for name, tensor in tensors.items():
        for pattern, new in renames:
            name = re.sub(pattern, new, name)
        found[name] = tensor
    return found
