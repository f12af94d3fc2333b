"""Padding and resampling: ConstantPad2d, ZeroPad2d, Upsample, PixelShuffle, PixelUnshuffle."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from holdfast.base.errors import BadInput
from holdfast.compute import functional as F
from holdfast.compute.nn.layer import Layer, layer
from holdfast.compute.tensors.custom_tensor import CustomTensor

__all__ = ["ConstantPad2d", "PixelShuffle", "PixelUnshuffle", "Upsample", "ZeroPad2d"]

_SAMPLERS = {("nearest", n): f"upsample_nearest{n}d" for n in (1, 2, 3)}
_SAMPLERS |= {("nearest-exact", n): f"_upsample_nearest_exact{n}d" for n in (1, 2, 3)}
_SAMPLERS |= {
    (mode, n): f"upsample_{mode}{n}d"
    for mode, n in (("linear", 1), ("bilinear", 2), ("bicubic", 2), ("trilinear", 3))
}


def pad(input: CustomTensor, sizes: Sequence[int], mode: str) -> CustomTensor:
    """The padding in torch's order: left and right of the last dimension first."""
    if mode == "circular":
        for place in range(0, len(sizes), 2):
            input = _wrap_around(input, -1 - place // 2, sizes[place], sizes[place + 1])
        return input
    kind = {"reflect": "reflection", "replicate": "replication"}[mode]
    return getattr(F, f"{kind}_pad{len(sizes) // 2}d")(input, list(sizes))


def _wrap_around(input: CustomTensor, dim: int, left: int, right: int) -> CustomTensor:
    before = [F.narrow(input, dim, input.shape[dim] - left, left)] if left else []
    behind = [F.narrow(input, dim, 0, right)] if right else []
    return F.cat([*before, input, *behind], dim) if left or right else input


@layer
class ConstantPad2d(Layer, shown="padding={0.padding}, value={0.value}"):
    """A constant around an image: (left, right, top, bottom), or the same on all sides."""

    padding: Any
    value: float

    def build(self, kind: dict[str, Any]) -> None:
        many = isinstance(self.padding, Sequence)
        self.padding = tuple(self.padding) if many else (self.padding,) * 4

    def forward(self, input: CustomTensor) -> CustomTensor:
        return F.constant_pad_nd(input, list(self.padding), self.value)


class ZeroPad2d(ConstantPad2d, shown="{0.padding}"):
    """Zeros around an image: (left, right, top, bottom), or the same on all sides."""

    def __init__(self, padding: Any) -> None:
        super().__init__(padding, 0.0)


@layer
class PixelShuffle(Layer, shown="upscale_factor={0.upscale_factor}"):
    """[.., channels * r², height, width] as [.., channels, height * r, width * r]."""

    upscale_factor: int

    def forward(self, input: CustomTensor) -> CustomTensor:
        square = self.upscale_factor**2
        if input.ndim < 3 or input.shape[-3] % square:
            raise self.refuse(
                input,
                "it has no channels" if input.ndim < 3 else f"{input.shape[-3]} channels",
                f"[..., channels, height, width] with channels a multiple of {square}",
            )
        return F.pixel_shuffle(input, self.upscale_factor)


@layer
class PixelUnshuffle(Layer, shown="downscale_factor={0.downscale_factor}"):
    """The inverse of PixelShuffle."""

    downscale_factor: int

    def forward(self, input: CustomTensor) -> CustomTensor:
        return F.pixel_unshuffle(input, self.downscale_factor)


@layer
class Upsample(Layer):
    """Resample [batch, channels, ...] to a `size` or by a `scale_factor`."""

    size: Any = None
    scale_factor: Any = None
    mode: str = "nearest"
    align_corners: bool | None = None
    recompute_scale_factor: bool | None = None

    def build(self, kind: dict[str, Any]) -> None:
        mode, scale = self.mode, self.scale_factor
        if (self.size is None) == (scale is None):
            raise BadInput(
                f"Upsample was given size={self.size} and scale_factor={scale}",
                expected="one of the two",
            )
        modes = sorted({name for name, _ in _SAMPLERS})
        if mode not in modes:
            raise BadInput(f"Upsample has no mode {mode!r}", expected=f"one of {', '.join(modes)}")
        if self.align_corners is not None and mode.startswith("nearest"):
            raise BadInput(
                f"Upsample cannot align corners in mode {mode!r}",
                expected="align_corners only with linear, bilinear, bicubic or trilinear",
            )
        if scale is not None:
            many = isinstance(scale, Sequence)
            self.scale_factor = tuple(map(float, scale)) if many else float(scale)

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
        given = self.scale_factor if self.size is None else self.size
        factors = list(given) if isinstance(given, Sequence) else [given] * count
        if self.size is not None:
            return factors, [None] * count
        sizes = [math.floor(s * f) for s, f in zip(input.shape[2:], factors, strict=True)]
        return sizes, ([None] * count if self.recompute_scale_factor else factors)

    def extra_repr(self) -> str:
        scaled = self.scale_factor is not None
        first = f"scale_factor={self.scale_factor!r}" if scaled else f"size={self.size!r}"
        return f"{first}, mode={self.mode!r}"
