"""Convolutions: Conv1d/2d/3d, ConvTranspose1d/2d/3d."""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Integral
from typing import Any

from holdfast.base.errors import BadInput
from holdfast.compute import functional as F
from holdfast.compute.nn import init
from holdfast.compute.nn.module import Module
from holdfast.compute.nn.padding import pad
from holdfast.compute.nn.parameter import Parameter
from holdfast.compute.tensors.custom_tensor import CustomTensor

_PADDING_MODES = ("zeros", "reflect", "replicate", "circular")


def spread(value: Any, count: int) -> tuple[int, ...]:
    """One value for each dimension, from a list or a single one."""
    return tuple(value) if isinstance(value, Sequence) else (value,) * count


class _Conv(Module):
    """The base of all convolutions; `space` is the number of spatial dimensions."""

    space: int
    transposed = False
    bias: Any  # Parameter or None, by the constructor's `bias`

    def _make(self, sizes: dict[str, Any], bias: bool, device: Any, dtype: Any) -> None:
        for name, value in sizes.items():
            keep = name in ("in_channels", "out_channels", "groups", "padding_mode")
            keep = keep or isinstance(value, str)
            setattr(self, name, value if keep else spread(value, self.space))
        self._check()
        ends = (self.out_channels, self.in_channels // self.groups)
        if self.transposed:
            ends = (self.in_channels, self.out_channels // self.groups)
        kind = {"device": device, "dtype": dtype}
        self.weight = Parameter(init.empty(*ends, *self.kernel_size, **kind))
        made = Parameter(init.empty(self.out_channels, **kind)) if bias else None
        self.register_parameter("bias", made)
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
            raise BadInput(
                f"{name} has no padding mode {self.padding_mode!r}",
                expected=f"one of {', '.join(modes)}",
            )
        if isinstance(self.padding, str):
            self._check_word(name)

    def _check_word(self, name: str) -> None:
        words = () if self.transposed else ("same", "valid")
        if self.padding not in words:
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

    def reset_parameters(self) -> None:
        """Initialize the parameters again."""
        init.kaiming_uniform_(self.weight, a=math.sqrt(5))
        if self.bias is not None:
            bound = init.inverse_root(init.fans(self.weight)[0])
            init.uniform_(self.bias, -bound, bound)

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
        text = (
            f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, "
            f"stride={self.stride}"
        )
        zeros, ones = (0,) * self.space, (1,) * self.space
        for name, usual in (("padding", zeros), ("dilation", ones), ("output_padding", zeros)):
            value = self.__dict__.get(name, usual)
            if value != usual:
                text += f", {name}={value}"
        if self.groups != 1:
            text += f", groups={self.groups}"
        if self.bias is None:
            text += ", bias=False"
        if self.padding_mode != "zeros":
            text += f", padding_mode={self.padding_mode}"
        return text


class _Plain(_Conv):
    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Any,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: str = "zeros",
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        sizes = {k: v for k, v in locals().items() if k not in ("self", "bias", "device", "dtype")}
        self._make({k: v for k, v in sizes.items() if k[0] != "_"}, bias, device, dtype)

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
        inner = [min(side) for side in sides]
        if self.padding_mode != "zeros":
            mode = self.padding_mode
            batched = pad(batched, [p for side in reversed(sides) for p in side], mode)
            inner = [0] * self.space
        elif any(before != behind for before, behind in sides):
            rest = [p - min(side) for side in reversed(sides) for p in side]
            batched = F.constant_pad_nd(batched, rest)
        none = [0] * self.space
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


class Conv1d(_Plain):
    """Convolution over [batch, channels, width]."""

    space = 1


class Conv2d(_Plain):
    """Convolution over [batch, channels, height, width]."""

    space = 2


class Conv3d(_Plain):
    """Convolution over [batch, channels, depth, height, width]."""

    space = 3


class _Transposed(_Conv):
    transposed = True

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Any,
        stride: Any = 1,
        padding: Any = 0,
        output_padding: Any = 0,
        groups: int = 1,
        bias: bool = True,
        dilation: Any = 1,
        padding_mode: str = "zeros",
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        sizes = {k: v for k, v in locals().items() if k not in ("self", "bias", "device", "dtype")}
        self._make({k: v for k, v in sizes.items() if k[0] != "_"}, bias, device, dtype)

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


class ConvTranspose1d(_Transposed):
    """The transpose of a Conv1d, over [batch, channels, width]."""

    space = 1


class ConvTranspose2d(_Transposed):
    """The transpose of a Conv2d, over [batch, channels, height, width]."""

    space = 2


class ConvTranspose3d(_Transposed):
    """The transpose of a Conv3d, over [batch, channels, depth, height, width]."""

    space = 3
