"""Stable Diffusion XL: a U-Net, two CLIP encoders, noise prediction with classifier-free guidance.

Written after diffusers' StableDiffusionXLPipeline, whose pieces it uses; a test compares the two.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import numpy as np
import torch
from diffusers.pipelines.stable_diffusion_xl.pipeline_stable_diffusion_xl import (
    StableDiffusionXLPipeline,
)
from diffusers.utils.torch_utils import randn_tensor

from holdfast.pipeline.run.families.common import (
    Diffusers,
    autoencoder_scale,
    latents_to_frames,
    note_if_too_long,
)
from holdfast.pipeline.run.settings import Limits, Settings
from holdfast.pipeline.run.stages import Parts


class Text:
    """Two CLIP models encode each token; the second also encodes the whole prompt."""

    def __init__(self, parts: Parts) -> None:
        self._device = parts.device
        zeros = parts.options.get("force_zeros_for_empty_prompt", True)
        self._tokenizer = parts.components["tokenizer"]
        self._pipe = Diffusers(
            StableDiffusionXLPipeline,
            parts,
            force_zeros_for_empty_prompt=zeros,
            add_watermarker=False,
        )

    def __call__(self, settings: Settings) -> dict[str, torch.Tensor]:
        tokens, negative_tokens, pooled, negative_pooled = self._pipe.encode_prompt(
            settings.prompt,
            num_images_per_prompt=1,
            do_classifier_free_guidance=settings.guidance > 1,
            negative_prompt=settings.negative,
        )
        found = {"tokens": tokens, "pooled": pooled}
        if settings.guidance > 1:
            found |= {"negative_tokens": negative_tokens, "negative_pooled": negative_pooled}
        return {name: self._device.fetch(tensor) for name, tensor in found.items()}

    def notes(self, settings: Settings) -> tuple[str, ...]:
        return note_if_too_long(self._tokenizer, self._tokenizer.model_max_length, settings.prompt)


class Denoise:
    """Scheduler steps with the noise that the U-Net predicts."""

    def __init__(self, parts: Parts) -> None:
        self._device, self._dtype = parts.device, parts.dtype
        self._unet = parts.components["unet"]
        self._scheduler = parts.components["scheduler"]
        self._scale = autoencoder_scale(parts.configs)

    def noise(self, settings: Settings, generator: torch.Generator) -> torch.Tensor:
        sides = (settings.height // self._scale, settings.width // self._scale)
        shape = (1, self._unet.config.in_channels, *sides)
        return randn_tensor(shape, generator=generator, dtype=self._dtype)

    def __call__(
        self,
        conditioning: Mapping[str, torch.Tensor],
        latents: torch.Tensor,
        settings: Settings,
        generator: torch.Generator,
        step_done: Callable[[int], None],
    ) -> torch.Tensor:
        put = self._device.put
        scheduler = type(self._scheduler).from_config(self._scheduler.config)
        latents = put(latents)
        scheduler.set_timesteps(settings.steps, device=latents.device)
        latents = latents * scheduler.init_noise_sigma
        if hasattr(scheduler, "set_begin_index"):
            scheduler.set_begin_index(0)
        tokens, added = self._inputs(conditioning, settings)
        extra = _step_options(scheduler, generator)
        for done, timestep in enumerate(scheduler.timesteps, start=1):
            both = torch.cat([latents] * len(tokens))
            noise = self._unet(
                scheduler.scale_model_input(both, timestep),
                timestep,
                encoder_hidden_states=tokens,
                added_cond_kwargs=added,
                return_dict=False,
            )[0]
            if len(tokens) == 2:
                away, towards = noise.chunk(2)
                noise = away + settings.guidance * (towards - away)
            latents = scheduler.step(noise, timestep, latents, **extra, return_dict=False)[0]
            step_done(done)
        return self._device.fetch(latents)

    @property
    def network(self) -> Any:
        return self._unet

    def work(
        self,
        conditioning: Mapping[str, torch.Tensor],
        latents: torch.Tensor,
        settings: Settings,
    ) -> dict[str, Any]:
        """Arguments of `xla.stages.Denoising`, for a device with its own sampling loop."""
        scheduler = type(self._scheduler).from_config(self._scheduler.config)
        scheduler.set_timesteps(settings.steps)
        tokens, added = self._inputs(conditioning, settings)
        texts = tuple(
            {
                "encoder_hidden_states": tokens[i : i + 1],
                "added_cond_kwargs": {name: one[i : i + 1] for name, one in added.items()},
            }
            for i in reversed(range(len(tokens)))  # the prompt, then the negative one
        )
        return {
            "latents": latents * scheduler.init_noise_sigma,
            "scheduler": self._scheduler,
            "steps": settings.steps,
            "texts": texts,
            "fixed": {"return_dict": False},
            "guidance": settings.guidance,
            "latents_name": "sample",
        }

    def _inputs(
        self, conditioning: Mapping[str, torch.Tensor], settings: Settings
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """Text inputs, negative first if present, and the pooled text with the size."""
        prefixes = ["negative_", ""] if "negative_tokens" in conditioning else [""]
        tokens = torch.cat([conditioning[f"{prefix}tokens"] for prefix in prefixes])
        pooled = torch.cat([conditioning[f"{prefix}pooled"] for prefix in prefixes])
        size = [settings.height, settings.width]
        times = torch.tensor([[*size, 0, 0, *size]] * len(prefixes), dtype=self._dtype)
        put = self._device.put
        return put(tokens.to(self._dtype)), {
            "text_embeds": put(pooled.to(self._dtype)),
            "time_ids": put(times),
        }


def _step_options(scheduler: Any, generator: torch.Generator) -> dict[str, Any]:
    """Pass the seeded generator to schedulers that add noise."""
    takes_it = "generator" in inspect.signature(scheduler.step).parameters
    return {"generator": generator} if takes_it else {}


class Decode:
    def __init__(self, parts: Parts) -> None:
        self._device, self._dtype = parts.device, parts.dtype
        self._vae = parts.components["vae"]

    def __call__(self, latents: torch.Tensor, settings: Settings) -> np.ndarray:
        config = self._vae.config
        latents = self._device.put(latents.to(self._dtype))
        if config.get("latents_mean") is not None and config.get("latents_std") is not None:
            mean, std = (
                latents.new_tensor(config[name]).view(1, -1, 1, 1)
                for name in ("latents_mean", "latents_std")
            )
            latents = latents * std / config.scaling_factor + mean
        else:
            latents = latents / config.scaling_factor
        return latents_to_frames(self._vae.decode(z=latents, return_dict=False)[0])


class Sdxl:
    stages: ClassVar[dict[str, tuple[str, ...]]] = {
        "text": ("tokenizer", "tokenizer_2", "text_encoder", "text_encoder_2"),
        "denoise": ("unet", "scheduler"),
        "decode": ("vae",),
    }
    optional = ()
    full_precision = ("vae",)  # overflows in fp16

    def limits(self, configs: Mapping[str, Mapping[str, Any]]) -> Limits:
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

    text = Text
    denoise = Denoise
    decode = Decode


FAMILY = Sdxl()
