"""Max, average and adaptive pooling."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral
from typing import Any, ClassVar

from holdfast.base.errors import BadInput
from holdfast.compute import functional as F
from holdfast.compute.nn.layer import Layer, layer
from holdfast.compute.tensors.custom_tensor import CustomTensor

__all__ = ["AdaptiveAvgPool1d", "AdaptiveAvgPool2d", "AdaptiveMaxPool2d", "AvgPool1d", "AvgPool2d"]
__all__ += ["MaxPool1d", "MaxPool2d"]


def _to_list(value: Any, count: int) -> list[int]:
    """One integer for each dimension. Raises BadInput."""
    listed = list(value) if isinstance(value, Sequence) else [value] * count
    if len(listed) != count or not all(n is None or isinstance(n, Integral) for n in listed):
        raise BadInput(f"{value!r} is no window size", expected=f"an integer, or {count} of them")
    return listed


class _Pool(Layer):
    """Pools over the last `space` dimensions, after channels and an optional batch.

    The ops are for images: 1-d input becomes an image of height 1.
    """

    space: ClassVar[int]

    def _image(self, input: CustomTensor) -> CustomTensor:
        """The input for an op. Raises BadInput."""
        self.check_tensor(input)
        if input.ndim not in (self.space + 1, self.space + 2):
            sizes = ", ".join(("height", "width")[-self.space :])
            raise self.refuse(
                input,
                f"it has {input.ndim} dimensions",
                f"[batch, channels, {sizes}] or [channels, {sizes}]",
            )
        return input if self.space == 2 else F.unsqueeze(input, -2)

    def _flat(self, out: CustomTensor) -> CustomTensor:
        return out if self.space == 2 else F.squeeze(out, -2)


class _Windowed(_Pool):
    kernel_size: Any
    stride: Any

    def build(self, kind: dict[str, Any]) -> None:
        if self.stride is None:
            self.stride = self.kernel_size

    def _windows(self, input: CustomTensor, dilation: Any = 1) -> list[list[int]]:
        """Kernel size, stride, padding and dilation for the op. Raises BadInput."""
        given = (self.kernel_size, self.stride, self.padding, dilation)
        window, stride, padding, dilation = (_to_list(v, self.space) for v in given)
        spans = [d * (k - 1) + 1 for d, k in zip(dilation, window, strict=True)]
        sizes = input.shape[-self.space :]
        if any(s + 2 * p < w for s, p, w in zip(sizes, padding, spans, strict=True)):
            raise self.refuse(
                input, f"its sizes are {list(sizes)}", f"at least the window, which is {spans}"
            )
        found = [window, stride, padding, dilation]
        if self.space == 2:
            return found
        return [[one, *given] for one, given in zip((1, 1, 0, 1), found, strict=True)]


@layer
class _MaxPool(_Windowed):
    shown = (
        "kernel_size={0.kernel_size}, stride={0.stride}, padding={0.padding}, "
        "dilation={0.dilation}, ceil_mode={0.ceil_mode}"
    )
    kernel_size: Any
    stride: Any = None
    padding: Any = 0
    dilation: Any = 1
    return_indices: bool = False
    ceil_mode: bool = False

    def forward(self, input: CustomTensor) -> Any:
        image, sizes = self._image(input), self._windows(input, self.dilation)
        found = F.max_pool2d_with_indices(image, *sizes, self.ceil_mode)
        values, indices = map(self._flat, found)
        return (values, indices) if self.return_indices else values


class MaxPool1d(_MaxPool, space=1):
    """The maximum of each window of [batch, channels, width]."""


class MaxPool2d(_MaxPool, space=2):
    """The maximum of each window of [batch, channels, height, width]."""


@layer
class _AvgPool(_Windowed):
    shown = "kernel_size={0.kernel_size}, stride={0.stride}, padding={0.padding}"
    kernel_size: Any
    stride: Any = None
    padding: Any = 0
    ceil_mode: bool = False
    count_include_pad: bool = True

    def _mean(self, input: CustomTensor, *divisor: int | None) -> CustomTensor:
        image, sizes = self._image(input), self._windows(input)[:3]
        found = F.avg_pool2d(image, *sizes, self.ceil_mode, self.count_include_pad, *divisor)
        return self._flat(found)


class AvgPool1d(_AvgPool, space=1):
    """The mean of each window of [batch, channels, width]."""

    def build(self, kind: dict[str, Any]) -> None:
        super().build(kind)
        for name in ("kernel_size", "stride", "padding"):
            setattr(self, name, tuple(_to_list(getattr(self, name), 1)))

    def forward(self, input: CustomTensor) -> CustomTensor:
        return self._mean(input)


@layer
class AvgPool2d(_AvgPool, space=2):
    """The mean of each window of [batch, channels, height, width]."""

    divisor_override: int | None = None

    def forward(self, input: CustomTensor) -> CustomTensor:
        return self._mean(input, self.divisor_override)


@layer
class _Adaptive(_Pool, shown="output_size={0.output_size}"):
    output_size: Any

    def _target(self, input: CustomTensor) -> list[int]:
        """The output size; None stands for the input's size."""
        own = input.shape[-self.space :]
        wanted = _to_list(self.output_size, self.space)
        return [size if w is None else w for w, size in zip(wanted, own, strict=True)]


class AdaptiveAvgPool1d(_Adaptive, space=1):
    """The mean of `output_size` windows that cover the width."""

    def forward(self, input: CustomTensor) -> CustomTensor:
        image = self._image(input)
        return self._flat(F._adaptive_avg_pool2d(image, [1, *self._target(input)]))


class AdaptiveAvgPool2d(_Adaptive, space=2):
    """The mean of `output_size` windows that cover height and width."""

    def forward(self, input: CustomTensor) -> CustomTensor:
        target = self._target(self._image(input))
        if target == [1, 1]:
            return F.mean(input, [-1, -2], True)
        return F._adaptive_avg_pool2d(input, target)


@layer
class AdaptiveMaxPool2d(_Adaptive, space=2):
    """The maximum of `output_size` windows that cover height and width."""

    return_indices: bool = False

    def forward(self, input: CustomTensor) -> Any:
        values, indices = F.adaptive_max_pool2d(input, self._target(self._image(input)))
        return (values, indices) if self.return_indices else values
