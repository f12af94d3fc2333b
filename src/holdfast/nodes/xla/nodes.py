"""Nodes for FLUX and Wan through XLA: text encoder, sampler, VAE decoder, whole pipeline.

The three stages, the pipeline node and `Pipeline.draw` give the same result, bit for bit. A node
that is stopped or fails leaves the model usable. All nodes share one loaded model, until ComfyUI
drops the nodes that used it.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, ClassVar

from holdfast.base.errors import BadInput
from holdfast.nodes import host, node
from holdfast.nodes.refusing import check_linked
from holdfast.nodes.xla.models import (
    AUTO,
    DEVICES,
    LoadedModel,
    Models,
    fingerprint,
    refusal,
    refuse_size,
    run_stage,
)
from holdfast.nodes.xla.sockets import (
    LatentOrigin,
    PromptOrigin,
    conditioning,
    drop_defaults,
    latent,
    read_conditioning,
    samples_of,
    to_decode,
    to_images,
)
from holdfast.nodes.xla.steps import Steps

if TYPE_CHECKING:
    import torch


class TPUNode(node.Node):
    """Base class of the nodes, with the one loaded model."""

    FAMILY: ClassVar[str]
    EXAMPLE: ClassVar[str]  # a prompt that the tiny model knows
    FRAMES: ClassVar[dict[str, node.Input]] = {}  # inputs of videos
    FPS: ClassVar[dict[str, node.Input]] = {}
    NAMES_MODEL: ClassVar[bool] = True  # else the model is that of the linked inputs
    _models: ClassVar[Models] = Models()

    def _get_or_create_model(self, model_id: str, device: str = AUTO) -> LoadedModel:
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
        """Reject an unknown model and values in place of links, before anything runs."""
        sockets = {"positive": positive, "negative": negative, "samples": samples}
        linked = check_linked(cls, **sockets)
        return linked if linked is not True or not model_id else refusal(model_id) or True

    @classmethod
    def IS_CHANGED(cls, model_id: str | None = None, **_: Any) -> str | float:
        """Changes when a file of the model changes; everything else is in the inputs.

        NaN if the name comes over a link, since it is unknown then.
        """
        if model_id:
            return fingerprint(model_id)
        return math.nan if cls.NAMES_MODEL else ""

    @classmethod
    def _usual(cls) -> str:
        return f"tiny-{cls.FAMILY}"

    @classmethod
    def _name_of(cls, stage: str) -> str:
        return f"{cls.CATEGORY.removeprefix('TPU/')} {stage} (TPU)"

    # ---- inputs; 0, and a guidance of -1, mean the model's default

    @classmethod
    def _prompt(cls) -> dict[str, node.Input]:
        return {"prompt": node.string(cls.EXAMPLE, multiline=True, dynamicPrompts=True)}

    @classmethod
    def _model(cls) -> dict[str, node.Input]:
        return {"model_id": node.string(cls._usual()), "device": node.choice(list(DEVICES), AUTO)}

    @classmethod
    def _sampling(cls) -> dict[str, node.Input]:
        side = node.integer(0, 0, 8192, step=8)
        return {
            "height": side,
            "width": side,
            **cls.FRAMES,
            "steps": node.integer(0, 0, 1000),
            "guidance": node.number(-1.0, -1.0, 100.0, 0.1),
            "seed": node.integer(42, 0, 2**63 - 1, control_after_generate=True),
        }

    # ---- the three stages

    def _encode(self, held: LoadedModel, prompt: str) -> dict[str, torch.Tensor]:
        pipe = held.pipe
        settings = pipe.check(prompt, guidance=0.0)  # without a negative prompt
        with run_stage(pipe, "text"):
            found, notes = pipe.text(settings), pipe.text.notes(settings)
        for note in notes:  # such as a prompt that is too long
            host.text(note)
        return found

    def _sample(
        self,
        held: LoadedModel,
        prompt: str,
        text: dict[str, torch.Tensor],
        away: tuple[str, dict[str, torch.Tensor]] | None,
        **sampling: Any,
    ) -> LatentOrigin:
        """`away` is the negative prompt and its encoding, if there is one."""
        import torch

        pipe = held.pipe
        negative = None if away is None else away[0]
        settings = pipe.check(prompt, negative=negative, **drop_defaults(sampling))
        refuse_size(held, settings)
        if pipe.limits.takes_negative and settings.guidance > 1:
            found = self._encode(held, "") if away is None else away[1]
            text = text | {f"negative_{name}": tensor for name, tensor in found.items()}
        generator = torch.Generator("cpu").manual_seed(settings.seed)
        with run_stage(pipe, "denoise"):
            noise = pipe.denoise.noise(settings, generator)
            steps = Steps(pipe, held.layout, settings)
            latents = pipe.denoise(text, noise, settings, generator, steps)
        return LatentOrigin(self.FAMILY, held.model_id, held.device, settings, latents)

    def _decode(
        self, held: LoadedModel, samples: torch.Tensor, drawn: LatentOrigin | None
    ) -> torch.Tensor:
        import torch

        found: list[torch.Tensor] = []
        work = to_decode(held.pipe, held.layout, samples, drawn)
        show = host.progress()
        for done, (latents, settings) in enumerate(work, start=1):
            refuse_size(held, settings)
            with run_stage(held.pipe, "decode"):
                found.append(to_images(held.pipe.decode(latents, settings)))
            show(done, len(work))
        return torch.cat(found)


class _TextEncoder(TPUNode):
    RETURN_TYPES = ("CONDITIONING",)
    RETURN_NAMES = ("conditioning",)
    FUNCTION = "encode"

    @classmethod
    def _inputs(cls) -> node.Inputs:
        return node.declare(cls._prompt(), cls._model())

    def encode(
        self, prompt: str, model_id: str | None = None, device: str = AUTO
    ) -> tuple[list[list[Any]]]:
        """(conditioning,). Raises NotFound, BadInput, OutOfMemory or MissingDependency."""
        with self._models.lock:
            held = self._get_or_create_model(model_id or self._usual(), device)
            found = self._encode(held, prompt)
        origin = PromptOrigin(self.FAMILY, held.model_id, held.device, prompt)
        return (conditioning(found, origin),)


class _Sampler(TPUNode):
    RETURN_TYPES = ("LATENT",)
    RETURN_NAMES = ("samples",)
    FUNCTION = "sample"
    NAMES_MODEL = False

    @classmethod
    def _inputs(cls) -> node.Inputs:
        conditioning = node.link("CONDITIONING")
        return node.declare(
            {"positive": conditioning, **cls._sampling()}, {"negative": conditioning}
        )

    def sample(
        self,
        positive: list[list[Any]],
        negative: list[list[Any]] | None = None,
        **sampling: Any,
    ) -> tuple[dict[str, Any]]:
        """(samples,). Raises BadInput for conditioning of another text encoder, and for bad
        settings.
        """
        origin, text, guided = read_conditioning(positive, "positive", self.FAMILY)
        away = None if negative is None else self._read_negative(origin, negative)
        if guided is not None and sampling.get("guidance", -1.0) == -1.0:
            sampling["guidance"] = guided
        with self._models.lock:
            held = self._get_or_create_model(origin.model_id, origin.device)
            drawn = self._sample(held, origin.prompt, text, away, **sampling)
            return (latent(held.layout, drawn),)

    def _read_negative(
        self, origin: PromptOrigin, negative: object
    ) -> tuple[str, dict[str, torch.Tensor]]:
        other, text, _ = read_conditioning(negative, "negative", self.FAMILY)
        if (other.model_id, other.device) != (origin.model_id, origin.device):
            raise BadInput(
                f"cannot use negative: {other.model_id!r} on {other.device!r} has read it, and "
                f"{origin.model_id!r} on {origin.device!r} the positive one",
                expected="one model and one device for both",
                hint="give both text encoders the same model_id and device",
            )
        return other.prompt, text


class _VAEDecoder(TPUNode):
    FUNCTION = "decode"
    NAMES_MODEL = False

    @classmethod
    def _inputs(cls) -> node.Inputs:
        return node.declare(
            {"samples": node.link("LATENT"), **cls.FPS}, {"model_id": node.string("")}
        )

    def decode(self, samples: Any, model_id: str = "", fps: int = 8) -> tuple[Any, ...]:
        """(images,), for a video (images, fps). Raises BadInput for other latents."""
        tensor, drawn = samples_of(samples)
        name, device = model_id, AUTO
        if drawn is not None and drawn.family == self.FAMILY and not model_id:
            name, device = drawn.model_id, drawn.device
        if not name:
            sampler = self._name_of("Sampler")
            raise BadInput(
                "cannot decode these latents: they do not say which model drew them",
                expected=f"latents of {sampler}, or a model_id",
                hint=f"connect {sampler}, or set model_id",
            )
        with self._models.lock:
            held = self._get_or_create_model(name, device)
            same = drawn is not None and drawn.model_id == held.model_id
            pictures = self._decode(held, tensor, drawn if same else None)
        return (pictures, float(fps))[: len(self.RETURN_TYPES)]


class _Pipeline(TPUNode):
    FUNCTION = "generate"

    @classmethod
    def _inputs(cls) -> node.Inputs:
        negative = {"negative_prompt": node.string("", multiline=True)}
        return node.declare(cls._prompt() | cls._sampling(), negative | cls._model() | cls.FPS)

    def generate(
        self,
        prompt: str,
        negative_prompt: str = "",
        model_id: str | None = None,
        device: str = AUTO,
        fps: int = 8,
        **sampling: Any,
    ) -> tuple[Any, ...]:
        """(images,), for a video (images, fps). Raises what the three stages raise."""
        with self._models.lock:
            held = self._get_or_create_model(model_id or self._usual(), device)
            negative = negative_prompt or None
            held.pipe.check(prompt, negative=negative, **drop_defaults(sampling))
            text = self._encode(held, prompt)
            away = None if negative is None else (negative, self._encode(held, negative))
            drawn = self._sample(held, prompt, text, away, **sampling)
            samples = latent(held.layout, drawn)["samples"]
            pictures = self._decode(held, samples, drawn)
        return (pictures, float(fps))[: len(self.RETURN_TYPES)]


# ---- the nodes


class _Flux:
    CATEGORY = "TPU/Flux"
    FAMILY = "flux"
    EXAMPLE = "a handwritten seven"


class _Wan:
    CATEGORY = "TPU/Wan"
    FAMILY = "wan"
    EXAMPLE = "a handwritten seven moving right"
    FRAMES: ClassVar[dict[str, node.Input]] = {"num_frames": node.integer(0, 0, 10_000)}
    FPS: ClassVar[dict[str, node.Input]] = {"fps": node.integer(8, 1, 240)}


class _Picture(_Flux):
    RETURN_TYPES = ("IMAGE",)
    RETURN_NAMES = ("images",)


class _Video(_Wan):
    RETURN_TYPES = ("IMAGE", "FLOAT")
    RETURN_NAMES = ("images", "fps")


class FluxTPUTextEncoder(_Flux, _TextEncoder):
    """A prompt as what the sampler takes."""


class FluxTPUSampler(_Flux, _Sampler):
    """Noise into latents, step by step."""


class FluxTPUVAEDecoder(_Picture, _VAEDecoder):
    """Latents into pictures."""


class FluxTPUPipeline(_Picture, _Pipeline):
    """The three of them in one node."""


class WanTPUTextEncoder(_Wan, _TextEncoder):
    """A prompt as what the sampler takes."""


class WanTPUSampler(_Wan, _Sampler):
    """Noise into latents, step by step."""


class WanTPUVAEDecoder(_Video, _VAEDecoder):
    """Latents into frames."""


class WanTPUPipeline(_Video, _Pipeline):
    """The three of them in one node."""


NODE_CLASS_MAPPINGS, NODE_DISPLAY_NAME_MAPPINGS = node.class_mappings(
    *(FluxTPUTextEncoder, FluxTPUSampler, FluxTPUVAEDecoder, FluxTPUPipeline),
    *(WanTPUTextEncoder, WanTPUSampler, WanTPUVAEDecoder, WanTPUPipeline),
)


# ---- memory


def list_loaded() -> list[tuple[str, int]]:
    """The model that the nodes hold, if any: [(name, bytes of its weights)]."""
    held = TPUNode._models.held
    return [] if held is None else [(held.model_id, held.size_bytes)]


def unload() -> int | None:
    """Unload that model; returns the bytes of its weights, None if there was none.

    Waits for a node that uses it. The next node loads it again.
    """
    return TPUNode._models.unload()
