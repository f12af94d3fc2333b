"""Padding and resampling: ConstantPad2d, ZeroPad2d, Upsample, PixelShuffle, PixelUnshuffle."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from holdfast.base.errors import BadInput
from holdfast.compute import functional as F
from holdfast.compute.nn.module import Module
from holdfast.compute.tensors.custom_tensor import CustomTensor

_SAMPLERS = {
    ("nearest", 1): "upsample_nearest1d",
    ("nearest", 2): "upsample_nearest2d",
    ("nearest", 3): "upsample_nearest3d",
    ("nearest-exact", 1): "_upsample_nearest_exact1d",
    ("nearest-exact", 2): "_upsample_nearest_exact2d",
    ("nearest-exact", 3): "_upsample_nearest_exact3d",
    ("linear", 1): "upsample_linear1d",
    ("bilinear", 2): "upsample_bilinear2d",
    ("bicubic", 2): "upsample_bicubic2d",
    ("trilinear", 3): "upsample_trilinear3d",
}


def pad(input: CustomTensor, sizes: Sequence[int], mode: str) -> CustomTensor:
    """The padding in torch's order: left and right of the last dimension first."""
    if mode == "circular":
        for place in range(0, len(sizes), 2):
            input = _wrapped(input, -1 - place // 2, sizes[place], sizes[place + 1])
        return input
    kind = {"reflect": "reflection", "replicate": "replication"}[mode]
    return getattr(F, f"{kind}_pad{len(sizes) // 2}d")(input, list(sizes))


def _wrapped(input: CustomTensor, dim: int, left: int, right: int) -> CustomTensor:
    size = input.shape[dim]
    parts = [input]
    if left:
        parts.insert(0, F.narrow(input, dim, size - left, left))
    if right:
        parts.append(F.narrow(input, dim, 0, right))
    return F.cat(parts, dim) if len(parts) > 1 else input


class ConstantPad2d(Module):
    """A constant around an image: (left, right, top, bottom), or the same on all sides."""

    def __init__(self, padding: Any, value: float) -> None:
        super().__init__()
        self.padding = tuple(padding) if isinstance(padding, Sequence) else (padding,) * 4
        self.value = value

    def forward(self, input: CustomTensor) -> CustomTensor:
        return F.constant_pad_nd(input, list(self.padding), self.value)

    def extra_repr(self) -> str:
        return f"padding={self.padding}, value={self.value}"


class ZeroPad2d(ConstantPad2d):
    """Zeros around an image: (left, right, top, bottom), or the same on all sides."""

    def __init__(self, padding: Any) -> None:
        super().__init__(padding, 0.0)

    def extra_repr(self) -> str:
        return f"{self.padding}"


class PixelShuffle(Module):
    """[.., channels * r², height, width] as [.., channels, height * r, width * r]."""

    def __init__(self, upscale_factor: int) -> None:
        super().__init__()
        self.upscale_factor = upscale_factor

    def forward(self, input: CustomTensor) -> CustomTensor:
        square = self.upscale_factor**2
        if input.ndim < 3 or input.shape[-3] % square:
            raise self.refuse(
                input,
                "it has no channels" if input.ndim < 3 else f"{input.shape[-3]} channels",
                f"[..., channels, height, width] with channels a multiple of {square}",
            )
        return F.pixel_shuffle(input, self.upscale_factor)

    def extra_repr(self) -> str:
        return f"upscale_factor={self.upscale_factor}"


class PixelUnshuffle(Module):
    """The inverse of PixelShuffle."""

    def __init__(self, downscale_factor: int) -> None:
        super().__init__()
        self.downscale_factor = downscale_factor

    def forward(self, input: CustomTensor) -> CustomTensor:
        return F.pixel_unshuffle(input, self.downscale_factor)

    def extra_repr(self) -> str:
        return f"downscale_factor={self.downscale_factor}"


class Upsample(Module):
    """Resample [batch, channels, ...] to a `size` or by a `scale_factor`."""

    def __init__(
        self,
        size: Any = None,
        scale_factor: Any = None,
        mode: str = "nearest",
        align_corners: bool | None = None,
        recompute_scale_factor: bool | None = None,
    ) -> None:
        super().__init__()
        if (size is None) == (scale_factor is None):
            raise BadInput(
                f"Upsample was given size={size} and scale_factor={scale_factor}",
                expected="one of the two",
            )
        modes = sorted({name for name, _ in _SAMPLERS})
        if mode not in modes:
            raise BadInput(f"Upsample has no mode {mode!r}", expected=f"one of {', '.join(modes)}")
        if align_corners is not None and mode.startswith("nearest"):
            raise BadInput(
                f"Upsample cannot align corners in mode {mode!r}",
                expected="align_corners only with linear, bilinear, bicubic or trilinear",
            )
        self.size, self.mode, self.align_corners = size, mode, align_corners
        self.scale_factor: Any = None
        if isinstance(scale_factor, Sequence):
            self.scale_factor = tuple(map(float, scale_factor))
        elif scale_factor is not None:
            self.scale_factor = float(scale_factor)
        self.recompute_scale_factor = recompute_scale_factor

    def forward(self, input: CustomTensor) -> CustomTensor:
        count = input.ndim - 2
        name = _SAMPLERS.get((self.mode, count))
        if name is None:
            fits = ", ".join(str(n + 2) for mode, n in _SAMPLERS if mode == self.mode)
            raise self.refuse(input, f"it has {input.ndim} dimensions", f"{fits} dimensions")
        sizes, scales = self._sizes(input, count)
        corners = [] if self.mode.startswith("nearest") else [bool(self.align_corners)]
        return getattr(F, name)(input, sizes, *corners, *scales)

    def _sizes(self, input: CustomTensor, count: int) -> tuple[list[int], list[float | None]]:
        if self.size is not None:
            listed = isinstance(self.size, Sequence)
            return (list(self.size) if listed else [self.size] * count), [None] * count
        many = isinstance(self.scale_factor, tuple)
        factors = list(self.scale_factor) if many else [self.scale_factor] * count
        sizes = [math.floor(s * f) for s, f in zip(input.shape[2:], factors, strict=True)]
        return sizes, ([None] * count if self.recompute_scale_factor else factors)

    def extra_repr(self) -> str:
        scaled = self.scale_factor is not None
        first = f"scale_factor={self.scale_factor!r}" if scaled else f"size={self.size!r}"
        return f"{first}, mode={self.mode!r}"
