"""What goes between the TPU nodes, in the form that ComfyUI's own nodes give and take.

Covers: CONDITIONING, LATENT and IMAGE; from there to what the stages of a pipeline take, and back.
Leaves to others: the stages (pipeline), the nodes (xla).
Promise: nothing that comes in is changed. Latents are those of ComfyUI: [batch, channel, (frame,)
row, column] as the autoencoder takes them. Latents that nobody has changed on their way are decoded
to the same bit as without ComfyUI's form.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from holdfast.base.errors import BadInput

if TYPE_CHECKING:
    import numpy
    import torch

    from holdfast.pipeline import Pipeline, Settings

MARK = "holdfast"
_NODES = {"flux": "Flux", "wan": "Wan"}
# Keys of a CONDITIONING that are used here, and those with a value that says nothing.
_USED = {MARK, "pooled_output", "guidance"}
_NEUTRAL = {"strength": 1.0, "start_percent": 0.0, "end_percent": 1.0, "set_area_to_bounds": False}


@dataclass(frozen=True, slots=True)
class Read:
    """In a CONDITIONING: who has read which prompt. The tensors are where ComfyUI has them."""

    family: str
    model_id: str
    device: str
    prompt: str


@dataclass(frozen=True, slots=True, eq=False)
class Drawn:
    """In a LATENT: who has drawn it, and the latents as the pipeline has them."""

    family: str
    model_id: str
    device: str
    settings: Settings
    latents: torch.Tensor = dataclasses.field(repr=False)


def asked_for(sampling: Mapping[str, Any]) -> dict[str, Any]:
    """What a node was given, less what is left to the model: 0, and a guidance of -1."""
    nothing = {"guidance": -1.0, "seed": None}
    return {name: value for name, value in sampling.items() if value != nothing.get(name, 0)}


def images(frames: numpy.ndarray) -> torch.Tensor:
    """Frames of bytes as ComfyUI's IMAGE: float32 from 0 to 1, [frame, height, width, colour]."""
    import torch

    return torch.from_numpy(frames).to(torch.float32) / 255


# ---- CONDITIONING


def conditioning(found: Mapping[str, Any], read: Read) -> list[list[Any]]:
    """What a text stage has found, as ComfyUI has it."""
    extras: dict[str, Any] = {MARK: read}
    if "pooled" in found:
        extras["pooled_output"] = found["pooled"]
    return [[found["tokens"], extras]]


def reading(given: object, name: str, family: str) -> Read:
    """Who has read a CONDITIONING. Raises BadInput for one that the sampler cannot use."""
    return _entry(given, name, family)[1][MARK]


def text_of(given: object, name: str, family: str) -> dict[str, torch.Tensor]:
    """The tensors of a CONDITIONING by the names that the denoise stage has for them."""
    tokens, extras = _entry(given, name, family)
    found = {"tokens": tokens}
    if family == "flux":
        found["pooled"] = extras["pooled_output"]
    return found


def guidance_of(given: object, name: str, family: str) -> float | None:
    """What ComfyUI's FluxGuidance has written into a CONDITIONING."""
    return _entry(given, name, family)[1].get("guidance")


def _entry(given: object, name: str, family: str) -> tuple[Any, dict[str, Any]]:
    """The one pair of tensor and extras. The order of the checks is that of likely mistakes."""
    import torch

    pairs = given if isinstance(given, list) else []
    if not pairs or not all(_is_pair(pair) for pair in pairs):
        raise _foreign(name, family, "it is no CONDITIONING")
    tokens, extras = pairs[0]
    read = extras.get(MARK)
    if not isinstance(read, Read):
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
class Layout:
    """How the latents of a model lie. ComfyUI's are a pipeline's times `scale`, plus `shift`."""

    family: str
    model: str
    channels: int
    pixels: int  # a side of a latent stands for so many
    scale: tuple[float, ...]  # one for each channel
    shift: tuple[float, ...]
    features: int  # of each pixel, in the last layers of the decoder

    @classmethod
    def of(cls, pipe: Pipeline) -> Layout:
        """That of a loaded model."""
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

    def unpacked(self, latents: torch.Tensor, settings: Settings) -> torch.Tensor:
        """[batch, channel, (frame,) row, column]: FLUX has two by two of them in one token."""
        if self.family != "flux":
            return latents
        rows, columns = (side // self.pixels // 2 for side in (settings.height, settings.width))
        squares = latents.unflatten(1, (rows, columns)).unflatten(3, (-1, 2, 2))
        return squares.permute(0, 3, 1, 4, 2, 5).flatten(4, 5).flatten(2, 3)

    def packed(self, wide: torch.Tensor) -> torch.Tensor:
        """The opposite."""
        if self.family != "flux":
            return wide
        squares = wide.unflatten(3, (-1, 2)).unflatten(2, (-1, 2))
        return squares.permute(0, 2, 4, 1, 3, 5).flatten(3, 5).flatten(1, 2)

    def shown(self, latents: torch.Tensor, settings: Settings) -> torch.Tensor:
        """As an autoencoder of ComfyUI takes them, in float32."""
        wide = self.unpacked(latents, settings).float()
        scale, shift = self._factors(wide)
        return wide * scale + shift

    def taken(self, samples: torch.Tensor) -> torch.Tensor:
        """The opposite of `shown`, but for the last bits."""
        wide = samples.float()
        scale, shift = self._factors(wide)
        return self.packed((wide - shift) / scale)

    def refuse(self, samples: torch.Tensor) -> None:
        """Raises BadInput for latents that are not of this model."""
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
        places = (1, -1, *(1,) * (wide.ndim - 2))
        return wide.new_tensor(self.scale).view(places), wide.new_tensor(self.shift).view(places)


def latent(layout: Layout, drawn: Drawn) -> dict[str, Any]:
    """Latents of a pipeline as ComfyUI has them, with all that decoding them needs."""
    return {"samples": layout.shown(drawn.latents, drawn.settings), MARK: drawn}


def samples_of(given: object) -> tuple[torch.Tensor, Drawn | None]:
    """The tensor of a LATENT, and who has drawn it. Raises BadInput for what is no LATENT."""
    import torch

    samples = given.get("samples") if isinstance(given, dict) else None
    if not isinstance(given, dict) or not isinstance(samples, torch.Tensor):
        raise BadInput(
            "cannot decode what is no LATENT",
            expected='a dict with "samples", as samplers give it',
            hint="connect a sampler",
        )
    drawn = given.get(MARK)
    return samples, drawn if isinstance(drawn, Drawn) else None


def to_decode(
    pipe: Pipeline, layout: Layout, samples: torch.Tensor, drawn: Drawn | None
) -> list[tuple[torch.Tensor, Settings]]:
    """What the decode stage takes, for each of a batch. Raises BadInput for other latents.

    Latents that are as they were drawn are given as the pipeline had them.
    """
    if drawn is not None:
        untouched = layout.shown(drawn.latents, drawn.settings)
        if untouched.shape == samples.shape and bool((untouched == samples).all()):
            return [(drawn.latents, drawn.settings)]
    layout.refuse(samples)
    height, width = (size * layout.pixels for size in samples.shape[-2:])
    settings = pipe.check(
        "" if drawn is None else drawn.settings.prompt, height=height, width=width
    )
    return [(one, settings) for one in layout.taken(samples).split(1)]
