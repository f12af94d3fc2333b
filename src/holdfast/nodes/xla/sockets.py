"""Conversion between ComfyUI's CONDITIONING, LATENT and IMAGE and the stages of a pipeline.

Inputs are not changed. Latents have ComfyUI's layout, [batch, channel, (frame,) row, column], as an
autoencoder takes them. Latents that no other node changed decode bit for bit as in the pipeline.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from holdfast.base.errors import BadInput

if TYPE_CHECKING:
    import numpy
    import torch

    from holdfast.pipeline import Pipeline, Settings

MARK = "holdfast"
_NODES = {"flux": "Flux", "wan": "Wan"}
# Keys of a CONDITIONING that are used here, and neutral values of others.
_USED = {MARK, "pooled_output", "guidance"}
_NEUTRAL = {"strength": 1.0, "start_percent": 0.0, "end_percent": 1.0, "set_area_to_bounds": False}


@dataclass(frozen=True, slots=True)
class PromptOrigin:
    """In a CONDITIONING: the model that encoded it, and the prompt."""

    family: str
    model_id: str
    device: str
    prompt: str


@dataclass(frozen=True, slots=True, eq=False)
class LatentOrigin:
    """In a LATENT: the model that sampled it, and the latents as the pipeline has them."""

    family: str
    model_id: str
    device: str
    settings: Settings
    latents: torch.Tensor = dataclasses.field(repr=False)


def drop_defaults(sampling: Mapping[str, Any]) -> dict[str, Any]:
    """The settings without those left to the model: 0, and a guidance of -1."""
    nothing = {"guidance": -1.0, "seed": None}
    return {name: value for name, value in sampling.items() if value != nothing.get(name, 0)}


def to_images(frames: numpy.ndarray) -> torch.Tensor:
    """uint8 frames as ComfyUI's IMAGE: float32 from 0 to 1, [frame, height, width, colour]."""
    import torch

    return torch.from_numpy(frames).to(torch.float32) / 255


# ---- CONDITIONING


def conditioning(found: Mapping[str, Any], read: PromptOrigin) -> list[list[Any]]:
    """The output of a text stage as a CONDITIONING."""
    extras: dict[str, Any] = {MARK: read}
    if "pooled" in found:
        extras["pooled_output"] = found["pooled"]
    return [[found["tokens"], extras]]


class Conditioning(NamedTuple):
    """A CONDITIONING as the denoise stage takes it."""

    origin: PromptOrigin
    text: dict[str, torch.Tensor]  # by the names of that stage
    guidance: float | None  # that ComfyUI's FluxGuidance stored


def read_conditioning(given: object, name: str, family: str) -> Conditioning:
    """Read a CONDITIONING. Raises BadInput if the sampler cannot use it."""
    tokens, extras = _entry(given, name, family)
    pooled = {"pooled": extras["pooled_output"]} if family == "flux" else {}
    return Conditioning(extras[MARK], {"tokens": tokens, **pooled}, extras.get("guidance"))


def _entry(given: object, name: str, family: str) -> tuple[Any, dict[str, Any]]:
    """The one pair of tensor and extras. Raises BadInput."""
    import torch

    pairs = given if isinstance(given, list) else []
    if not pairs or not all(_is_pair(pair) for pair in pairs):
        raise _foreign(name, family, "it is no CONDITIONING")
    tokens, extras = pairs[0]
    read = extras.get(MARK)
    if not isinstance(read, PromptOrigin):
        raise _foreign(name, family, "it is of another text encoder")
    if read.family != family:
        raise _foreign(name, family, f"it is of {_NODES[read.family]} Text Encoder (TPU)")
    if len(pairs) > 1:
        raise BadInput(
            f"cannot use {name}: it is {len(pairs)} prompts combined",
            expected="one prompt",
            hint="Conditioning (Concat) or Conditioning (Average) makes one of them",
        )
    strange = [key for key in extras if key not in _USED and not _says_nothing(key, extras[key])]
    if strange:
        raise BadInput(
            f"cannot use {name} with {strange[0]!r}: this sampler draws the whole picture with "
            "one prompt",
            expected="a prompt without areas, masks, time ranges, control nets and hooks",
            hint=f"connect {_NODES[family]} Text Encoder (TPU) to it directly",
        )
    pooled = extras.get("pooled_output")
    if tokens.ndim != 3 or (family == "flux" and not isinstance(pooled, torch.Tensor)):
        raise _foreign(name, family, "a node has changed its shape")
    return tokens, extras


def _is_pair(pair: object) -> bool:
    import torch

    return (
        isinstance(pair, list | tuple)
        and len(pair) == 2
        and isinstance(pair[0], torch.Tensor)
        and isinstance(pair[1], dict)
    )


def _says_nothing(key: str, value: object) -> bool:
    return value is None or (key in _NEUTRAL and value == _NEUTRAL[key])


def _foreign(name: str, family: str, why: str) -> BadInput:
    encoder = f"{_NODES[family]} Text Encoder (TPU)"
    return BadInput(
        f"cannot use {name}: {why}",
        expected=f"the conditioning of {encoder}",
        hint=f"connect {encoder}, with the model that is to draw",
    )


# ---- LATENT


