"""Protocols of the three stages of drawing and of a model family.

text: prompt -> conditioning      denoise: noise -> latents      decode: latents -> frames

Data between stages is on the CPU, so each stage can run on another device.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from holdfast.pipeline.devices.device import Device
from holdfast.pipeline.run.settings import Limits, Settings

if TYPE_CHECKING:
    import numpy
    import torch

STAGES = ("text", "denoise", "decode")


@dataclass(frozen=True, slots=True)
class Parts:
    """What a stage is built from.

    `components` are those of the stage, loaded; `configs` are those of all networks, as the noise
    size depends on the autoencoder; `options` come from model_index.json.
    """

    components: Mapping[str, Any]
    device: Device
    dtype: torch.dtype
    configs: Mapping[str, Mapping[str, Any]]
    options: Mapping[str, Any]


class TextStage(Protocol):
    """Encodes the prompt."""

    def __call__(self, settings: Settings) -> dict[str, torch.Tensor]:
        """The conditioning, on the CPU."""
        ...

    def notes(self, settings: Settings) -> tuple[str, ...]:
        """Notes for the user about this prompt."""
        ...


class DenoiseStage(Protocol):
    """Turns noise into latents, step by step."""

    def noise(self, settings: Settings, generator: torch.Generator) -> torch.Tensor:
        """Initial latents on the CPU; the same for the same seed on every device."""
        ...

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
        ...


class DecodeStage(Protocol):
    """Turns latents into pixels."""

    def __call__(self, latents: torch.Tensor, settings: Settings) -> numpy.ndarray:
        """Frames as uint8 [frame, height, width, colour]."""
        ...


class Family(Protocol):
    """What differs between kinds of models."""

    stages: Mapping[str, tuple[str, ...]]  # which components each stage needs
    optional: tuple[str, ...]  # components that a model may lack
    full_precision: tuple[str, ...]  # components that overflow or blur in half precision

    def limits(self, configs: Mapping[str, Mapping[str, Any]]) -> Limits:
        """Defaults and limits of a model with these configurations."""
        ...

    def text(self, parts: Parts) -> TextStage: ...

    def denoise(self, parts: Parts) -> DenoiseStage: ...

    def decode(self, parts: Parts) -> DecodeStage: ...
