"""Networks of diffusers and transformers as their users get them, small and with random weights.

Each is a name, a way to make it, and a way to make what it is called with; nothing here knows of
the device that they will run on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from diffusers import (
    AutoencoderKL,
    AutoencoderKLWan,
    FluxTransformer2DModel,
    UNet2DConditionModel,
    WanTransformer3DModel,
)
from torch import nn
from transformers import (
    CLIPTextConfig,
    CLIPTextModel,
    CLIPVisionConfig,
    CLIPVisionModel,
    LlamaConfig,
    LlamaForCausalLM,
    T5Config,
    T5EncoderModel,
)

Inputs = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Case:
    """A network, and what it is called with."""

    make: Callable[[], nn.Module]
    inputs: Callable[[], Inputs]


def made(case: Case) -> tuple[nn.Module, Inputs]:
    """The network with the weights of a fixed seed, and its inputs."""
    torch.manual_seed(0)
    return case.make().eval(), case.inputs()


def _tokens(vocabulary: int, *shape: int) -> torch.Tensor:
    return torch.randint(3, vocabulary, shape)


def _unet() -> nn.Module:
    return UNet2DConditionModel(
        sample_size=8,
        block_out_channels=(16, 32),
        layers_per_block=1,
        norm_num_groups=8,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        attention_head_dim=(2, 4),
        cross_attention_dim=32,
    )


def _unet_inputs() -> Inputs:
    return {
        "sample": torch.randn(2, 4, 8, 8),
        "timestep": torch.tensor([3, 700]),
        "encoder_hidden_states": torch.randn(2, 7, 32),
    }


def _flux() -> nn.Module:
    return FluxTransformer2DModel(
        in_channels=4,
        num_layers=1,
        num_single_layers=1,
        attention_head_dim=16,
        num_attention_heads=2,
        joint_attention_dim=32,
        pooled_projection_dim=32,
        axes_dims_rope=(4, 4, 8),
        guidance_embeds=True,
    )


def _flux_inputs() -> Inputs:
    return {
        "hidden_states": torch.randn(2, 16, 4),
        "encoder_hidden_states": torch.randn(2, 6, 32),
        "pooled_projections": torch.randn(2, 32),
        "timestep": torch.tensor([0.1, 0.9]),
        "guidance": torch.tensor([3.5, 1.0]),
        "img_ids": torch.cartesian_prod(torch.zeros(1), torch.arange(4.0), torch.arange(4.0)),
        "txt_ids": torch.zeros(6, 3),
    }


def _wan() -> nn.Module:
    return WanTransformer3DModel(
        num_attention_heads=2,
        attention_head_dim=12,
        in_channels=4,
        out_channels=4,
        text_dim=16,
        freq_dim=32,
        ffn_dim=32,
        num_layers=2,
    )


def _wan_inputs() -> Inputs:
    return {
        "hidden_states": torch.randn(1, 4, 2, 4, 6),
        "timestep": torch.tensor([250]),
        "encoder_hidden_states": torch.randn(1, 5, 16),
    }


def _vae() -> nn.Module:
    return AutoencoderKL(
        block_out_channels=(16, 16),
        norm_num_groups=8,
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
        latent_channels=4,
    )


def _wan_vae() -> nn.Module:
    return AutoencoderKLWan(base_dim=4, z_dim=4, dim_mult=[1, 1, 1, 1], num_res_blocks=1)


def _clip_text() -> nn.Module:
    config = CLIPTextConfig(
        vocab_size=99,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=16,
        bos_token_id=0,
        eos_token_id=2,
        pad_token_id=1,
    )
    return CLIPTextModel(config)


def _clip_text_inputs() -> Inputs:
    mask = torch.ones(2, 12, dtype=torch.long)
    mask[1, 8:] = 0
    return {"input_ids": _tokens(99, 2, 12), "attention_mask": mask}


def _clip_vision() -> nn.Module:
    config = CLIPVisionConfig(
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        image_size=16,
        patch_size=4,
    )
    return CLIPVisionModel(config)


def _t5() -> nn.Module:
    config = T5Config(
        vocab_size=99,
        d_model=32,
        d_kv=8,
        d_ff=64,
        num_layers=2,
        num_heads=4,
        feed_forward_proj="gated-gelu",
    )
    return T5EncoderModel(config)


def _t5_inputs() -> Inputs:
    mask = torch.ones(2, 12, dtype=torch.long)
    mask[0, 9:] = 0
    return {"input_ids": _tokens(99, 2, 12), "attention_mask": mask}


def llama() -> LlamaForCausalLM:
    """Grouped heads, and an output layer that is the embedding."""
    config = LlamaConfig(
        vocab_size=99,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        tie_word_embeddings=True,
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=2,
    )
    return LlamaForCausalLM(config)


def _llama_inputs() -> Inputs:
    tokens = _tokens(99, 2, 12)
    return {"input_ids": tokens, "labels": tokens}


CASES: dict[str, Case] = {
    "diffusers UNet": Case(_unet, _unet_inputs),
    "diffusers Flux": Case(_flux, _flux_inputs),
    "diffusers Wan": Case(_wan, _wan_inputs),
    "diffusers VAE": Case(_vae, lambda: {"sample": torch.randn(1, 3, 16, 16)}),
    "diffusers Wan VAE": Case(_wan_vae, lambda: {"sample": torch.randn(1, 3, 5, 16, 16)}),
    "transformers CLIP text": Case(_clip_text, _clip_text_inputs),
    "transformers CLIP vision": Case(
        _clip_vision, lambda: {"pixel_values": torch.randn(2, 3, 16, 16)}
    ),
    "transformers T5": Case(_t5, _t5_inputs),
    "transformers Llama": Case(llama, _llama_inputs),
}
