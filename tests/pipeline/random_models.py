"""Models with random weights, in diffusers layout: the shapes that the shipped ones do not have.

Tokenizers are those of tiny-flux, as building them is not what is tested.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import torch
from diffusers import (
    AutoencoderKL,
    AutoencoderKLWan,
    EulerAncestralDiscreteScheduler,
    EulerDiscreteScheduler,
    FluxTransformer2DModel,
    StableDiffusionXLPipeline,
    UNet2DConditionModel,
    UniPCMultistepScheduler,
    WanPipeline,
    WanTransformer3DModel,
)
from transformers import (
    CLIPTextConfig,
    CLIPTextModel,
    CLIPTextModelWithProjection,
    CLIPTokenizer,
    T5TokenizerFast,
    UMT5Config,
    UMT5EncoderModel,
)

from holdfast.pipeline.model.sources import BUILT_IN

TINY_FLUX = BUILT_IN / "tiny-flux"


def flux_without_guidance(folder: Path) -> Path:
    """As FLUX.1 schnell: no embedding of the guidance."""
    shutil.copytree(TINY_FLUX, folder)
    torch.manual_seed(0)
    config = FluxTransformer2DModel.load_config(TINY_FLUX / "transformer")
    model = FluxTransformer2DModel.from_config(config, guidance_embeds=False)
    shutil.rmtree(folder / "transformer")
    model.save_pretrained(folder / "transformer")
    return folder


def sdxl(folder: Path, *, adds_noise: bool = False) -> Path:
    """SDXL with four latent channels, two levels, and one of two schedulers."""
    torch.manual_seed(0)
    tokenizer = CLIPTokenizer.from_pretrained(TINY_FLUX / "tokenizer")
    text = CLIPTextConfig(
        vocab_size=len(tokenizer),
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=3,
        num_attention_heads=2,
        max_position_embeddings=tokenizer.model_max_length,
        projection_dim=24,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    unet = UNet2DConditionModel(
        sample_size=8,
        block_out_channels=(16, 32),
        layers_per_block=1,
        norm_num_groups=8,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        attention_head_dim=(2, 4),
        transformer_layers_per_block=(1, 1),
        use_linear_projection=True,
        addition_embed_type="text_time",
        addition_time_embed_dim=8,
        projection_class_embeddings_input_dim=24 + 6 * 8,
        cross_attention_dim=32,
    )
    vae = AutoencoderKL(
        block_out_channels=(16, 16),
        norm_num_groups=8,
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
        latent_channels=4,
    )
    scheduler = EulerAncestralDiscreteScheduler if adds_noise else EulerDiscreteScheduler
    StableDiffusionXLPipeline(
        vae=vae,
        unet=unet,
        text_encoder=CLIPTextModel(text),
        text_encoder_2=CLIPTextModelWithProjection(text),
        tokenizer=tokenizer,
        tokenizer_2=tokenizer,
        scheduler=scheduler(beta_schedule="scaled_linear", beta_start=0.00085, beta_end=0.012),
    ).save_pretrained(folder)
    return folder


def wan(folder: Path, *, two: bool = False, moment_per_token: bool = False) -> Path:
    """Wan 2.1; with two transformers as 2.2 A14B, or a moment for each token as 2.2 TI2V."""
    torch.manual_seed(0)
    tokenizer = T5TokenizerFast.from_pretrained(TINY_FLUX / "tokenizer_2")
    text = UMT5Config(
        vocab_size=len(tokenizer), d_model=16, d_kv=8, d_ff=32, num_layers=2, num_heads=2
    )
    vae = AutoencoderKLWan(base_dim=4, z_dim=16, dim_mult=[1, 1, 1, 1], num_res_blocks=1)
    WanPipeline(
        tokenizer=tokenizer,
        text_encoder=UMT5EncoderModel(text),
        vae=vae,
        scheduler=UniPCMultistepScheduler(
            prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=3.0
        ),
        transformer=_wan_transformer(),
        transformer_2=_wan_transformer() if two else None,
        boundary_ratio=0.8 if two else None,
        expand_timesteps=moment_per_token,
    ).save_pretrained(folder)
    return folder


def _wan_transformer() -> WanTransformer3DModel:
    return WanTransformer3DModel(
        num_attention_heads=2,
        attention_head_dim=12,
        in_channels=16,
        out_channels=16,
        text_dim=16,
        freq_dim=32,
        ffn_dim=32,
        num_layers=2,
    )
