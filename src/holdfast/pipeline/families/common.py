"""What the families share."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from diffusers.image_processor import VaeImageProcessor

from holdfast.base.errors import Unsupported
from holdfast.pipeline.quiet import quiet
from holdfast.pipeline.stages import Parts
from holdfast.residency.in_step import together


class Diffusers:
    """A diffusers pipeline with the components of one stage only, for the way it reads prompts."""

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
        """As the pipeline does it, on the device of the stage."""
        return self._pipe.encode_prompt(prompt, device=self._device, **options)


def side_by_side(model: Any, *calls: Mapping[str, Any]) -> list[torch.Tensor]:
    """What a network gives for each of the calls, which have the same shapes or others.

    Weights that are streamed cross the link once for all of them, where residency can do that.
    """
    found = together(model, [((), call) for call in calls])
    return [outputs[0] for outputs in found]


def tell(step_done: Callable[[int], None], done: int, latents: Callable[[], torch.Tensor]) -> None:
    """A step is over: first its latents, to who has an ear for them (`step_done.latents`)."""
    listen = getattr(step_done, "latents", None)
    if listen is not None:
        listen(latents)
    step_done(done)


def too_long(tokenizer: Any, length: int, prompt: str) -> tuple[str, ...]:
    """A note if `prompt` has more tokens than are read."""
    with quiet():
        count = len(tokenizer(prompt).input_ids)
    return (f"only the first {length} of {count} tokens of the prompt were read",) * (
        count > length
    )


def autoencoder_scale(configs: Mapping[str, Mapping[str, Any]]) -> int:
    """How many pixels a side of a latent stands for, from the configuration of the "vae"."""
    return 2 ** (len(configs["vae"]["block_out_channels"]) - 1)


def latents_to_frames(decoded: torch.Tensor) -> np.ndarray:
    """Decoded values in -1 … 1, [batch, colour, height, width], as bytes with the colour last."""
    floats: Any = VaeImageProcessor().postprocess(decoded.detach(), output_type="np")
    return to_bytes(floats)


def to_bytes(floats: np.ndarray) -> np.ndarray:
    """Values in 0 … 1 as bytes. Raises Unsupported if they are no numbers."""
    if not np.isfinite(floats).all():
        raise Unsupported(
            "the model computed values that are no numbers: this precision is too narrow for it",
            expected="a picture",
            hint="--precision bf16 or fp32",
        )
    return (floats * 255).round().astype(np.uint8)
