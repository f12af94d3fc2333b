"""Linear, Bilinear and Identity."""

from __future__ import annotations

import math
from typing import Any

from holdfast.compute import functional as F
from holdfast.compute.nn import init
from holdfast.compute.nn.module import Module
from holdfast.compute.nn.parameter import Parameter
from holdfast.compute.tensors.custom_tensor import CustomTensor


class Identity(Module):
    """Returns the input; accepts and ignores any constructor arguments."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()

    def forward(self, input: CustomTensor) -> CustomTensor:
        return input


class Linear(Module):
    """x @ weightᵀ + bias, over the last dimension."""

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        self.weight = Parameter(init.empty(out_features, in_features, device=device, dtype=dtype))
        made = init.empty(out_features, device=device, dtype=dtype) if bias else None
        self.register_parameter("bias", None if made is None else Parameter(made))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialize the parameters again."""
        init.kaiming_uniform_(self.weight, a=math.sqrt(5))
        if self.bias is not None:
            bound = init.inverse_root(self.in_features)
            init.uniform_(self.bias, -bound, bound)

    def forward(self, input: CustomTensor) -> CustomTensor:
        self.check_kind(input, self.weight)
        if not input.ndim or input.shape[-1] != self.in_features:
            raise self.refuse(
                input,
                f"its last size is {input.shape[-1]}, not {self.in_features}"
                if input.ndim
                else "it has no dimensions",
                f"a tensor of [..., {self.in_features}]",
                f"Linear({input.shape[-1] if input.ndim else 1}, {self.out_features})",
            )
        return F.linear(input, self.weight, self.bias)

    def extra_repr(self) -> str:
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, "
            f"bias={self.bias is not None}"
        )


class Bilinear(Module):
    """x1ᵀ · weight[k] · x2 + bias[k], for every output k."""

    def __init__(
        self,
        in1_features: int,
        in2_features: int,
        out_features: int,
        bias: bool = True,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        self.in1_features, self.in2_features = in1_features, in2_features
        self.out_features = out_features
        kind = {"device": device, "dtype": dtype}
        self.weight = Parameter(init.empty(out_features, in1_features, in2_features, **kind))
        self.register_parameter(
            "bias", Parameter(init.empty(out_features, **kind)) if bias else None
        )
        bound = init.inverse_root(in1_features)
        for parameter in self.parameters():
            init.uniform_(parameter, -bound, bound)

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
