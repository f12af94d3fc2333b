"""Image patches as columns (unfold, fold), pixel shuffle, channel shuffle."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from holdfast.compute.ops.layers import windows
from holdfast.compute.ops.rules import LIKE_SELF, reshaped
from holdfast.compute.ops.table import op


def patches(
    sizes: Sequence[int], kernel_size: Any, dilation: Any, padding: Any, stride: Any
) -> list[windows.Window]:
    """The positions of patches in an image. Raises ValueError if none fits."""
    kernel = windows.per_dim(kernel_size, 2, "kernel_size")
    steps = windows.per_dim(stride, 2, "stride")
    around = windows.per_dim(padding, 2, "padding")
    spread = windows.per_dim(dilation, 2, "dilation")
    windows.check(kernel, steps, around, spread)
    found = [
        windows.Window(*one, windows.outputs_of(*one))
        for one in zip(sizes, kernel, steps, around, spread, strict=True)
    ]
    if any(w.outputs < 1 for w in found):
        raise ValueError(
            f"no patch of {list(kernel)} fits into {list(sizes)}: there would be "
            f"{[w.outputs for w in found]} of them"
        )
    return found


def columns_shape(shape: Sequence[int], kernel_size: Any, *rest: Any) -> tuple[int, ...]:
    """The shape of an image's patches as columns."""
    along = patches(windows.spatial(shape, 2), kernel_size, *rest)
    rows = shape[-3] * along[0].kernel * along[1].kernel
    return (*shape[:-3], rows, along[0].outputs * along[1].outputs)


def image_shape(
    shape: Sequence[int], output_size: Any, kernel_size: Any, *rest: Any
) -> tuple[int, ...]:
    """The shape of the image that columns fold into. Raises ValueError."""
    if len(shape) not in (2, 3):
        raise ValueError(f"the columns have {len(shape)} dimensions, they take 2 or a batch of 2")
    sizes = windows.per_dim(output_size, 2, "output_size")
    along = patches(sizes, kernel_size, *rest)
    area, blocks = along[0].kernel * along[1].kernel, along[0].outputs * along[1].outputs
    if shape[-2] % area or shape[-1] != blocks:
        raise ValueError(
            f"{list(shape[-2:])} are not columns of patches of {area} elements at {blocks} "
            "positions"
        )
    return (*shape[:-2], shape[-2] // area, *sizes)


_GIVEN = ("kernel_size", "dilation", "padding", "stride")


_PATCH = "int[2] kernel_size, int[2] dilation, int[2] padding, int[2] stride"
op(f"im2col(Tensor self, {_PATCH}) -> Tensor", reshaped(columns_shape, *_GIVEN),
   {"self": "col2im(grad, self.shape[-2:], kernel_size, dilation, padding, stride)"})  # fmt: skip
op(f"col2im(Tensor self, int[2] output_size, {_PATCH}) -> Tensor",
   reshaped(image_shape, "output_size", *_GIVEN),
   {"self": "im2col(grad, kernel_size, dilation, padding, stride)"})  # fmt: skip


# ---- pixels and channels


def shuffled_shape(shape: Sequence[int], factor: int) -> tuple[int, ...]:
    """The shape after pixel_shuffle."""
    _check(shape, factor, "upscale_factor")
    if shape[-3] % factor**2:
        raise ValueError(f"{shape[-3]} channels cannot be split by {factor}² = {factor**2}")
    return (*shape[:-3], shape[-3] // factor**2, shape[-2] * factor, shape[-1] * factor)


def unshuffled_shape(shape: Sequence[int], factor: int) -> tuple[int, ...]:
    """The shape after pixel_unshuffle."""
    _check(shape, factor, "downscale_factor")
    if shape[-2] % factor or shape[-1] % factor:
        raise ValueError(f"an image of {list(shape[-2:])} cannot be split by {factor}")
    return (*shape[:-3], shape[-3] * factor**2, shape[-2] // factor, shape[-1] // factor)


def _check(shape: Sequence[int], factor: int, name: str) -> None:
    if len(shape) < 3:
        raise ValueError(f"the input has {len(shape)} dimensions, it takes 3 or more")
    if factor < 1:
        raise ValueError(f"{name} is {factor}, it must be greater than zero")


op("pixel_shuffle(Tensor self, int upscale_factor) -> Tensor",
   reshaped(shuffled_shape, "upscale_factor"),
   {"self": "pixel_unshuffle(grad, upscale_factor)"})  # fmt: skip
op("pixel_unshuffle(Tensor self, int downscale_factor) -> Tensor",
   reshaped(unshuffled_shape, "downscale_factor"),
   {"self": "pixel_shuffle(grad, downscale_factor)"})  # fmt: skip
for _name in ("channel_shuffle", "native_channel_shuffle"):
    op(f"{_name}(Tensor self, int groups) -> Tensor", LIKE_SELF,
       {"self": "channel_shuffle(grad, grad.shape[1] // groups)"})  # fmt: skip
