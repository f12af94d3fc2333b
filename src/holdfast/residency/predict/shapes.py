"""Makes the inputs of a known network from its configuration and an image size, on meta.

Knows the FLUX, SDXL and Wan denoisers, CLIP, T5 and UMT5 text encoders, and the decoders of
AutoencoderKL and AutoencoderKLWan.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from holdfast.base.errors import BadInput, Unsupported

_META = torch.device("meta")
_TEXT_TOKENS = 512  # FLUX and Wan pad prompts to this
_CLIP_TOKENS = 77
_TEXT = re.compile(r"\s*(\d+)\s*x\s*(\d+)\s*", re.IGNORECASE)
_EXPECTED = (
    '(height, width), (frames, height, width), or text such as "1024x768" with the width first'
)

Config = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Size:
    """The size of an image or video in pixels."""

    height: int
    width: int
    frames: int | None = None

    def __str__(self) -> str:
        frames = "" if self.frames is None else f", {self.frames} frames"
        return f"{self.width}x{self.height}{frames}"


@dataclass(frozen=True, slots=True)
class ModuleCall:
    """One call of a module: the method and its keyword arguments."""

    entry: str
    inputs: dict[str, Any]
    size: Size | None = None


def parse_size(shape: Any) -> Size | None:
    """Parse a size; None stays None. Raises BadInput."""
    if shape is None or isinstance(shape, Size):
        return shape
    sides: tuple[Any, ...]
    if isinstance(shape, str):
        match = _TEXT.fullmatch(shape)
        sides = () if match is None else (int(match[2]), int(match[1]))
    else:
        sides = tuple(shape) if isinstance(shape, tuple | list) else ()
    if len(sides) not in (2, 3) or not all(type(n) is int and n > 0 for n in sides):
        raise BadInput(f"cannot use shape={shape!r}", expected=_EXPECTED)
    height, width = sides[-2:]
    return Size(height, width, sides[0] if len(sides) == 3 else None)


def make_example(
    class_name: str, config: Config, size: Size | None, dtype: torch.dtype, scale: int | None = None
) -> ModuleCall:
    """Make a call of a class; `scale` is pixels per latent, if known. Raises Unsupported."""
    maker = _MAKERS.get(class_name)
    if maker is None:
        raise Unsupported(
            f"cannot make inputs for {class_name}",
            expected=f"one of {', '.join(sorted(_MAKERS))}",
            hint="pass them: residency.fit(module, inputs={…}); tensors may be on meta",
        )
    return maker(config, size, dtype, scale)


def _empty(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device=_META)


def _sides(size: Size, scale: int) -> tuple[int, int]:
    if size.height < scale or size.width < scale:
        raise BadInput(
            f"cannot use shape={str(size)!r}: it is smaller than one of the network's patches",
            expected=f"at least {scale}x{scale}",
        )
    return size.height // scale, size.width // scale


def _latent_frames(size: Size, scale: int = 4) -> int:
    return ((size.frames or 1) - 1) // scale + 1


def _flux(config: Config, size: Size | None, dtype: torch.dtype, scale: int | None) -> ModuleCall:
    size = size or Size(1024, 1024)
    rows, columns = _sides(size, 2 * (scale or 8))
    tokens = rows * columns
    inputs: dict[str, Any] = {
        "hidden_states": _empty(1, tokens, config.get("in_channels", 64), dtype=dtype),
        "encoder_hidden_states": _empty(
            1, _TEXT_TOKENS, config.get("joint_attention_dim", 4096), dtype=dtype
        ),
        "pooled_projections": _empty(1, config.get("pooled_projection_dim", 768), dtype=dtype),
        "timestep": _empty(1, dtype=dtype),
        "img_ids": _empty(tokens, 3, dtype=dtype),
        "txt_ids": _empty(_TEXT_TOKENS, 3, dtype=dtype),
        "return_dict": False,
    }
    if config.get("guidance_embeds"):
        inputs["guidance"] = _empty(1, dtype=torch.float32)
    return ModuleCall("forward", inputs, size)


def _unet(config: Config, size: Size | None, dtype: torch.dtype, scale: int | None) -> ModuleCall:
    scale = scale or 8
    side = config.get("sample_size") or 128
    size = size or Size(side * scale, side * scale)
    width = config.get("cross_attention_dim", 1280)
    width = width if isinstance(width, int) else width[0]
    inputs: dict[str, Any] = {
        # With guidance, both directions are one batch.
        "sample": _empty(2, config.get("in_channels", 4), *_sides(size, scale), dtype=dtype),
        "timestep": torch.empty((), dtype=torch.float32, device=_META),
        "encoder_hidden_states": _empty(2, _CLIP_TOKENS, width, dtype=dtype),
        "return_dict": False,
    }
    if config.get("addition_embed_type") == "text_time":
        times = 6 * config.get("addition_time_embed_dim", 256)
        pooled = config.get("projection_class_embeddings_input_dim", 2816) - times
        inputs["added_cond_kwargs"] = {
            "text_embeds": _empty(2, pooled, dtype=dtype),
            "time_ids": _empty(2, 6, dtype=dtype),
        }
    return ModuleCall("forward", inputs, size)


def _wan(config: Config, size: Size | None, dtype: torch.dtype, scale: int | None) -> ModuleCall:
    size = size or Size(480, 832, 81)
    channels = config.get("in_channels", 16)
    scale = scale or (16 if channels == 48 else 8)  # Wan 2.2 5B has an autoencoder of its own
    patch = config.get("patch_size", (1, 2, 2))
    rows, columns = (n * patch[1] for n in _sides(size, scale * patch[1]))
    inputs: dict[str, Any] = {
        "hidden_states": _empty(1, channels, _latent_frames(size), rows, columns, dtype=dtype),
        "timestep": _empty(1, dtype=torch.int64),
        "encoder_hidden_states": _empty(1, _TEXT_TOKENS, config.get("text_dim", 4096), dtype=dtype),
        "return_dict": False,
    }
    if config.get("image_dim"):
        inputs["encoder_hidden_states_image"] = _empty(1, 257, config["image_dim"], dtype=dtype)
    return ModuleCall("forward", inputs, size)


def _clip(config: Config, size: Size | None, dtype: torch.dtype, scale: int | None) -> ModuleCall:
    tokens = config.get("max_position_embeddings", _CLIP_TOKENS)
    return ModuleCall("forward", {"input_ids": _empty(1, tokens, dtype=torch.int64)})


def _t5(config: Config, size: Size | None, dtype: torch.dtype, scale: int | None) -> ModuleCall:
    return ModuleCall("forward", {"input_ids": _empty(1, _TEXT_TOKENS, dtype=torch.int64)})


def _decoder(
    config: Config, size: Size | None, dtype: torch.dtype, scale: int | None
) -> ModuleCall:
    size = size or Size(1024, 1024)
    halvings = len(config.get("block_out_channels", (0, 0, 0, 0))) - 1
    sides = _sides(size, 1 << halvings)
    latents = _empty(1, config.get("latent_channels", 4), *sides, dtype=dtype)
    return ModuleCall("decode", {"z": latents, "return_dict": False}, size)


def _wan_decoder(
    config: Config, size: Size | None, dtype: torch.dtype, scale: int | None
) -> ModuleCall:
    size = size or Size(480, 832, 81)
    frames = _latent_frames(size, config.get("scale_factor_temporal") or 4)
    sides = _sides(size, config.get("scale_factor_spatial") or 8)
    latents = _empty(1, config.get("z_dim", 16), frames, *sides, dtype=dtype)
    return ModuleCall("decode", {"z": latents, "return_dict": False}, size)


_MAKERS: dict[str, Callable[[Config, Size | None, torch.dtype, int | None], ModuleCall]] = {
    "FluxTransformer2DModel": _flux,
    "UNet2DConditionModel": _unet,
    "WanTransformer3DModel": _wan,
    "CLIPTextModel": _clip,
    "CLIPTextModelWithProjection": _clip,
    "T5EncoderModel": _t5,
    "UMT5EncoderModel": _t5,
    "AutoencoderKL": _decoder,
    "AutoencoderKLWan": _wan_decoder,
}
