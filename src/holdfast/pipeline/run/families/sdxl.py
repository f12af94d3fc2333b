"""Stable Diffusion XL: a U-Net, two CLIP encoders, classifier-free guidance."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from diffusers.pipelines.stable_diffusion_xl.pipeline_stable_diffusion_xl import (
    StableDiffusionXLPipeline,
)
from diffusers.utils.torch_utils import randn_tensor

from holdfast.pipeline.run.settings import Limits, Settings
from holdfast.pipeline.run.stages import Configs, Family, Parts, Prompts, autoencoder_scale
from holdfast.xla.denoising import Denoising


class Sdxl(Family):
    """Stable Diffusion XL."""

    pipeline = StableDiffusionXLPipeline
    text = ("tokenizer", "tokenizer_2", "text_encoder", "text_encoder_2")
    denoise = ("unet", "scheduler")
    full_precision = ("vae",)  # overflows in fp16

    def limits(self, configs: Configs) -> Limits:
        """The size that the U-Net was trained for."""
        scale = autoencoder_scale(configs)
        side = configs["unet"].get("sample_size", 128) * scale
        return Limits(
            height=side,
            width=side,
            multiple_of=max(8, scale),  # the U-Net pads what does not halve evenly
            steps=30,
            guidance=5.0,
        )

    def encode(
        self, encode: Callable[..., Any], parts: Parts, settings: Settings, length: int
    ) -> dict[str, torch.Tensor | None]:
        """Two CLIP models encode each token; the second also encodes the whole prompt."""
        tokens, negative_tokens, pooled, negative_pooled = encode(
            settings.prompt,
            num_images_per_prompt=1,
            do_classifier_free_guidance=settings.guidance > 1,
            negative_prompt=settings.negative,
        )
        found = {"tokens": tokens, "pooled": pooled}
        if settings.guidance > 1:
            found |= {"negative_tokens": negative_tokens, "negative_pooled": negative_pooled}
        return found

    def noise(self, parts: Parts, settings: Settings, generator: torch.Generator) -> torch.Tensor:
        scale = autoencoder_scale(parts.configs)
        sides = (settings.height // scale, settings.width // scale)
        shape = (1, parts.components["unet"].config.in_channels, *sides)
        return randn_tensor(shape, generator=generator, dtype=parts.dtype)

    def denoising(
        self, parts: Parts, prompts: Prompts, latents: torch.Tensor, settings: Settings
    ) -> Denoising:
        size = [settings.height, settings.width]
        times = torch.tensor([[*size, 0, 0, *size]], dtype=parts.dtype)
        texts = tuple(
            {
                "encoder_hidden_states": one["tokens"],
                "added_cond_kwargs": {"text_embeds": one["pooled"], "time_ids": times},
            }
            for one in prompts
        )
        return Denoising(
            latents=latents,
            scheduler=parts.components["scheduler"],
            steps=settings.steps,
            texts=texts,
            fixed={"return_dict": False},
            guidance=settings.guidance,
            latents_name="sample",
            is_scaled=True,
            is_batched=True,
        )

    def unscale(self, latents: torch.Tensor, vae: Any, settings: Settings) -> torch.Tensor:
        config = vae.config
        if config.get("latents_mean") is None or config.get("latents_std") is None:
            return latents / config.scaling_factor
        mean, std = (
            latents.new_tensor(config[name]).view(1, -1, 1, 1)
            for name in ("latents_mean", "latents_std")
        )
        return latents * std / config.scaling_factor + mean


FAMILY = Sdxl()
