"""Layers for quantization-aware training: fake-quantized forward, straight-through gradients."""

from __future__ import annotations

from typing import Any

from holdfast.compute import functional as F
from holdfast.compute import nn
from holdfast.compute.autograd import tape
from holdfast.compute.quant.layers import sides
from holdfast.compute.quant.observers import MinMax, MovingAverage
from holdfast.compute.quant.scheme import Scheme, parameters
from holdfast.compute.tensors.creation import from_numpy
from holdfast.compute.tensors.custom_tensor import CustomTensor


class Rounding:
    """Rounds to the levels of a scheme, by the range an observer has seen so far."""

    def __init__(self, scheme: Scheme, observer: MinMax) -> None:
        self.scheme, self.observer = scheme, observer

    def __call__(self, tensor: CustomTensor, learning: bool) -> CustomTensor:
        if learning:
            with tape.no_grad():
                self.observer(tensor.detach())
        scale, zero = self.parameters()
        low, high = self.scheme.low, self.scheme.high
        if self.scheme.axis is None:
            return F.fake_quantize_per_tensor_affine(tensor, float(scale), int(zero), low, high)
        return F.fake_quantize_per_channel_affine(
            tensor, from_numpy(scale), from_numpy(zero), self.scheme.axis, low, high
        )

    def parameters(self) -> tuple[Any, Any]:
        """Scale and zero point for the range seen. Raises Misuse if there is none."""
        return parameters(self.scheme, *self.observer.range(), f"layer {self.observer.name!r}")


class Learning(nn.Module):
    """A Linear or Conv2d whose weight and input are rounded as in the quantized layer."""

    inner: Any

    def __init__(self, inner: Any, name: str, weight: Scheme, activation: Scheme) -> None:
        super().__init__()
        self.inner, self.name = inner, name
        # The whole weight is seen each time, but a batch is only a sample of activations.
        self.of_weight = Rounding(weight, _Latest(name, weight.axis))
        self.of_input = Rounding(activation, MovingAverage(name))

    def forward(self, input: CustomTensor) -> CustomTensor:
        rounded = self.of_input(input, self.training)
        weight = self.of_weight(self.inner.weight, True)
        if isinstance(self.inner, nn.Linear):
            return F.linear(rounded, weight, self.inner.bias)
        conv = self.inner
        return F.conv2d(
            rounded, weight, conv.bias, list(conv.stride), list(sides(conv) or ()),
            list(conv.dilation), conv.groups,
        )  # fmt: skip

    def extra_repr(self) -> str:
        return f"weight {self.of_weight.scheme}, input {self.of_input.scheme}"


class _Latest(MinMax):
    def _see(self, array: Any) -> None:
        self.low, self.high = self._ends(array)
