"""FLUX.1: a transformer over packed latents, CLIP and T5 for the text, flow matching."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from diffusers.pipelines.flux.pipeline_flux import FluxPipeline, calculate_shift
from diffusers.utils.torch_utils import randn_tensor

from holdfast.pipeline.run.settings import Limits, Settings
from holdfast.pipeline.run.stages import Configs, Family, Parts, Prompts, autoencoder_scale
from holdfast.xla.denoising import Denoising


class Flux(Family):
    """FLUX.1 dev takes guidance as an input; schnell needs none."""

    pipeline = FluxPipeline
    text = ("tokenizer", "tokenizer_2", "text_encoder", "text_encoder_2")
    denoise = ("transformer", "scheduler")
    tokenizer = "tokenizer_2"

    def limits(self, configs: Configs) -> Limits:
        """1024 pixels a side for full-size models, as in training."""
        scale = autoencoder_scale(configs)
        embedded = _is_guidance_embedded(configs)
        return Limits(
            height=128 * scale,
            width=128 * scale,
            multiple_of=scale * 2,
            steps=20 if embedded else 4,
            guidance=3.5 if embedded else 0.0,
            takes_negative=not embedded,
        )

    def encode(
        self, encode: Callable[..., Any], parts: Parts, settings: Settings, length: int
    ) -> dict[str, torch.Tensor | None]:
        """CLIP encodes the whole prompt as one vector, T5 each token."""
        prompts = {"": settings.prompt}
        if settings.guidance > 1 and not _is_guidance_embedded(parts.configs):
            prompts["negative_"] = settings.negative or ""
        found: dict[str, torch.Tensor | None] = {}
        for prefix, prompt in prompts.items():
            tokens, pooled, _ = encode(prompt, max_sequence_length=length)
            found |= {f"{prefix}tokens": tokens, f"{prefix}pooled": pooled}
        return found

    def noise(self, parts: Parts, settings: Settings, generator: torch.Generator) -> torch.Tensor:
        """Packed: each token is two by two latents."""
        height, width = (2 * side for side in _count_tokens(parts, settings))
        channels = parts.components["transformer"].config.in_channels // 4
        shape = (1, channels, height, width)
        latents = randn_tensor(shape, generator=generator, dtype=parts.dtype)
        return FluxPipeline._pack_latents(latents, 1, channels, height, width)

    def denoising(
        self, parts: Parts, prompts: Prompts, latents: torch.Tensor, settings: Settings
    ) -> Denoising:
        tokens = prompts[0]["tokens"]
        scheduler = parts.components["scheduler"]
        config = scheduler.config
        shift = calculate_shift(
            latents.shape[1],
            config.get("base_image_seq_len", 256),
            config.get("max_image_seq_len", 4096),
            config.get("base_shift", 0.5),
            config.get("max_shift", 1.15),
        )
        steps, options = settings.steps, {"mu": shift}
        if not config.get("use_flow_sigmas"):
            options["sigmas"] = np.linspace(1.0, 1 / steps, steps)
        position_ids = FluxPipeline._prepare_latent_image_ids(
            1, *_count_tokens(parts, settings), torch.device("cpu"), parts.dtype
        )
        guidance = torch.full([1], settings.guidance, dtype=torch.float32)
        return Denoising(
            latents=latents,
            scheduler=scheduler,
            steps=None if "sigmas" in options else steps,
            options=options,
            texts=tuple(
                {"encoder_hidden_states": one["tokens"], "pooled_projections": one["pooled"]}
                for one in prompts
            ),
            fixed={
                "txt_ids": tokens.new_zeros(tokens.shape[1], 3),
                "img_ids": position_ids,
                "guidance": guidance if _is_guidance_embedded(parts.configs) else None,
                "return_dict": False,
            },
            guidance=settings.guidance,
            time_scale=1e-3,
        )

    def unscale(self, latents: torch.Tensor, vae: Any, settings: Settings) -> torch.Tensor:
        scale = autoencoder_scale({"vae": vae.config})
        latents = FluxPipeline._unpack_latents(latents, settings.height, settings.width, scale)
        return latents / vae.config.scaling_factor + vae.config.shift_factor


def _is_guidance_embedded(configs: Configs) -> bool:
    """Whether the transformer takes the guidance as an input (dev) or has none (schnell)."""
    return bool(configs["transformer"].get("guidance_embeds"))


def _count_tokens(parts: Parts, settings: Settings) -> tuple[int, int]:
    """Rows and columns of tokens."""
    patch = autoencoder_scale(parts.configs) * 2
    return settings.height // patch, settings.width // patch


FAMILY = Flux()
