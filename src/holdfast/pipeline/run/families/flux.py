"""FLUX.1: a transformer over packed latents, CLIP and T5 for the text, flow matching.

Written after diffusers' FluxPipeline, whose pieces it uses; a test compares the two.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, ClassVar

import numpy as np
import torch
from diffusers.pipelines.flux.pipeline_flux import (
    FluxPipeline,
    calculate_shift,
    retrieve_timesteps,
)
from diffusers.utils.torch_utils import randn_tensor

from holdfast.pipeline.run.families.common import (
    Diffusers,
    autoencoder_scale,
    call_together,
    latents_to_frames,
    note_if_too_long,
    report_step,
)
from holdfast.pipeline.run.settings import Limits, Settings
from holdfast.pipeline.run.stages import Parts


class Text:
    """CLIP encodes the whole prompt as one vector, T5 each token."""

    def __init__(self, parts: Parts) -> None:
        self._device = parts.device
        self._tokenizer = parts.components["tokenizer_2"]
        self._pipe = Diffusers(FluxPipeline, parts)
        self._length = min(512, self._tokenizer.model_max_length)
        self._true_guidance = not guidance_is_embedded(parts.configs)

    def __call__(self, settings: Settings) -> dict[str, torch.Tensor]:
        found = self._encode(settings.prompt, "")
        if self._true_guidance and settings.guidance > 1:
            found |= self._encode(settings.negative or "", "negative_")
        return found

    def _encode(self, prompt: str, prefix: str) -> dict[str, torch.Tensor]:
        tokens, pooled, _ = self._pipe.encode_prompt(prompt, max_sequence_length=self._length)
        return {
            f"{prefix}tokens": self._device.fetch(tokens),
            f"{prefix}pooled": self._device.fetch(pooled),
        }

    def notes(self, settings: Settings) -> tuple[str, ...]:
        return note_if_too_long(self._tokenizer, self._length, settings.prompt)


class Denoise:
    """Euler steps along the flow that the transformer predicts."""

    def __init__(self, parts: Parts) -> None:
        self._device, self._dtype = parts.device, parts.dtype
        self._transformer = parts.components["transformer"]
        self._scheduler = parts.components["scheduler"]
        self._patch = autoencoder_scale(parts.configs) * 2
        self._embedded = guidance_is_embedded(parts.configs)

    def noise(self, settings: Settings, generator: torch.Generator) -> torch.Tensor:
        """Packed: each token is two by two latents."""
        height, width = (2 * (s // self._patch) for s in (settings.height, settings.width))
        channels = self._transformer.config.in_channels // 4
        shape = (1, channels, height, width)
        latents = randn_tensor(shape, generator=generator, dtype=self._dtype)
        return FluxPipeline._pack_latents(latents, 1, channels, height, width)

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
        timesteps = self._timesteps(scheduler, latents, settings.steps)
        text = {name: put(tensor.to(self._dtype)) for name, tensor in conditioning.items()}
        fixed = self._fixed_inputs(text["tokens"], settings)
        texts = _texts(text)
        latents = put(latents)
        for done, timestep in enumerate(timesteps, start=1):
            moment = timestep.expand(1).to(latents.dtype) / 1000
            inputs = {"hidden_states": latents, "timestep": moment, **fixed}
            flow, *away = call_together(self._transformer, *(inputs | one for one in texts))
            if away:
                flow = away[0] + settings.guidance * (flow - away[0])
            latents = scheduler.step(flow, timestep, latents, return_dict=False)[0]
            report_step(step_done, done, partial(self._device.fetch, latents))
        return self._device.fetch(latents)

    @property
    def network(self) -> Any:
        return self._transformer

    def work(
        self,
        conditioning: Mapping[str, torch.Tensor],
        latents: torch.Tensor,
        settings: Settings,
    ) -> dict[str, Any]:
        """Arguments of `xla.stages.Denoising`, for a device with its own sampling loop."""
        text = {name: tensor.to(self._dtype) for name, tensor in conditioning.items()}
        sigmas, shift = self._noise_levels(self._scheduler.config, latents, settings.steps)
        given = {} if sigmas is None else {"sigmas": sigmas}
        return {
            "latents": latents,
            "scheduler": self._scheduler,
            "steps": settings.steps if sigmas is None else None,
            "options": {"mu": shift} | given,
            "texts": tuple(_texts(text)),
            "fixed": self._fixed_inputs(text["tokens"], settings),
            "guidance": settings.guidance,
            "time_scale": 1e-3,
        }

    def _timesteps(self, scheduler: Any, latents: torch.Tensor, steps: int) -> torch.Tensor:
        sigmas, shift = self._noise_levels(scheduler.config, latents, steps)
        where = self._device.put(latents[:1, :1]).device
        retrieve_timesteps(scheduler, steps, where, sigmas=sigmas, mu=shift)
        scheduler.set_begin_index(0)
        return scheduler.timesteps

    def _noise_levels(self, config: Any, latents: torch.Tensor, steps: int) -> tuple[Any, float]:
        """Sigmas (None for the scheduler's own), and their shift for the number of tokens."""
        shift = calculate_shift(
            latents.shape[1],
            config.get("base_image_seq_len", 256),
            config.get("max_image_seq_len", 4096),
            config.get("base_shift", 0.5),
            config.get("max_shift", 1.15),
        )
        sigmas = None if config.get("use_flow_sigmas") else np.linspace(1.0, 1 / steps, steps)
        return sigmas, shift

    def _fixed_inputs(self, tokens: torch.Tensor, settings: Settings) -> dict[str, Any]:
        """Inputs that stay the same in every step."""
        rows, columns = (s // self._patch for s in (settings.height, settings.width))
        position_ids = FluxPipeline._prepare_latent_image_ids(
            1, rows, columns, torch.device("cpu"), self._dtype
        )
        guidance = torch.full([1], settings.guidance, dtype=torch.float32)
        return {
            "txt_ids": tokens.new_zeros(tokens.shape[1], 3),
            "img_ids": self._device.put(position_ids),
            "guidance": self._device.put(guidance) if self._embedded else None,
            "return_dict": False,
        }


def _texts(text: Mapping[str, torch.Tensor]) -> list[dict[str, torch.Tensor]]:
    """Text inputs of the transformer for the prompt, and for the negative prompt if present."""
    return [
        {
            "encoder_hidden_states": text[f"{prefix}tokens"],
            "pooled_projections": text[f"{prefix}pooled"],
        }
        for prefix in ("", "negative_")
        if f"{prefix}tokens" in text
    ]


class Decode:
    def __init__(self, parts: Parts) -> None:
        self._device, self._dtype = parts.device, parts.dtype
        self._vae = parts.components["vae"]
        self._scale = autoencoder_scale(parts.configs)

    def __call__(self, latents: torch.Tensor, settings: Settings) -> np.ndarray:
        config = self._vae.config
        latents = self._device.put(latents.to(self._dtype))
        latents = FluxPipeline._unpack_latents(
            latents, settings.height, settings.width, self._scale
        )
        latents = latents / config.scaling_factor + config.shift_factor
        return latents_to_frames(self._vae.decode(z=latents, return_dict=False)[0])


class Flux:
    """FLUX.1 dev takes guidance as an input; schnell needs none."""

    stages: ClassVar[dict[str, tuple[str, ...]]] = {
        "text": ("tokenizer", "tokenizer_2", "text_encoder", "text_encoder_2"),
        "denoise": ("transformer", "scheduler"),
        "decode": ("vae",),
    }
    optional = ()
    full_precision = ()

    def limits(self, configs: Mapping[str, Mapping[str, Any]]) -> Limits:
        """1024 pixels a side for full-size models, as in training."""
        scale = autoencoder_scale(configs)
        embedded = guidance_is_embedded(configs)
        return Limits(
            height=128 * scale,
            width=128 * scale,
            multiple_of=scale * 2,
            steps=20 if embedded else 4,
            guidance=3.5 if embedded else 0.0,
            takes_negative=not embedded,
        )

    text = Text
    denoise = Denoise
    decode = Decode


def guidance_is_embedded(configs: Mapping[str, Mapping[str, Any]]) -> bool:
    """Whether the transformer takes the guidance as an input (dev) or has none (schnell)."""
    return bool(configs["transformer"].get("guidance_embeds"))


FAMILY = Flux()
