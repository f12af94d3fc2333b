"""Linear, Bilinear and Identity."""

from __future__ import annotations

from typing import Any

from holdfast.compute import functional as F
from holdfast.compute.nn import init
from holdfast.compute.nn.layer import Layer, WeightedLayer, layer
from holdfast.compute.nn.module import Module
from holdfast.compute.tensors.custom_tensor import CustomTensor

__all__ = ["Bilinear", "Identity", "Linear"]


class Identity(Module):
    """Returns the input; accepts and ignores any constructor arguments."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()

    def forward(self, input: CustomTensor) -> CustomTensor:
        return input


@layer
class Linear(WeightedLayer):
    """x @ weightᵀ + bias, over the last dimension."""

    in_features: int
    out_features: int
    bias: Any = True  # then a Parameter or None
    device: Any = None
    dtype: Any = None

    def build(self, kind: dict[str, Any]) -> None:
        (bias,) = self.take("bias")
        self.add_weight("weight", [self.out_features, self.in_features], kind)
        self.add_weight("bias", [self.out_features] if bias else None, kind)
        self.reset_parameters()

    def forward(self, input: CustomTensor) -> CustomTensor:
        self.check_kind(input, self.weight)
        last = input.shape[-1] if input.ndim else None
        if last != self.in_features:
            raise self.refuse(
                input,
                "it has no dimensions"
                if last is None
                else f"its last size is {last}, not {self.in_features}",
                f"a tensor of [..., {self.in_features}]",
                f"Linear({1 if last is None else last}, {self.out_features})",
            )
        return F.linear(input, self.weight, self.bias)

    def extra_repr(self) -> str:
        sizes = f"in_features={self.in_features}, out_features={self.out_features}"
        return f"{sizes}, bias={self.bias is not None}"


@layer
class Bilinear(Layer):
    """x1ᵀ · weight[k] · x2 + bias[k], for every output k."""

    in1_features: int
    in2_features: int
    out_features: int
    bias: Any = True  # then a Parameter or None
    device: Any = None
    dtype: Any = None

    def build(self, kind: dict[str, Any]) -> None:
        (bias,) = self.take("bias")
        sizes = [self.out_features, self.in1_features, self.in2_features]
        self.add_weight("weight", sizes, kind)
        self.add_weight("bias", [self.out_features] if bias else None, kind)
        init.uniform_all(self, self.in1_features)

    def forward(self, input1: CustomTensor, input2: CustomTensor) -> CustomTensor:
        self.check_kind(input1, self.weight)
        self.check_kind(input2, self.weight)
        for given, size in ((input1, self.in1_features), (input2, self.in2_features)):
            if not given.ndim or given.shape[-1] != size:
                raise self.refuse(
                    [input1, input2],
                    f"the last size of {list(given.shape)} is not {size}",
                    f"tensors of [..., {self.in1_features}] and [..., {self.in2_features}]",
                )
        # [out, in1, in2] as one matrix of [in1, out * in2]: all outputs in one product.
        rows = F.reshape(F.permute(self.weight, [1, 0, 2]), [self.in1_features, -1])
        shape = [*input1.shape[:-1], self.out_features, self.in2_features]
        left = F.reshape(F.matmul(input1, rows), shape)
        out = F.squeeze(F.matmul(left, F.unsqueeze(input2, -1)), -1)
        return out if self.bias is None else F.add(out, self.bias)

    def extra_repr(self) -> str:
        return (
            f"in1_features={self.in1_features}, in2_features={self.in2_features}, "
            f"out_features={self.out_features}, bias={self.bias is not None}"
        )
