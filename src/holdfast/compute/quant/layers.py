"""Quantized layers: QuantizedLinear, QuantizedConv2d.

The weight is stored as int8 only (4 bits: two in a byte). Products of quantized activations and
weights are integer products, exact in int32.
"""

from __future__ import annotations

import math
from typing import Any

import numpy

from holdfast.compute import functional as F
from holdfast.compute.nn.module import Module
from holdfast.compute.quant.scheme import Quantized, Scheme
from holdfast.compute.tensors.creation import from_numpy
from holdfast.compute.tensors.custom_tensor import CustomTensor

_STEPS = 127  # levels on each side of zero for activations quantized on the fly


class QuantizedLayer(Module):
    """The base of both layers. `how` is "weights", "dynamic" or "static"."""

    weight: Any
    weight_scale: Any
    weight_zero_point: Any
    input_scale: Any
    input_zero_point: Any
    bias: Any

    def __init__(self, made: Quantized, bias: Any, how: str, activation: Any = None) -> None:
        super().__init__()
        self.scheme, self.weight_shape, self.how = made.scheme, made.shape, how
        self.register_buffer("weight", made.values)
        self.register_buffer("weight_scale", made.scale)
        self.register_buffer(
            "weight_zero_point", None if made.scheme.symmetric else made.zero_point
        )
        self.register_buffer("bias", None if bias is None else bias.detach().clone())
        self.activation: Scheme | None = None
        if activation is not None:
            self.activation, scale, zero = activation
            self.register_buffer("input_scale", from_numpy(scale.reshape(1), made.values.device))
            self.register_buffer("input_zero_point", from_numpy(zero.reshape(1)))

    def quantized(self) -> Quantized:
        """The weight and its scales."""
        zeros = self.weight_zero_point
        if zeros is None:
            zeros = from_numpy(numpy.zeros(self.weight_scale.shape, numpy.int32))
        return Quantized(self.weight, self.weight_scale, zeros, self.scheme, self.weight_shape)

    def _whole(self) -> CustomTensor:
        """The weight's levels as int8: the buffer itself unless two are packed in a byte."""
        if self.scheme.bits == 4:
            return from_numpy(self.quantized().levels(), self.weight.device)
        return self.weight

    def _levels(self, input: CustomTensor) -> tuple[Any, Any, int]:
        """The input as int8, the scale of its rows (or one scale), and its zero point.

        A row with a NaN gets the scale NaN, so that its output is NaN too.
        """
        across = list(range(1, input.ndim))
        if self.activation is None:
            rows = F.amax(F.abs(input), across, True)
            scale = F.clamp(rows / _STEPS, min=1e-30)
            return F.round(input / scale).to("int8"), scale, 0
        scale, zero = float(self.input_scale.item()), int(self.input_zero_point.item())
        level = F.clamp(
            F.round(input / scale) + zero, min=self.activation.low, max=self.activation.high
        )
        scales: Any = scale
        if input.numel():
            lost = F.isnan(F.amax(level, across, True))
            if lost.any():
                scales = F.where(lost, math.nan, scale)
        return level.to("int8"), scales, zero

    def _check(self, input: Any) -> None:
        self.check_tensor(input)
        if not input.is_floating_point():
            raise self.refuse(
                input, "it holds no fractions", "floating-point numbers", "tensor.to('float32')"
            )

    def _dequantize(self, like: CustomTensor) -> CustomTensor:
        return self.quantized().dequantize().to(like.dtype)

    def extra_repr(self) -> str:
        return f"{list(self.weight_shape)}, {self.scheme}, {self.how}"


class QuantizedLinear(QuantizedLayer):
    """x @ weightᵀ + bias with an integer weight."""

    def forward(self, input: CustomTensor) -> CustomTensor:
        self._check(input)
        columns = self.weight_shape[1]
        if not input.ndim or input.shape[-1] != columns:
            raise self.refuse(input, f"its last size is not {columns}", f"[..., {columns}]")
        if self.how == "weights":
            return F.linear(input, self._dequantize(input), self.bias)
        flat = input.reshape(-1, columns)
        levels, scale, zero = self._levels(flat)
        weight = self._whole()
        sums = F._int_mm(levels, weight.T)
        if zero:
            sums = sums - zero * weight.sum(1).to("int32")
        out = sums.to("float32") * scale * self.weight_scale
        out = out if self.bias is None else out + self.bias
        return out.reshape(*input.shape[:-1], self.weight_shape[0]).to(input.dtype)


class QuantizedConv2d(QuantizedLayer):
    """A convolution with an integer weight."""

    def __init__(self, made: Quantized, conv: Any, how: str, activation: Any = None) -> None:
        super().__init__(made, conv.bias, how, activation)
        self.settings = (conv.stride, sides(conv) or (), conv.dilation, conv.groups)

    def forward(self, input: CustomTensor) -> CustomTensor:
        self._check(input)
        channels = self.weight_shape[1] * self.settings[3]
        if input.ndim not in (3, 4) or input.shape[-3] != channels:
            raise self.refuse(
                input,
                f"it has {input.ndim} dimensions or other channels",
                f"[batch, {channels}, height, width] or [{channels}, height, width]",
            )
        if input.ndim == 3:
            return F.squeeze(self.forward(F.unsqueeze(input, 0)), 0)
        stride, padding, dilation, groups = self.settings
        sizes = list(stride), list(padding), list(dilation)
        if self.how == "weights":
            return F.conv2d(input, self._dequantize(input), self.bias, *sizes, groups)
        levels, scale, zero = self._levels(input)
        weight = self._whole()
        sums = F.holdfast_int_conv2d(levels, weight, *sizes, groups, zero)
        per_channel = self.weight_scale.reshape(1, -1, 1, 1)
        out = sums.to("float32") * scale * per_channel
        out = out if self.bias is None else out + self.bias.reshape(1, -1, 1, 1)
        return out.to(input.dtype)


def sides(conv: Any) -> tuple[int, ...] | None:
    """The padding of a convolution as integers; None if it is not symmetric."""
    if not isinstance(conv.padding, str):
        return tuple(conv.padding)
    if conv.padding == "valid":
        return (0,) * len(conv.kernel_size)
    totals = [d * (k - 1) for d, k in zip(conv.dilation, conv.kernel_size, strict=True)]
    return None if any(total % 2 for total in totals) else tuple(total // 2 for total in totals)
