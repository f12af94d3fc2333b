"""The three stages of drawing, and the base class of a model family.

text: prompt -> conditioning      denoise: noise -> latents      decode: latents -> frames

Data between stages is on the CPU, so each stage can run on another device.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from diffusers.video_processor import VideoProcessor

from holdfast.base.errors import Unsupported
from holdfast.pipeline.devices.torch_devices import Device
from holdfast.pipeline.model.quiet import quiet
from holdfast.pipeline.run.settings import Limits, Settings
from holdfast.xla.denoising import Denoising

Configs = Mapping[str, Mapping[str, Any]]
Prompts = list[dict[str, torch.Tensor]]  # tensors of the prompt, then of the negative one
_MOST_TOKENS = 512


@dataclass(frozen=True, slots=True)
class Parts:
    """What a stage is built from.

    `components` are those of the stage, loaded; `configs` are those of all networks, as the noise
    size depends on the autoencoder; `options` come from model_index.json.
    """

    components: Mapping[str, Any]
    device: Device
    dtype: torch.dtype
    configs: Configs
    options: Mapping[str, Any]


class Family(ABC):
    """What differs between kinds of models. Written after the diffusers pipeline of the family."""

    pipeline: ClassVar[Any]  # the class in diffusers
    text: ClassVar[tuple[str, ...]]  # components of the text stage
    denoise: ClassVar[tuple[str, ...]]  # the network and the scheduler
    optional: ClassVar[tuple[str, ...]] = ()  # components that a model may lack
    full_precision: ClassVar[tuple[str, ...]] = ()  # these overflow or blur in half precision
    tokenizer: ClassVar[str] = "tokenizer"  # whose limit a prompt may exceed

    @property
    def stages(self) -> dict[str, tuple[str, ...]]:
        """Which components each stage needs."""
        return {"text": self.text, "denoise": self.denoise, "decode": ("vae",)}

    @abstractmethod
    def limits(self, configs: Configs) -> Limits:
        """Defaults and limits of a model with these configurations."""

    @abstractmethod
    def encode(
        self, encode: Callable[..., Any], parts: Parts, settings: Settings, length: int
    ) -> dict[str, torch.Tensor | None]:
        """The conditioning. `encode` is the pipeline's `encode_prompt`; a None is left out."""

    @abstractmethod
    def noise(
        self, parts: Parts, settings: Settings, generator: torch.Generator
    ) -> torch.Tensor: ...

    @abstractmethod
    def denoising(
        self, parts: Parts, prompts: Prompts, latents: torch.Tensor, settings: Settings
    ) -> Denoising: ...

    @abstractmethod
    def unscale(self, latents: torch.Tensor, vae: Any, settings: Settings) -> torch.Tensor:
        """Latents as the decoder of the autoencoder takes them."""


class TextStage:
    """Encodes the prompt with a diffusers pipeline that has only the text components."""

    def __init__(self, family: Family, parts: Parts) -> None:
        self._family, self._parts = family, parts
        self._tokenizer = parts.components[family.tokenizer]
        self._length = min(_MOST_TOKENS, self._tokenizer.model_max_length)
        wanted = inspect.signature(family.pipeline.__init__).parameters
        required = [n for n, one in wanted.items() if one.default is inspect.Parameter.empty]
        known = {**parts.options, "add_watermarker": False, **parts.components}
        given = dict.fromkeys(required) | {k: v for k, v in known.items() if k in wanted}
        given.pop("self")
        self._pipe = family.pipeline(**given)
        self._where = parts.device.put(torch.zeros(1)).device

    def __call__(self, settings: Settings) -> dict[str, torch.Tensor]:
        """The conditioning, on the CPU."""

        def encode(prompt: str, **options: Any) -> Any:
            return self._pipe.encode_prompt(prompt, device=self._where, **options)

        found = self._family.encode(encode, self._parts, settings, self._length)
        return {k: self._parts.device.fetch(v) for k, v in found.items() if v is not None}

    def notes(self, settings: Settings) -> tuple[str, ...]:
        """Notes for the user about this prompt: one if it has too many tokens."""
        with quiet():
            count = len(self._tokenizer(settings.prompt).input_ids)
        note = f"only the first {self._length} of {count} tokens of the prompt were read"
        return (note,) if count > self._length else ()


class DenoiseStage:
    """Turns noise into latents, step by step."""

    def __init__(self, family: Family, parts: Parts) -> None:
        self._family, self._parts = family, parts
        self.network = parts.components.get(family.denoise[0])

    def noise(self, settings: Settings, generator: torch.Generator) -> torch.Tensor:
        """Initial latents on the CPU; the same for the same seed on every device."""
        return self._family.noise(self._parts, settings, generator)

    def __call__(
        self,
        conditioning: Mapping[str, torch.Tensor],
        latents: torch.Tensor,
        settings: Settings,
        generator: torch.Generator,
        step_done: Callable[[int], None],
    ) -> torch.Tensor:
        """Denoised latents on the CPU; calls `step_done(n)` after n steps.

        If `step_done` has a method `latents`, it is called first, with a function that returns
        the latents of the step on the CPU. `generator` made the noise; some schedulers use it to
        add more.
        """
        negative = {k: v for k, v in conditioning.items() if k.startswith("negative_")}
        prompt = {k: v for k, v in conditioning.items() if k not in negative}
        prompts = [
            {k.removeprefix("negative_"): v.to(self._parts.dtype) for k, v in one.items()}
            for one in (prompt, negative)
            if one
        ]
        work = self._family.denoising(self._parts, prompts, latents, settings)
        return self._parts.device.denoise(self.network, work, generator, step_done)


class DecodeStage:
    """Turns latents into pixels."""

    def __init__(self, family: Family, parts: Parts) -> None:
        self._family, self._parts = family, parts
        self._vae = parts.components["vae"]

    def __call__(self, latents: torch.Tensor, settings: Settings) -> np.ndarray:
        """Frames as uint8 [frame, height, width, colour]."""
        latents = self._parts.device.put(latents.to(self._parts.dtype))
        latents = self._family.unscale(latents, self._vae, settings)
        decoded = self._vae.decode(z=latents, return_dict=False)[0].detach()
        processor: Any = VideoProcessor()
        if decoded.ndim == 5:
            return to_bytes(processor.postprocess_video(decoded, output_type="np")[0])
        return to_bytes(processor.postprocess(decoded, output_type="np"))


STAGE_CLASSES = {"text": TextStage, "denoise": DenoiseStage, "decode": DecodeStage}


def autoencoder_scale(configs: Configs) -> int:
    """Pixels per latent along one side, from the configuration of the "vae"."""
    return 2 ** (len(configs["vae"]["block_out_channels"]) - 1)


def to_bytes(floats: np.ndarray) -> np.ndarray:
    """Convert values in 0 … 1 to uint8. Raises Unsupported for NaN or infinity."""
    if not np.isfinite(floats).all():
        raise Unsupported(
            "the model computed NaN or infinity: this precision is too narrow for it",
            expected="a picture",
            hint="--precision bf16 or fp32",
        )
    return (floats * 255).round().astype(np.uint8)
