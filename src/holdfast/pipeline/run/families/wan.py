"""Wan 2.1 and 2.2: video by a transformer over space and time, UMT5 for the text.

Wan 2.2 A14B has two transformers, one for strong and one for weak noise; 2.2 TI2V has a timestep
for every token. Written after diffusers' WanPipeline; a test compares the two.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, ClassVar

import numpy as np
import torch
from diffusers.pipelines.wan.pipeline_wan import WanPipeline
from diffusers.utils.torch_utils import randn_tensor
from diffusers.video_processor import VideoProcessor

from holdfast.pipeline.run.families.common import (
    Diffusers,
    call_together,
    note_if_too_long,
    report_step,
    to_bytes,
)
from holdfast.pipeline.run.settings import Limits, Settings
from holdfast.pipeline.run.stages import Parts


class Text:
    """UMT5 encodes each token; padding is zero."""

    def __init__(self, parts: Parts) -> None:
        self._device = parts.device
        self._tokenizer = parts.components["tokenizer"]
        self._pipe = Diffusers(WanPipeline, parts)
        self._length = min(512, parts.components["tokenizer"].model_max_length)

    def __call__(self, settings: Settings) -> dict[str, torch.Tensor]:
        tokens, negative = self._pipe.encode_prompt(
            settings.prompt,
            negative_prompt=settings.negative,
            do_classifier_free_guidance=settings.guidance > 1,
            max_sequence_length=self._length,
        )
        found = {"tokens": tokens}
        if negative is not None:
            found["negative_tokens"] = negative
        return {name: self._device.fetch(tensor) for name, tensor in found.items()}

    def notes(self, settings: Settings) -> tuple[str, ...]:
        return note_if_too_long(self._tokenizer, self._length, settings.prompt)


class Denoise:
    """Scheduler steps along the flow that the transformers predict."""

    def __init__(self, parts: Parts) -> None:
        self._device, self._dtype = parts.device, parts.dtype
        self._strong = parts.components.get("transformer")
        self._weak = parts.components.get("transformer_2")
        self._scheduler = parts.components["scheduler"]
        self._boundary: float | None = parts.options.get("boundary_ratio")
        self._moment_per_token = bool(parts.options.get("expand_timesteps"))
        self._time, self._space = _scales(parts.configs)
        self._channels = _transformer_config(parts.configs)["in_channels"]

    def noise(self, settings: Settings, generator: torch.Generator) -> torch.Tensor:
        """[1, channel, frame, row, column], always fp32."""
        shape = (
            1,
            self._channels,
            (settings.num_frames - 1) // self._time + 1,
            settings.height // self._space,
            settings.width // self._space,
        )
        return randn_tensor(shape, generator=generator, dtype=torch.float32)

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
        text = {name: put(tensor.to(self._dtype)) for name, tensor in conditioning.items()}
        latents = put(latents)
        scheduler.set_timesteps(settings.steps, device=latents.device)
        scheduler.set_begin_index(0)
        for done, timestep in enumerate(scheduler.timesteps, start=1):
            model = self._model(timestep, scheduler.config.num_train_timesteps)
            moment = self._moment(timestep, latents)
            flow, *away = self._flows(model, latents, moment, text)
            if away:
                flow = away[0] + settings.guidance * (flow - away[0])
            latents = scheduler.step(flow, timestep, latents, return_dict=False)[0]
            report_step(step_done, done, partial(self._device.fetch, latents))
        return self._device.fetch(latents)

    @property
    def network(self) -> Any:
        return self._strong

    def work(
        self,
        conditioning: Mapping[str, torch.Tensor],
        latents: torch.Tensor,
        settings: Settings,
    ) -> dict[str, Any]:
        """Arguments of `xla.stages.Denoising`, for a device with its own sampling loop."""
        tokens = [conditioning[n] for n in ("tokens", "negative_tokens") if n in conditioning]
        found = {
            "latents": latents,
            "scheduler": self._scheduler,
            "steps": settings.steps,
            "texts": tuple({"encoder_hidden_states": one.to(self._dtype)} for one in tokens),
            "fixed": {"return_dict": False},
            "guidance": settings.guidance,
            "dtype": self._dtype,
        }
        if self._boundary is not None:
            border = self._boundary * self._scheduler.config.num_train_timesteps
            found |= {"weak": self._weak, "boundary": border}
        if self._moment_per_token:
            found["moment"] = "per token"
        return found

    def _model(self, timestep: torch.Tensor, train_timesteps: int) -> Any:
        if self._boundary is None or timestep >= self._boundary * train_timesteps:
            return self._strong
        return self._weak

    def _moment(self, timestep: torch.Tensor, latents: torch.Tensor) -> torch.Tensor:
        if not self._moment_per_token:
            return timestep.expand(1)
        tokens = latents[0, 0, :, ::2, ::2].numel()
        return (timestep * latents.new_ones(tokens)).unsqueeze(0)

    def _flows(
        self,
        model: Any,
        latents: torch.Tensor,
        moment: torch.Tensor,
        text: Mapping[str, torch.Tensor],
    ) -> list[torch.Tensor]:
        """The flow for the prompt, and for the negative prompt with guidance."""
        inputs = {
            "hidden_states": latents.to(self._dtype),
            "timestep": moment,
            "return_dict": False,
        }
        tokens = [text[name] for name in ("tokens", "negative_tokens") if name in text]
        return call_together(model, *(inputs | {"encoder_hidden_states": one} for one in tokens))


class Decode:
    def __init__(self, parts: Parts) -> None:
        self._device, self._dtype = parts.device, parts.dtype
        self._vae = parts.components["vae"]

    def __call__(self, latents: torch.Tensor, settings: Settings) -> np.ndarray:
        config = self._vae.config
        latents = self._device.put(latents.to(self._dtype))
        mean, std = (
            latents.new_tensor(values).view(1, config.z_dim, 1, 1, 1)
            for values in (config.latents_mean, config.latents_std)
        )
        latents = latents / (1.0 / std) + mean  # in this order, as diffusers, for bitwise equality
        video = self._vae.decode(z=latents, return_dict=False)[0]
        floats: Any = VideoProcessor().postprocess_video(video, output_type="np")
        return to_bytes(floats[0])


class Wan:
    stages: ClassVar[dict[str, tuple[str, ...]]] = {
        "text": ("tokenizer", "text_encoder"),
        "denoise": ("transformer", "transformer_2", "scheduler"),
        "decode": ("vae",),
    }
    optional = ("transformer", "transformer_2")  # Wan 2.2 runs with either
    full_precision = ("vae",)  # half precision distorts colours

    def limits(self, configs: Mapping[str, Mapping[str, Any]]) -> Limits:
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

    text = Text
    denoise = Denoise
    decode = Decode


def _scales(configs: Mapping[str, Mapping[str, Any]]) -> tuple[int, int]:
    """Frames, and pixels along one side, per latent."""
    vae = configs["vae"]
    return vae.get("scale_factor_temporal", 4), vae.get("scale_factor_spatial", 8)


def _transformer_config(configs: Mapping[str, Mapping[str, Any]]) -> Mapping[str, Any]:
    return configs["transformer" if "transformer" in configs else "transformer_2"]


FAMILY = Wan()
