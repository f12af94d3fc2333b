"""Nodes for FLUX and Wan on TPUs, GPUs and CPUs through XLA: prompt -> latents -> pictures.

Covers: text encoder, sampler, decoder and whole pipeline of both, their inputs and outputs; what is
loaded and letting go of it.
Leaves to others: the model (models), what goes between nodes (sockets), what is shown
meanwhile (steps), drawing (pipeline).
Promise: the three stages give, to the bit, what the pipeline node gives, and that what
`Pipeline.draw` gives. A node that is stopped or fails leaves the model usable. All nodes share one
loaded model, which goes when ComfyUI forgets the nodes that used it.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, ClassVar

from holdfast.base.errors import BadInput
from holdfast.nodes import host
from holdfast.nodes.refusing import unlinked
from holdfast.nodes.xla import inputs
from holdfast.nodes.xla.inputs import Inputs
from holdfast.nodes.xla.models import (
    AUTO,
    Held,
    Models,
    at_work,
    fingerprint,
    refusal,
    refuse_size,
)
from holdfast.nodes.xla.sockets import (
    Drawn,
    Read,
    asked_for,
    conditioning,
    guidance_of,
    images,
    latent,
    reading,
    samples_of,
    text_of,
    to_decode,
)
from holdfast.nodes.xla.steps import Steps

if TYPE_CHECKING:
    import torch


class TPUNode:
    """What the nodes have in common: one loaded model for all of them."""

    CATEGORY: ClassVar[str]
    RETURN_TYPES: ClassVar[tuple[str, ...]]
    RETURN_NAMES: ClassVar[tuple[str, ...]]
    OUTPUT_TOOLTIPS: ClassVar[tuple[str, ...]]
    FUNCTION: ClassVar[str]
    DESCRIPTION: ClassVar[str]
    FAMILY: ClassVar[str]
    NAMES_MODEL: ClassVar[bool] = True  # else the model comes with what is connected
    _models: ClassVar[Models] = Models()

    def _get_or_create_model(self, model_id: str, device: str = AUTO) -> Held:
        """The model, loaded if it is not. Raises NotFound, BadInput, MissingDependency, …"""
        return self._models.get(self, model_id, device, self.FAMILY)

    @classmethod
    def VALIDATE_INPUTS(
        cls,
        model_id: str | None = None,
        positive: object = None,
        negative: object = None,
        samples: object = None,
    ) -> bool | str:
        """A model that is not there, or not to be read, is told before anything runs."""
        sockets = {"positive": positive, "negative": negative, "samples": samples}
        linked = unlinked(cls, **{name: one for name, one in sockets.items() if one is not None})
        if linked is not True:
            return linked
        return (refusal(model_id) or True) if model_id else True

    @classmethod
    def IS_CHANGED(cls, model_id: str | None = None, **_: Any) -> str | float:
        """Another text when a file of the model is another. Everything else is in the inputs.

        A name that comes over a link is not known yet: then nothing is taken for unchanged.
        """
        if model_id:
            return fingerprint(model_id)
        return math.nan if cls.NAMES_MODEL else ""

    @classmethod
    def _usual(cls) -> str:
        return f"tiny-{cls.FAMILY}"

    @classmethod
    def _called(cls, stage: str) -> str:
        return f"{cls.CATEGORY.removeprefix('TPU/')} {stage} (TPU)"

    # ---- the three stages

    def _encode(self, held: Held, prompt: str) -> dict[str, torch.Tensor]:
        pipe = held.pipe
        settings = pipe.check(prompt, guidance=0.0)  # one prompt at a time: no negative one
        with at_work(pipe, "text"):
            found, notes = pipe.text(settings), pipe.text.notes(settings)
        for note in notes:  # such as a prompt that is too long
            host.text(note)
        return found

    def _sample(
        self,
        held: Held,
        prompt: str,
        text: dict[str, torch.Tensor],
        away: tuple[str, dict[str, torch.Tensor]] | None,
        **sampling: Any,
    ) -> Drawn:
        """`away` is the negative prompt, where there is one, and what was read of it."""
        import torch

        pipe = held.pipe
        negative = None if away is None else away[0]
        settings = pipe.check(prompt, negative=negative, **asked_for(sampling))
        refuse_size(held, settings)
        if pipe.limits.takes_negative and settings.guidance > 1:
            found = self._encode(held, "") if away is None else away[1]
            text = text | {f"negative_{name}": tensor for name, tensor in found.items()}
        generator = torch.Generator("cpu").manual_seed(settings.seed)
        with at_work(pipe, "denoise"):
            noise = pipe.denoise.noise(settings, generator)
            steps = Steps(pipe, held.layout, settings)
            latents = pipe.denoise(text, noise, settings, generator, steps)
        return Drawn(self.FAMILY, held.model_id, held.device, settings, latents)

    def _decode(self, held: Held, samples: torch.Tensor, drawn: Drawn | None) -> torch.Tensor:
        import torch

        found: list[torch.Tensor] = []
        work = to_decode(held.pipe, held.layout, samples, drawn)
        show = host.progress()
        for done, (latents, settings) in enumerate(work, start=1):
            refuse_size(held, settings)
            with at_work(held.pipe, "decode"):
                found.append(images(held.pipe.decode(latents, settings)))
            show(done, len(work))
        return torch.cat(found)


class _TextEncoder(TPUNode):
    RETURN_TYPES = ("CONDITIONING",)
    RETURN_NAMES = ("conditioning",)
    OUTPUT_TOOLTIPS = ("The prompt for the sampler of the same model, positive or negative.",)
    FUNCTION = "encode"

    @classmethod
    def INPUT_TYPES(cls) -> Inputs:
        """The prompt, and whose text encoder reads it."""
        return {
            "required": {"prompt": inputs.prompt(cls.FAMILY)},
            "optional": {"model_id": inputs.model(cls.FAMILY), "device": inputs.device()},
        }

    def encode(
        self, prompt: str, model_id: str | None = None, device: str = AUTO
    ) -> tuple[list[list[Any]]]:
        """(conditioning,). Raises NotFound, BadInput, OutOfMemory or MissingDependency."""
        with self._models.lock:
            held = self._get_or_create_model(model_id or self._usual(), device)
            found = self._encode(held, prompt)
        read = Read(self.FAMILY, held.model_id, held.device, prompt)
        return (conditioning(found, read),)


class _Sampler(TPUNode):
    RETURN_TYPES = ("LATENT",)
    RETURN_NAMES = ("samples",)
    OUTPUT_TOOLTIPS = ("The latents, for the decoder of the same model or for a VAE of ComfyUI.",)
    FUNCTION = "sample"
    NAMES_MODEL = False

    @classmethod
    def INPUT_TYPES(cls) -> Inputs:
        """What was read, and how to draw it; the model is the one that has read it."""
        positive, negative = inputs.conditionings(cls._called("Text Encoder"))
        return {
            "required": {"positive": positive, **inputs.sampling(cls.FAMILY)},
            "optional": {"negative": negative},
        }

    def sample(
        self,
        positive: list[list[Any]],
        negative: list[list[Any]] | None = None,
        **sampling: Any,
    ) -> tuple[dict[str, Any]]:
        """(samples,). Raises BadInput for conditioning that is not of the text encoder, and for
        settings that the model cannot draw.
        """
        read = reading(positive, "positive", self.FAMILY)
        text = text_of(positive, "positive", self.FAMILY)
        away = None if negative is None else self._away(read, negative)
        guided = guidance_of(positive, "positive", self.FAMILY)
        if guided is not None and sampling.get("guidance", -1.0) == -1.0:
            sampling["guidance"] = guided
        with self._models.lock:
            held = self._get_or_create_model(read.model_id, read.device)
            drawn = self._sample(held, read.prompt, text, away, **sampling)
            return (latent(held.layout, drawn),)

    def _away(self, read: Read, negative: object) -> tuple[str, dict[str, torch.Tensor]]:
        other = reading(negative, "negative", self.FAMILY)
        if (other.model_id, other.device) != (read.model_id, read.device):
            raise BadInput(
                f"cannot use negative: {other.model_id!r} on {other.device!r} has read it, and "
                f"{read.model_id!r} on {read.device!r} the positive one",
                expected="one model and one device for both",
                hint="give both text encoders the same model_id and device",
            )
        return other.prompt, text_of(negative, "negative", self.FAMILY)


class _VAEDecoder(TPUNode):
    FUNCTION = "decode"
    NAMES_MODEL = False

    @classmethod
    def INPUT_TYPES(cls) -> Inputs:
        """Latents; those of another sampler need the name of a model."""
        samples, model = inputs.latents(cls._called("Sampler"))
        fps = {"fps": inputs.FPS} if cls.FAMILY == "wan" else {}
        return {"required": {"samples": samples, **fps}, "optional": {"model_id": model}}

    def decode(self, samples: Any, model_id: str = "", fps: int = 8) -> tuple[Any, ...]:
        """(images,), of a video with the frames a second. Raises BadInput for other latents."""
        tensor, drawn = samples_of(samples)
        name, device = model_id, AUTO
        if drawn is not None and drawn.family == self.FAMILY and not model_id:
            name, device = drawn.model_id, drawn.device
        if not name:
            sampler = self._called("Sampler")
            raise BadInput(
                "cannot decode these latents: they do not say which model drew them",
                expected=f"latents of {sampler}, or a model_id",
                hint=f"connect {sampler}, or set model_id",
            )
        with self._models.lock:
            held = self._get_or_create_model(name, device)
            same = drawn is not None and drawn.model_id == held.model_id
            pictures = self._decode(held, tensor, drawn if same else None)
        return (pictures,) if self.FAMILY == "flux" else (pictures, float(fps))


class _Pipeline(TPUNode):
    FUNCTION = "generate"

    @classmethod
    def INPUT_TYPES(cls) -> Inputs:
        """Everything."""
        fps = {"fps": inputs.FPS} if cls.FAMILY == "wan" else {}
        return {
            "required": {
                "prompt": inputs.prompt(cls.FAMILY),
                **inputs.sampling(cls.FAMILY),
            },
            "optional": {
                "negative_prompt": inputs.negative_prompt(),
                "model_id": inputs.model(cls.FAMILY),
                "device": inputs.device(),
                **fps,
            },
        }

    def generate(
        self,
        prompt: str,
        negative_prompt: str = "",
        model_id: str | None = None,
        device: str = AUTO,
        fps: int = 8,
        **sampling: Any,
    ) -> tuple[Any, ...]:
        """(images,), of a video with the frames a second. Raises what the three stages raise."""
        with self._models.lock:
            held = self._get_or_create_model(model_id or self._usual(), device)
            negative = negative_prompt or None
            held.pipe.check(prompt, negative=negative, **asked_for(sampling))
            text = self._encode(held, prompt)
            away = None if negative is None else (negative, self._encode(held, negative))
            drawn = self._sample(held, prompt, text, away, **sampling)
            samples = latent(held.layout, drawn)["samples"]
            pictures = self._decode(held, samples, drawn)
        return (pictures,) if self.FAMILY == "flux" else (pictures, float(fps))


# ---- the nodes


class _Flux:
    CATEGORY = "TPU/Flux"
    FAMILY = "flux"


class _Wan:
    CATEGORY = "TPU/Wan"
    FAMILY = "wan"


class _Picture(_Flux):
    RETURN_TYPES = ("IMAGE",)
    RETURN_NAMES = ("images",)
    OUTPUT_TOOLTIPS = ("The picture.",)


class _Video(_Wan):
    RETURN_TYPES = ("IMAGE", "FLOAT")
    RETURN_NAMES = ("images", "fps")
    OUTPUT_TOOLTIPS = ("The frames.", "Frames a second, for a node that saves a video.")


class FluxTPUTextEncoder(_Flux, _TextEncoder):
    """A prompt as what the sampler takes."""

    DESCRIPTION = "Reads a prompt with the text encoders (CLIP and T5) of a FLUX model, on XLA."


class FluxTPUSampler(_Flux, _Sampler):
    """Noise into latents, step by step."""

    DESCRIPTION = (
        "Draws latents with a FLUX model on TPUs, GPUs or the CPU through XLA, its weights split "
        "over all devices. The first run with a size compiles."
    )


class FluxTPUVAEDecoder(_Picture, _VAEDecoder):
    """Latents into pictures."""

    DESCRIPTION = "Turns latents into pictures with the autoencoder of a FLUX model, on XLA."


class FluxTPUPipeline(_Picture, _Pipeline):
    """The three of them in one node."""

    DESCRIPTION = (
        "Prompt to picture with a FLUX model on TPUs, GPUs or the CPU through XLA. tiny-flux, "
        'which comes along, draws digits: "a red handwritten seven on yellow paper".'
    )


class WanTPUTextEncoder(_Wan, _TextEncoder):
    """A prompt as what the sampler takes."""

    DESCRIPTION = "Reads a prompt with the text encoder (UMT5) of a Wan model, on XLA."


class WanTPUSampler(_Wan, _Sampler):
    """Noise into latents, step by step."""

    DESCRIPTION = (
        "Draws the latents of a video with a Wan 2.1 or 2.2 model on TPUs, GPUs or the CPU through "
        "XLA, its weights split over all devices. The first run with a size compiles."
    )


class WanTPUVAEDecoder(_Video, _VAEDecoder):
    """Latents into frames."""

    DESCRIPTION = "Turns latents into frames with the autoencoder of a Wan model, on XLA."


class WanTPUPipeline(_Video, _Pipeline):
    """The three of them in one node."""

    DESCRIPTION = (
        "Prompt to video with a Wan 2.1 or 2.2 model on TPUs, GPUs or the CPU through XLA. "
        'tiny-wan, which comes along, moves digits: "a handwritten seven moving right".'
    )


NODE_CLASS_MAPPINGS: dict[str, type[TPUNode]] = {
    node.__name__: node
    for node in (
        *(FluxTPUTextEncoder, FluxTPUSampler, FluxTPUVAEDecoder, FluxTPUPipeline),
        *(WanTPUTextEncoder, WanTPUSampler, WanTPUVAEDecoder, WanTPUPipeline),
    )
}
NODE_DISPLAY_NAME_MAPPINGS = {
    "FluxTPUTextEncoder": "Flux Text Encoder (TPU)",
    "FluxTPUSampler": "Flux Sampler (TPU)",
    "FluxTPUVAEDecoder": "Flux VAE Decoder (TPU)",
    "FluxTPUPipeline": "Flux Pipeline (TPU)",
    "WanTPUTextEncoder": "Wan Text Encoder (TPU)",
    "WanTPUSampler": "Wan Sampler (TPU)",
    "WanTPUVAEDecoder": "Wan VAE Decoder (TPU)",
    "WanTPUPipeline": "Wan Pipeline (TPU)",
}


# ---- memory


def loaded() -> list[tuple[str, int]]:
    """The model that the nodes hold, if any: its name and the bytes of its weights."""
    held = TPUNode._models.held
    return [] if held is None else [(held.model_id, held.size_bytes)]


def unload() -> int | None:
    """Let go of it; the bytes that its weights took, None where there was none.

    Waits for a node that is at work with it. The next node loads it again.
    """
    return TPUNode._models.unload()