@dataclass(frozen=True, slots=True)
class LatentLayout:
    """The layout of a model's latents. ComfyUI's are the pipeline's times `scale` plus `shift`."""

    family: str
    model: str
    channels: int
    pixels: int  # along a side of one latent
    scale: tuple[float, ...]  # by channel
    shift: tuple[float, ...]
    features: int  # per pixel, in the last layers of the decoder

    @classmethod
    def of(cls, pipe: Pipeline) -> LatentLayout:
        """The layout of a loaded model."""
        config, family = pipe.source.configs()["vae"], pipe.source.family
        if family == "flux":
            channels, levels = config["latent_channels"], len(config["block_out_channels"])
            scale = (1 / config["scaling_factor"],) * channels
            shift = (config.get("shift_factor") or 0.0,) * channels
            pixels, features = 2 ** (levels - 1), config["block_out_channels"][0]
            return cls(family, pipe.source.model, channels, pixels, scale, shift, features)
        scale, shift = tuple(config["latents_std"]), tuple(config["latents_mean"])
        pixels = config.get("scale_factor_spatial", 8)
        features = config.get("decoder_base_dim") or config.get("base_dim", 96)
        return cls(family, pipe.source.model, config["z_dim"], pixels, scale, shift, features)

    def unpack(self, latents: torch.Tensor, settings: Settings) -> torch.Tensor:
        """To [batch, channel, (frame,) row, column]; FLUX packs 2 x 2 latents into one token."""
        if self.family != "flux":
            return latents
        rows, columns = (side // self.pixels // 2 for side in (settings.height, settings.width))
        squares = latents.unflatten(1, (rows, columns)).unflatten(3, (-1, 2, 2))
        return squares.permute(0, 3, 1, 4, 2, 5).flatten(4, 5).flatten(2, 3)

    def pack(self, wide: torch.Tensor) -> torch.Tensor:
        """The inverse of `unpack`."""
        if self.family != "flux":
            return wide
        squares = wide.unflatten(3, (-1, 2)).unflatten(2, (-1, 2))
        return squares.permute(0, 2, 4, 1, 3, 5).flatten(3, 5).flatten(1, 2)

    def to_comfyui(self, latents: torch.Tensor, settings: Settings) -> torch.Tensor:
        """As an autoencoder of ComfyUI takes them, float32."""
        wide = self.unpack(latents, settings).float()
        scale, shift = self._factors(wide)
        return wide * scale + shift

    def from_comfyui(self, samples: torch.Tensor) -> torch.Tensor:
        """The inverse of `to_comfyui`, up to rounding."""
        wide = samples.float()
        scale, shift = self._factors(wide)
        return self.pack((wide - shift) / scale)

    def check(self, samples: torch.Tensor) -> None:
        """Raise BadInput for latents that do not fit this model."""
        flux = self.family == "flux"
        odd = flux and any(size % 2 for size in samples.shape[2:])
        fits = samples.ndim == (4 if flux else 5) and samples.shape[1] == self.channels
        if not fits or odd or not samples.numel():
            sizes = "even height, even width" if flux else "frames, height, width"
            raise BadInput(
                f"cannot decode latents of {list(samples.shape)} with {self.model!r}",
                expected=f"[batch, {self.channels}, {sizes}]",
                hint=f"connect {_NODES[self.family]} Sampler (TPU), or name the model of them",
            )

    def _factors(self, wide: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        shape = (1, -1, *(1,) * (wide.ndim - 2))
        return wide.new_tensor(self.scale).view(shape), wide.new_tensor(self.shift).view(shape)


def latent(layout: LatentLayout, drawn: LatentOrigin) -> dict[str, Any]:
    """Latents of a pipeline as a LATENT, with all that decoding needs."""
    return {"samples": layout.to_comfyui(drawn.latents, drawn.settings), MARK: drawn}


def samples_of(given: object) -> tuple[torch.Tensor, LatentOrigin | None]:
    """The tensor of a LATENT and its origin, if known. Raises BadInput for anything else."""
    import torch

    samples = given.get("samples") if isinstance(given, dict) else None
    if not isinstance(given, dict) or not isinstance(samples, torch.Tensor):
        raise BadInput(
            "cannot decode what is no LATENT",
            expected='a dict with "samples", as samplers give it',
            hint="connect a sampler",
        )
    drawn = given.get(MARK)
    return samples, drawn if isinstance(drawn, LatentOrigin) else None


def to_decode(
    pipe: Pipeline, layout: LatentLayout, samples: torch.Tensor, drawn: LatentOrigin | None
) -> list[tuple[torch.Tensor, Settings]]:
    """The inputs of the decode stage, for each latent of a batch. Raises BadInput.

    Unchanged latents are decoded as the pipeline had them.
    """
    if drawn is not None:
        untouched = layout.to_comfyui(drawn.latents, drawn.settings)
        if untouched.shape == samples.shape and bool((untouched == samples).all()):
            return [(drawn.latents, drawn.settings)]
    layout.check(samples)
    height, width = (size * layout.pixels for size in samples.shape[-2:])
    settings = pipe.check(
        "" if drawn is None else drawn.settings.prompt, height=height, width=width
    )
    return [(one, settings) for one in layout.from_comfyui(samples).split(1)]
