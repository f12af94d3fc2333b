"""Helpers that several families use."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from diffusers.image_processor import VaeImageProcessor

from holdfast.base.errors import Unsupported
from holdfast.pipeline.model.quiet import quiet
from holdfast.pipeline.run.stages import Parts
from holdfast.residency.managed.lockstep import together


class Diffusers:
    """A diffusers pipeline with only the text components, to encode prompts as it does."""

    def __init__(self, pipeline: Any, parts: Parts, **options: Any) -> None:
        wanted = inspect.signature(pipeline.__init__).parameters
        given = {k: v for k, v in parts.components.items() if k in wanted}
        absent = {
            name: None
            for name, parameter in wanted.items()
            if name != "self" and parameter.default is inspect.Parameter.empty
        }
        self._pipe = pipeline(**(absent | given | options))
        self._device = parts.device.put(torch.zeros(1)).device

    def encode_prompt(self, prompt: str, **options: Any) -> Any:
        """Call the pipeline's `encode_prompt` on the device of the stage."""
        return self._pipe.encode_prompt(prompt, device=self._device, **options)


def call_together(model: Any, *calls: Mapping[str, Any]) -> list[torch.Tensor]:
    """The first output of `model` for each of the calls.

    Streamed weights cross the link once for all calls, where residency supports that.
    """
    return [outputs[0] for outputs in together(model, [((), call) for call in calls])]


def report_step(
    step_done: Callable[[int], None], done: int, latents: Callable[[], torch.Tensor]
) -> None:
    """Report a finished step: call `step_done.latents` with `latents` if it exists, then itself."""
    listen = getattr(step_done, "latents", None)
    if listen is not None:
        listen(latents)
    step_done(done)


def note_if_too_long(tokenizer: Any, length: int, prompt: str) -> tuple[str, ...]:
    """A note if `prompt` has more tokens than the text encoder takes."""
    with quiet():
        count = len(tokenizer(prompt).input_ids)
    return (f"only the first {length} of {count} tokens of the prompt were read",) * (
        count > length
    )


def autoencoder_scale(configs: Mapping[str, Mapping[str, Any]]) -> int:
    """Pixels per latent along one side, from the configuration of the "vae"."""
    return 2 ** (len(configs["vae"]["block_out_channels"]) - 1)


def latents_to_frames(decoded: torch.Tensor) -> np.ndarray:
    """Convert [batch, colour, height, width] in -1 … 1 to uint8 with the colour last."""
    floats: Any = VaeImageProcessor().postprocess(decoded.detach(), output_type="np")
    return to_bytes(floats)


def to_bytes(floats: np.ndarray) -> np.ndarray:
    """Convert values in 0 … 1 to uint8. Raises Unsupported for NaN or infinity."""
    if not np.isfinite(floats).all():
        raise Unsupported(
            "the model computed NaN or infinity: this precision is too narrow for it",
            expected="a picture",
            hint="--precision bf16 or fp32",
        )
    return (floats * 255).round().astype(np.uint8)
