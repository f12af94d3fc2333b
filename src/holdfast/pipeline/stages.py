"""The three stages of drawing, as every family offers them.

text: prompt -> conditioning      denoise: noise -> latents      decode: latents -> frames

Promise: what goes between two stages is on the CPU, so each stage can live on another device.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from holdfast.pipeline.devices import Device
from holdfast.pipeline.settings import Limits, Settings

if TYPE_CHECKING:
    import numpy
    import torch

STAGES = ("text", "denoise", "decode")


@dataclass(frozen=True, slots=True)
class Parts:
    """What a stage is made of.

    `components` are its own, loaded; `configs` are those of every network of the model, as the
    size of the noise depends on the autoencoder; `options` come from the model's index.
    """

    components: Mapping[str, Any]
    device: Device
    dtype: torch.dtype
    configs: Mapping[str, Mapping[str, Any]]
    options: Mapping[str, Any]


class TextStage(Protocol):
    """Reads the prompt."""

    def __call__(self, settings: Settings) -> dict[str, torch.Tensor]:
        """The conditioning, on the CPU."""
        ...

    def notes(self, settings: Settings) -> tuple[str, ...]:
        """What a person should know about this prompt."""
        ...


class DenoiseStage(Protocol):
    """Turns noise into latents, step by step."""

    def noise(self, settings: Settings, generator: torch.Generator) -> torch.Tensor:
        """The latents to begin with, on the CPU; the same for the same seed on every device."""
        ...

    def __call__(
        self,
        conditioning: Mapping[str, torch.Tensor],
        latents: torch.Tensor,
        settings: Settings,
        generator: torch.Generator,
        step_done: Callable[[int], None],
    ) -> torch.Tensor:
        """Latents without noise, on the CPU; `step_done(n)` is called when n steps are over.

        Where `step_done` has a method `latents`, that is called before, with a function that gives
        the latents of the step on the CPU.

        `generator` is the one that made the noise, for schedulers that add more of it.
        """
        ...


class DecodeStage(Protocol):
    """Turns latents into what people see."""

    def __call__(self, latents: torch.Tensor, settings: Settings) -> numpy.ndarray:
        """Frames as uint8 [frame, height, width, colour]."""
        ...


class Family(Protocol):
    """Everything that differs from one kind of model to another."""

    stages: Mapping[str, tuple[str, ...]]  # which components each stage needs
    optional: tuple[str, ...]  # those of them that a model may do without
    full_precision: tuple[str, ...]  # components that overflow or blur in half precision

    def limits(self, configs: Mapping[str, Mapping[str, Any]]) -> Limits:
        """What a model with these component configurations can draw."""
        ...

    def text(self, parts: Parts) -> TextStage:
        """The first stage."""
        ...

    def denoise(self, parts: Parts) -> DenoiseStage:
        """The second stage."""
        ...

    def decode(self, parts: Parts) -> DecodeStage:
        """The third stage."""
        ...
