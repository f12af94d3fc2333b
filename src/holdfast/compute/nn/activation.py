"""Activation modules with torch's arguments and defaults.

`inplace` is accepted for compatibility and ignored: the result is always a new tensor.
"""

from __future__ import annotations

from typing import Any

from holdfast.compute import functional as F
from holdfast.compute.nn import init
from holdfast.compute.nn.module import Module
from holdfast.compute.nn.parameter import Parameter
from holdfast.compute.tensors.custom_tensor import CustomTensor


class ReLU(Module):
    """max(x, 0)."""

    def __init__(self, inplace: bool = False) -> None:
        super().__init__()
        self.inplace = inplace

    def forward(self, input: CustomTensor) -> CustomTensor:
        return F.relu(input)

    def extra_repr(self) -> str:
        return "inplace=True" if self.inplace else ""


class LeakyReLU(Module):
    """x, or `negative_slope` * x below zero."""

    def __init__(self, negative_slope: float = 0.01, inplace: bool = False) -> None:
        super().__init__()
        self.negative_slope, self.inplace = negative_slope, inplace

    def forward(self, input: CustomTensor) -> CustomTensor:
        return F.leaky_relu(input, self.negative_slope)

    def extra_repr(self) -> str:
        return f"negative_slope={self.negative_slope}{', inplace=True' if self.inplace else ''}"


class ELU(Module):
    """x, or alpha * (eˣ - 1) below zero."""

    def __init__(self, alpha: float = 1.0, inplace: bool = False) -> None:
        super().__init__()
        self.alpha, self.inplace = alpha, inplace

    def forward(self, input: CustomTensor) -> CustomTensor:
        return F.elu(input, self.alpha)

    def extra_repr(self) -> str:
        return f"alpha={self.alpha}{', inplace=True' if self.inplace else ''}"


class GELU(Module):
    """x times the normal CDF at x; approximate: "none" or "tanh"."""

    def __init__(self, approximate: str = "none") -> None:
        super().__init__()
        self.approximate = approximate

    def forward(self, input: CustomTensor) -> CustomTensor:
        return F.gelu(input, approximate=self.approximate)

    def extra_repr(self) -> str:
        return f"approximate={self.approximate!r}"


class SiLU(ReLU):
    """x * sigmoid(x)."""

    def forward(self, input: CustomTensor) -> CustomTensor:
        return F.silu(input)


class Mish(ReLU):
    """x * tanh(softplus(x))."""

    def forward(self, input: CustomTensor) -> CustomTensor:
        return F.mish(input)


class Hardswish(ReLU):
    """x * clamp(x + 3, 0, 6) / 6."""

    def forward(self, input: CustomTensor) -> CustomTensor:
        return F.hardswish(input)

    def extra_repr(self) -> str:
        return ""


class Hardsigmoid(Hardswish):
    """clamp(x + 3, 0, 6) / 6."""

    def forward(self, input: CustomTensor) -> CustomTensor:
        return F.hardsigmoid(input)


class ReLU6(ReLU):
    """clamp(x, 0, 6)."""

    def forward(self, input: CustomTensor) -> CustomTensor:
        return F.hardtanh(input, 0.0, 6.0)


class Sigmoid(Module):
    """1 / (1 + e⁻ˣ)."""

    def forward(self, input: CustomTensor) -> CustomTensor:
        return F.sigmoid(input)


class Tanh(Module):
    """The hyperbolic tangent."""

    def forward(self, input: CustomTensor) -> CustomTensor:
        return F.tanh(input)


class Softplus(Module):
    """log(1 + e^(beta * x)) / beta; x itself where beta * x is above `threshold`."""

    def __init__(self, beta: float = 1.0, threshold: float = 20.0) -> None:
        super().__init__()
        self.beta, self.threshold = beta, threshold

    def forward(self, input: CustomTensor) -> CustomTensor:
        return F.softplus(input, self.beta, self.threshold)

    def extra_repr(self) -> str:
        return f"beta={self.beta}, threshold={self.threshold}"


class PReLU(Module):
    """x, or weight * x below zero; one weight for all channels or one for each."""

    def __init__(
        self,
        num_parameters: int = 1,
        init: float = 0.25,  # torch's name
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        self.num_parameters, self.init = num_parameters, init
        self.weight = Parameter(_filled(num_parameters, init, device, dtype))

    def forward(self, input: CustomTensor) -> CustomTensor:
        if self.num_parameters == 1:
            return F._prelu_kernel(input, self.weight)
        if input.ndim < 2 or input.shape[1] != self.num_parameters:
            raise self.refuse(
                input,
                f"it has {input.shape[1] if input.ndim > 1 else 'no'} channels",
                f"a tensor of [batch, {self.num_parameters}, ...]",
            )
        shape = [1, self.num_parameters, *[1] * (input.ndim - 2)]
        return F._prelu_kernel(input, F.reshape(self.weight, shape))

    def extra_repr(self) -> str:
        return f"num_parameters={self.num_parameters}"


def _filled(count: int, value: float, device: Any, dtype: Any) -> CustomTensor:
    return init.constant_(init.empty(count, device=device, dtype=dtype), value)


class Softmax(Module):
    """eˣ divided by its sum over `dim`."""

    def __init__(self, dim: int | None = None) -> None:
        super().__init__()
        self.dim = dim

    def _dim(self, input: CustomTensor) -> int:
        if self.dim is not None:
            return self.dim
        return 0 if input.ndim in (0, 1, 3) else 1  # torch's old default

    def forward(self, input: CustomTensor) -> CustomTensor:
        return F._softmax(input, self._dim(input), False)

    def extra_repr(self) -> str:
        return f"dim={self.dim}"


class LogSoftmax(Softmax):
    """The logarithm of softmax, without computing softmax."""

    def forward(self, input: CustomTensor) -> CustomTensor:
        return F._log_softmax(input, self._dim(input), False)
