"""Convolutions: Conv1d/2d/3d, ConvTranspose1d/2d/3d."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral
from typing import Any, ClassVar

from holdfast.base.errors import BadInput
from holdfast.compute import functional as F
from holdfast.compute.nn.layer import WeightedLayer, layer
from holdfast.compute.nn.padding import pad
from holdfast.compute.tensors.custom_tensor import CustomTensor

_PADDING_MODES = ("zeros", "reflect", "replicate", "circular")
__all__ = ["Conv1d", "Conv2d", "Conv3d", "ConvTranspose1d", "ConvTranspose2d", "ConvTranspose3d"]


class _Conv(WeightedLayer):
    """The base of all convolutions; `space` is the number of spatial dimensions."""

    space: ClassVar[int]
    transposed = False

    def build(self, kind: dict[str, Any]) -> None:
        for name in ("kernel_size", "stride", "padding", "dilation", "output_padding"):
            value = vars(self).get(name, "")
            if not isinstance(value, str):
                many = isinstance(value, Sequence)
                setattr(self, name, tuple(value) if many else (value,) * self.space)
        self._check()
        ends = (self.out_channels, self.in_channels // self.groups)
        if self.transposed:
            ends = (self.in_channels, self.out_channels // self.groups)
        (bias,) = self.take("bias")
        self.add_weight("weight", [*ends, *self.kernel_size], kind)
        self.add_weight("bias", [self.out_channels] if bias else None, kind)
        self.reset_parameters()

    def _check(self) -> None:
        name, groups = type(self).__name__, self.groups
        if groups < 1 or self.in_channels % groups or self.out_channels % groups:
            raise BadInput(
                f"{name} cannot split {self.in_channels} input and {self.out_channels} output "
                f"channels into {groups} groups",
                expected="groups that divide both",
            )
        least = {"kernel_size": 1, "stride": 1, "dilation": 1, "padding": 0}
        for what in least if not isinstance(self.padding, str) else list(least)[:3]:
            given = getattr(self, what)
            fits = len(given) == self.space and all(isinstance(n, Integral) for n in given)
            if not fits or min(given) < least[what]:
                raise BadInput(
                    f"{name} cannot have {what}={given}",
                    expected=f"an integer from {least[what]} up, or {self.space} of them",
                )
        modes = ("zeros",) if self.transposed else _PADDING_MODES
        if self.padding_mode not in modes:
            what = f"{name} has no padding mode {self.padding_mode!r}"
            raise BadInput(what, expected=f"one of {', '.join(modes)}")
        words = () if self.transposed else ("same", "valid")
        if isinstance(self.padding, str) and self.padding not in words:
            known = ', "same" or "valid"' if words else ""
            raise BadInput(
                f"{name} has no padding {self.padding!r}",
                expected=f"an integer, one for each dimension{known}",
            )
        if self.padding == "same" and any(s != 1 for s in self.stride):
            raise BadInput(
                f"{name} cannot keep the size with a stride of {self.stride}",
                expected='a stride of 1 with padding="same"',
            )

    def _add_batch(self, input: CustomTensor) -> CustomTensor:
        """The input with a batch dimension. Raises BadInput if it does not fit."""
        self.check_kind(input, self.weight)
        at = input.ndim - self.space - 1
        if at not in (0, 1) or input.shape[at] != self.in_channels:
            found = "" if at not in (0, 1) else f", {input.shape[at]} channels"
            sizes = ", ".join(("depth", "height", "width")[-self.space :])
            raise self.refuse(
                input,
                f"it has {input.ndim} dimensions{found}",
                f"[batch, {self.in_channels}, {sizes}] or [{self.in_channels}, {sizes}]",
            )
        return input if at else F.unsqueeze(input, 0)

    def extra_repr(self) -> str:
        zeros, ones = (0,) * self.space, (1,) * self.space
        usual = {"padding": zeros, "dilation": ones, "output_padding": zeros, "groups": 1}
        words = [f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}"]
        words.append(f"stride={self.stride}")
        words += [f"{n}={vars(self)[n]}" for n in usual if vars(self).get(n, usual[n]) != usual[n]]
        words += ["bias=False"] if self.bias is None else []
        words += [f"padding_mode={self.padding_mode}"] if self.padding_mode != "zeros" else []
        return ", ".join(words)


@layer
class _Plain(_Conv):
    in_channels: int
    out_channels: int
    kernel_size: Any
    stride: Any = 1
    padding: Any = 0
    dilation: Any = 1
    groups: int = 1
    bias: Any = True  # then a Parameter or None
    padding_mode: str = "zeros"
    device: Any = None
    dtype: Any = None

    def _sides(self) -> list[tuple[int, int]]:
        """Padding before and after, for each dimension."""
        if self.padding == "valid":
            return [(0, 0)] * self.space
        if self.padding == "same":
            totals = [d * (k - 1) for d, k in zip(self.dilation, self.kernel_size, strict=True)]
            return [(total // 2, total - total // 2) for total in totals]
        return [(p, p) for p in self.padding]

    def forward(self, input: CustomTensor) -> CustomTensor:
        batched = self._add_batch(input)
        sides = self._sides()
        self._check_sizes(input, sides)
        none = [0] * self.space
        inner = [min(side) for side in sides] if self.padding_mode == "zeros" else none
        rest = [p - i for side, i in zip(sides[::-1], inner[::-1], strict=True) for p in side]
        if self.padding_mode != "zeros":
            batched = pad(batched, rest, self.padding_mode)
        elif any(rest):
            batched = F.constant_pad_nd(batched, rest)
        out = F.convolution(
            *(batched, self.weight, self.bias, list(self.stride), inner, list(self.dilation)),
            *(False, none, self.groups),
        )
        return out if batched.ndim == input.ndim else F.squeeze(out, 0)

    def _check_sizes(self, input: CustomTensor, sides: list[tuple[int, int]]) -> None:
        spans = [d * (k - 1) + 1 for d, k in zip(self.dilation, self.kernel_size, strict=True)]
        sizes = input.shape[-self.space :]
        padded = [size + sum(side) for size, side in zip(sizes, sides, strict=True)]
        if any(size < span for size, span in zip(padded, spans, strict=True)):
            raise self.refuse(
                input,
                f"with padding its sizes are {padded}",
                f"at least {spans}, which is what the kernel covers",
            )


class Conv1d(_Plain, space=1):
    """Convolution over [batch, channels, width]."""


class Conv2d(_Plain, space=2):
    """Convolution over [batch, channels, height, width]."""


class Conv3d(_Plain, space=3):
    """Convolution over [batch, channels, depth, height, width]."""


@layer
class _Transposed(_Conv, transposed=True):
    in_channels: int
    out_channels: int
    kernel_size: Any
    stride: Any = 1
    padding: Any = 0
    output_padding: Any = 0
    groups: int = 1
    bias: Any = True  # then a Parameter or None
    dilation: Any = 1
    padding_mode: str = "zeros"
    device: Any = None
    dtype: Any = None

    def forward(self, input: CustomTensor, output_size: Any = None) -> CustomTensor:
        batched = self._add_batch(input)
        extra = self.output_padding if output_size is None else self._extra(input, output_size)
        out = F.convolution(
            *(batched, self.weight, self.bias, list(self.stride), list(self.padding)),
            *(list(self.dilation), True, list(extra), self.groups),
        )
        return out if batched.ndim == input.ndim else F.squeeze(out, 0)

    def _extra(self, input: CustomTensor, output_size: Any) -> list[int]:
        """The output padding that results in this size."""
        wanted = list(output_size)[-self.space :]
        least = [
            (size - 1) * s - 2 * p + d * (k - 1) + 1
            for size, s, p, d, k in zip(
                input.shape[-self.space :],
                *(self.stride, self.padding, self.dilation, self.kernel_size),
                strict=True,
            )
        ]
        extra = [w - size for w, size in zip(wanted, least, strict=True)]
        if any(not 0 <= e < max(s, 1) for e, s in zip(extra, self.stride, strict=True)):
            most = [size + s - 1 for size, s in zip(least, self.stride, strict=True)]
            raise self.refuse(
                input, f"it cannot give a size of {wanted}", f"sizes from {least} to {most}"
            )
        return extra


class ConvTranspose1d(_Transposed, space=1):
    """The transpose of a Conv1d, over [batch, channels, width]."""


class ConvTranspose2d(_Transposed, space=2):
    """The transpose of a Conv2d, over [batch, channels, height, width]."""


class ConvTranspose3d(_Transposed, space=3):
    """The transpose of a Conv3d, over [batch, channels, depth, height, width]."""
