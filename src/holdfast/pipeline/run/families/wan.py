"""Wan 2.1 and 2.2: video by a transformer over space and time, UMT5 for the text.

Wan 2.2 A14B has two transformers, one for strong and one for weak noise; 2.2 TI2V has a timestep
for every token.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from diffusers.pipelines.wan.pipeline_wan import WanPipeline
from diffusers.utils.torch_utils import randn_tensor

from holdfast.pipeline.run.settings import Limits, Settings
from holdfast.pipeline.run.stages import Configs, Family, Parts, Prompts
from holdfast.xla.denoising import Denoising


class Wan(Family):
    """Wan 2.1 and 2.2."""

    pipeline = WanPipeline
    text = ("tokenizer", "text_encoder")
    denoise = ("transformer", "transformer_2", "scheduler")
    optional = ("transformer", "transformer_2")  # Wan 2.2 runs with either
    full_precision = ("vae",)  # half precision distorts colours

    def limits(self, configs: Configs) -> Limits:
        """480 by 832 pixels and 81 frames, the usual size of Wan 2.1."""
        time, space = _scales(configs)
        multiple = space * _transformer_config(configs)["patch_size"][1]
        return Limits(
            height=480 // multiple * multiple,
            width=832 // multiple * multiple,
            multiple_of=multiple,
            steps=50,
            guidance=5.0,
            num_frames=81,
            frame_step=time,
        )

    def encode(
        self, encode: Callable[..., Any], parts: Parts, settings: Settings, length: int
    ) -> dict[str, torch.Tensor | None]:
        """UMT5 encodes each token; padding is zero."""
        tokens, negative = encode(
            settings.prompt,
            negative_prompt=settings.negative,
            do_classifier_free_guidance=settings.guidance > 1,
            max_sequence_length=length,
        )
        return {"tokens": tokens, "negative_tokens": negative}

    def noise(self, parts: Parts, settings: Settings, generator: torch.Generator) -> torch.Tensor:
        """[1, channel, frame, row, column], always fp32."""
        time, space = _scales(parts.configs)
        network = parts.components.get("transformer") or parts.components["transformer_2"]
        shape = (
            1,
            network.config.in_channels,
            (settings.num_frames - 1) // time + 1,
            settings.height // space,
            settings.width // space,
        )
        return randn_tensor(shape, generator=generator, dtype=torch.float32)

    def denoising(
        self, parts: Parts, prompts: Prompts, latents: torch.Tensor, settings: Settings
    ) -> Denoising:
        scheduler = parts.components["scheduler"]
        ratio = parts.options.get("boundary_ratio")
        two: dict[str, Any] = {}
        if ratio is not None:
            border = ratio * scheduler.config.num_train_timesteps
            two = {"weak": parts.components.get("transformer_2"), "boundary": border}
        return Denoising(
            latents=latents,
            scheduler=scheduler,
            steps=settings.steps,
            texts=tuple({"encoder_hidden_states": one["tokens"]} for one in prompts),
            fixed={"return_dict": False},
            guidance=settings.guidance,
            is_time_per_token=bool(parts.options.get("expand_timesteps")),
            dtype=parts.dtype,
            **two,
        )

    def unscale(self, latents: torch.Tensor, vae: Any, settings: Settings) -> torch.Tensor:
        config = vae.config
        mean, std = (
            latents.new_tensor(values).view(1, config.z_dim, 1, 1, 1)
            for values in (config.latents_mean, config.latents_std)
        )
        return latents / (1.0 / std) + mean  # in this order, as diffusers, for bitwise equality


def _scales(configs: Configs) -> tuple[int, int]:
    """Frames, and pixels along one side, per latent."""
    vae = configs["vae"]
    return vae.get("scale_factor_temporal", 4), vae.get("scale_factor_spatial", 8)


def _transformer_config(configs: Configs) -> Mapping[str, Any]:
    return configs["transformer" if "transformer" in configs else "transformer_2"]


FAMILY = Wan()
