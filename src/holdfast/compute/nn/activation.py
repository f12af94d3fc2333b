"""Activation modules with torch's arguments and defaults.

`inplace` is accepted for compatibility and ignored: the result is always a new tensor.
"""

from __future__ import annotations

from typing import Any, ClassVar

from holdfast.compute import functional as F
from holdfast.compute.nn import init
from holdfast.compute.nn.layer import Layer, layer
from holdfast.compute.tensors.custom_tensor import CustomTensor

__all__ = ["ELU", "GELU", "Hardsigmoid", "Hardswish", "LeakyReLU", "LogSoftmax", "Mish", "PReLU"]
__all__ += ["ReLU", "ReLU6", "SiLU", "Sigmoid", "Softmax", "Softplus", "Tanh"]


class _Activation(Layer):
    """One op of the table on each element."""

    op: ClassVar[str]

    def forward(self, input: CustomTensor) -> CustomTensor:
        return getattr(F, self.op)(input)


class _InPlace(_Activation):
    def extra_repr(self) -> str:
        words = [super().extra_repr(), "inplace=True" if self.inplace else ""]
        return ", ".join(filter(None, words))


@layer
class ReLU(_InPlace, op="relu"):
    """max(x, 0)."""

    inplace: bool = False


@layer
class LeakyReLU(_InPlace, shown="negative_slope={0.negative_slope}"):
    """x, or `negative_slope` * x below zero."""

    negative_slope: float = 0.01
    inplace: bool = False

    def forward(self, input: CustomTensor) -> CustomTensor:
        return F.leaky_relu(input, self.negative_slope)


@layer
class ELU(_InPlace, shown="alpha={0.alpha}"):
    """x, or alpha * (eˣ - 1) below zero."""

    alpha: float = 1.0
    inplace: bool = False

    def forward(self, input: CustomTensor) -> CustomTensor:
        return F.elu(input, self.alpha)


@layer
class GELU(Layer, shown="approximate={0.approximate!r}"):
    """x times the normal CDF at x; approximate: "none" or "tanh"."""

    approximate: str = "none"

    def forward(self, input: CustomTensor) -> CustomTensor:
        return F.gelu(input, approximate=self.approximate)


class SiLU(ReLU, op="silu"):
    """x * sigmoid(x)."""


class Mish(ReLU, op="mish"):
    """x * tanh(softplus(x))."""


@layer
class Hardswish(_Activation, op="hardswish"):
    """x * clamp(x + 3, 0, 6) / 6."""

    inplace: bool = False


class Hardsigmoid(Hardswish, op="hardsigmoid"):
    """clamp(x + 3, 0, 6) / 6."""


class ReLU6(ReLU):
    """clamp(x, 0, 6)."""

    def forward(self, input: CustomTensor) -> CustomTensor:
        return F.hardtanh(input, 0.0, 6.0)


@layer
class Sigmoid(_Activation, op="sigmoid"):
    """1 / (1 + e⁻ˣ)."""


@layer
class Tanh(_Activation, op="tanh"):
    """The hyperbolic tangent."""


@layer
class Softplus(Layer, shown="beta={0.beta}, threshold={0.threshold}"):
    """log(1 + e^(beta * x)) / beta; x itself where beta * x is above `threshold`."""

    beta: float = 1.0
    threshold: float = 20.0

    def forward(self, input: CustomTensor) -> CustomTensor:
        return F.softplus(input, self.beta, self.threshold)


@layer
class PReLU(Layer, shown="num_parameters={0.num_parameters}"):
    """x, or weight * x below zero; one weight for all channels or one for each."""

    num_parameters: int = 1
    init: float = 0.25  # torch's name
    device: Any = None
    dtype: Any = None

    def build(self, kind: dict[str, Any]) -> None:
        self.add_weight("weight", [self.num_parameters], kind)
        init.constant_(self.weight, self.init)

    def forward(self, input: CustomTensor) -> CustomTensor:
        if self.num_parameters == 1:
            return F._prelu_kernel(input, self.weight)
        if input.ndim < 2 or input.shape[1] != self.num_parameters:
            raise self.refuse_channels(input, self.num_parameters)
        shape = [1, self.num_parameters, *[1] * (input.ndim - 2)]
        return F._prelu_kernel(input, F.reshape(self.weight, shape))


@layer
class Softmax(Layer, shown="dim={0.dim}"):
    """eˣ divided by its sum over `dim`."""

    op: ClassVar[str] = "_softmax"
    dim: int | None = None

    def forward(self, input: CustomTensor) -> CustomTensor:
        dim = self.dim
        if dim is None:
            dim = 0 if input.ndim in (0, 1, 3) else 1  # torch's old default
        return getattr(F, self.op)(input, dim, False)


class LogSoftmax(Softmax, op="_log_softmax"):
    """The logarithm of softmax, without computing softmax."""
