"""Layers that keep whole numbers: what conversion puts in place of Linear and Conv2d.

Covers: weights alone, weights and activations quantized on the fly, activations by fixed ranges.
Promise: the weight is kept as int8 (4 bits: two in a byte) and in no other form; products of
quantized activations and weights are products of whole numbers, exact in int32.
"""

from __future__ import annotations

from typing import Any

import numpy

from holdfast.compute import functional as F
from holdfast.compute.creation import from_numpy
from holdfast.compute.nn.module import Module
from holdfast.compute.quant.scheme import Quantized, Scheme
from holdfast.compute.tensors import CustomTensor

_STEPS = 127  # levels on each side of zero for activations quantized on the fly


class QuantizedLayer(Module):
    """What both layers share. `how` is "weights", "dynamic" or "static"."""

    weight: Any
    weight_scale: Any
    input_scale: Any
    input_zero_point: Any
    bias: Any

    def __init__(self, made: Quantized, bias: Any, how: str, activation: Any = None) -> None:
        super().__init__()
        self.scheme, self.weight_shape, self.how = made.scheme, made.shape, how
        self.register_buffer("weight", made.values)
        self.register_buffer("weight_scale", made.scale)
        self.register_buffer("bias", None if bias is None else bias.detach().clone())
        self.activation: Scheme | None = None
        if activation is not None:
            self.activation, scale, zero = activation
            self.register_buffer("input_scale", from_numpy(scale.reshape(1), made.values.device))
            self.register_buffer("input_zero_point", from_numpy(zero.reshape(1)))

    def quantized(self) -> Quantized:
        """The weight and its scales."""
        zeros = from_numpy(numpy.zeros(self.weight_scale.shape, numpy.int32))
        return Quantized(self.weight, self.weight_scale, zeros, self.scheme, self.weight_shape)

    def _whole(self) -> CustomTensor:
        """The weight's levels as int8: the buffer itself unless two are in a byte."""
        if self.scheme.bits == 4:
            return from_numpy(self.quantized().levels(), self.weight.device)
        return self.weight

    def _levels(self, input: CustomTensor) -> tuple[Any, Any, int]:
        """The input as int8, the scale of its rows (or the one scale), and its zero point."""
        if self.activation is None:
            rows = F.amax(F.abs(input), list(range(1, input.ndim)), True)
            scale = F.clamp(rows / _STEPS, min=1e-30)
            return F.round(input / scale).to("int8"), scale, 0
        scale, zero = float(self.input_scale.item()), int(self.input_zero_point.item())
        level = F.clamp(
            F.round(input / scale) + zero, min=self.activation.low, max=self.activation.high
        )
        return level.to("int8"), scale, zero

    def extra_repr(self) -> str:
        return f"{list(self.weight_shape)}, {self.scheme}, {self.how}"


class QuantizedLinear(QuantizedLayer):
    """x @ weightᵀ + bias with a weight of whole numbers."""

    def forward(self, input: CustomTensor) -> CustomTensor:
        columns = self.weight_shape[1]
        if not input.ndim or input.shape[-1] != columns:
            raise self.refuse(input, f"its last size is not {columns}", f"[..., {columns}]")
        if self.how == "weights":
            return F.linear(input, self.quantized().dequantize(), self.bias)
        flat = input.reshape(-1, columns)
        levels, scale, zero = self._levels(flat)
        weight = self._whole()
        sums = F._int_mm(levels, weight.T)
        if zero:
            sums = sums - zero * weight.sum(1).to("int32")
        out = sums.to("float32") * scale * self.weight_scale
        out = out if self.bias is None else out + self.bias
        return out.reshape(*input.shape[:-1], self.weight_shape[0])


class QuantizedConv2d(QuantizedLayer):
    """A convolution with a weight of whole numbers."""

    def __init__(self, made: Quantized, conv: Any, how: str, activation: Any = None) -> None:
        super().__init__(made, conv.bias, how, activation)
        self.settings = (conv.stride, conv.padding, conv.dilation, conv.groups)

    def forward(self, input: CustomTensor) -> CustomTensor:
        stride, padding, dilation, groups = self.settings
        sizes = list(stride), list(padding), list(dilation)
        if self.how == "weights":
            return F.conv2d(input, self.quantized().dequantize(), self.bias, *sizes, groups)
        levels, scale, zero = self._levels(input)
        weight = self._whole()
        sums = F.holdfast_int_conv2d(levels, weight, *sizes, groups, zero)
        per_channel = self.weight_scale.reshape(1, -1, 1, 1)
        out = sums.to("float32") * scale * per_channel
        return out if self.bias is None else out + self.bias.reshape(1, -1, 1, 1)
