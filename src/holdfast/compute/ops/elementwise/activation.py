"""Activations and their backward ops. A backward op decomposes when its own gradient is needed."""

from __future__ import annotations

from typing import Any

from holdfast.compute import functional as F
from holdfast.compute.ops.elementwise.complex_numbers import conjugate
from holdfast.compute.ops.rules import (
    POINTWISE,
    POINTWISE_FLOAT,
    checked,
    like,
    normalize_dim,
    pointwise,
    reshaped,
)
from holdfast.compute.ops.table import composite, composites, op

_BOTH = pointwise(among=("grad_output", "self"))


def _check_slope(grad_output: Any, self: Any, negative_slope: Any, self_is_result: bool) -> None:
    if self_is_result and negative_slope < 0:
        raise ValueError("in place, a negative slope hides which elements were negative")


def _check_shrink(self: Any, lambd: Any = 0.5) -> None:
    if lambd < 0:
        raise ValueError(f"lambd cannot be below 0, as {lambd} is")


def _check_gelu(*_: Any, approximate: str = "none") -> None:
    if approximate not in ("none", "tanh"):
        raise ValueError(f"approximate {approximate!r} is neither 'none' nor 'tanh'")


def _check_elu(
    grad_output: Any, alpha: Any, scale: Any, input_scale: Any, is_result: bool, of: Any
) -> None:
    if is_result and alpha < 0:
        raise ValueError("in place, a negative alpha hides which elements were negative")


def _steps(grad: Any, condition: Any, scale: Any = 1) -> Any:
    """A gradient that passes where the condition holds."""
    return F.where(condition, grad if scale == 1 else grad * scale, 0)


# ---- straight lines

op("relu(Tensor self) -> Tensor", POINTWISE, {"self": "threshold_backward(grad, result, 0)"})
op("threshold(Tensor self, Scalar threshold, Scalar value) -> Tensor", POINTWISE,
   {"self": "threshold_backward(grad, self, threshold)"})  # fmt: skip
op("threshold_backward(Tensor grad_output, Tensor self, Scalar threshold) -> Tensor", _BOTH,
   decomposition=lambda grad_output, self, threshold:
   F.where(self <= threshold, 0, grad_output))  # fmt: skip
op("leaky_relu(Tensor self, Scalar negative_slope=0.01) -> Tensor", POINTWISE,
   {"self": "leaky_relu_backward(grad, self, negative_slope, False)"})  # fmt: skip
op("leaky_relu_backward(Tensor grad_output, Tensor self, Scalar negative_slope, "
   "bool self_is_result) -> Tensor", checked(_BOTH, _check_slope),
   decomposition=lambda grad_output, self, negative_slope, self_is_result:
   F.where(self > 0, grad_output, grad_output * negative_slope))  # fmt: skip
op("hardtanh(Tensor self, Scalar min_val=-1, Scalar max_val=1) -> Tensor", POINTWISE,
   {"self": "hardtanh_backward(grad, self, min_val, max_val)"})  # fmt: skip
op("hardtanh_backward(Tensor grad_output, Tensor self, Scalar min_val, Scalar max_val) -> Tensor",
   _BOTH, decomposition=lambda grad_output, self, min_val, max_val:
   _steps(grad_output, (self > min_val) & (self < max_val)))  # fmt: skip
op("hardsigmoid(Tensor self) -> Tensor", POINTWISE,
   {"self": "hardsigmoid_backward(grad, self)"})  # fmt: skip
op("hardsigmoid_backward(Tensor grad_output, Tensor self) -> Tensor", _BOTH,
   decomposition=lambda grad_output, self:
   _steps(grad_output, (self > -3) & (self < 3), 1 / 6))  # fmt: skip
op("hardshrink(Tensor self, Scalar lambd=0.5) -> Tensor", POINTWISE,
   {"self": "hardshrink_backward(grad, self, lambd)"})  # fmt: skip
op("hardshrink_backward(Tensor grad_out, Tensor self, Scalar lambd) -> Tensor", POINTWISE,
   decomposition=lambda grad_out, self, lambd:
   F.where((self >= -lambd) & (self <= lambd), 0, grad_out))  # fmt: skip
op("softshrink(Tensor self, Scalar lambd=0.5) -> Tensor", checked(POINTWISE, _check_shrink),
   {"self": "softshrink_backward(grad, self, lambd)"})  # fmt: skip
op("softshrink_backward(Tensor grad_output, Tensor self, Scalar lambd) -> Tensor", _BOTH,
   decomposition=lambda grad_output, self, lambd:
   F.where((self >= -lambd) & (self <= lambd), 0, grad_output))  # fmt: skip
op("_prelu_kernel(Tensor self, Tensor weight) -> Tensor", POINTWISE,
   {"self, weight": "_prelu_kernel_backward(grad, self, weight)"})  # fmt: skip


def _prelu_backward(grad_output: Any, self: Any, weight: Any) -> Any:
    positive = self > 0
    return (
        F.where(positive, grad_output, weight * grad_output),
        F.where(positive, 0, self * grad_output),
    )


op("_prelu_kernel_backward(Tensor grad_output, Tensor self, Tensor weight) -> (Tensor, Tensor)",
   like("self", "self"), decomposition=_prelu_backward)  # fmt: skip

# ---- curves


def _hardswish_backward(grad_output: Any, self: Any) -> Any:
    middle = F.where(self <= -3, 0, grad_output * (self / 3 + 0.5))
    return F.where(self < 3, middle, grad_output)


op("hardswish(Tensor self) -> Tensor", POINTWISE, {"self": "hardswish_backward(grad, self)"})
op("hardswish_backward(Tensor grad_output, Tensor self) -> Tensor", _BOTH,
   decomposition=_hardswish_backward)  # fmt: skip
op("sigmoid(Tensor self) -> Tensor", POINTWISE_FLOAT, {"self": "sigmoid_backward(grad, result)"})
op("sigmoid_backward(Tensor grad_output, Tensor output) -> Tensor", POINTWISE,
   {"grad_output": "sigmoid_backward(grad, output)",
    "output": "grad * conj(grad_output) * (1 - 2 * output)"})  # fmt: skip
op("tanh_backward(Tensor grad_output, Tensor output) -> Tensor", POINTWISE,
   {"grad_output": "tanh_backward(grad, output)",
    "output": "-2 * grad * conj(grad_output) * output"})  # fmt: skip


def _silu_backward(grad_output: Any, self: Any) -> Any:
    share = F.sigmoid(self)
    slope = share * (1 + self * (1 - share))
    return grad_output * conjugate(slope)


op("silu(Tensor self) -> Tensor", POINTWISE, {"self": "silu_backward(grad, self)"})
op("silu_backward(Tensor grad_output, Tensor self) -> Tensor", _BOTH,
   decomposition=_silu_backward)  # fmt: skip


def _mish_backward(grad_output: Any, self: Any) -> Any:
    curve = F.tanh(F.softplus(self))
    return grad_output * (curve + self * F.sigmoid(self) * (1 - curve * curve))


op("mish(Tensor self) -> Tensor", POINTWISE, {"self": "mish_backward(grad, self)"})
op("mish_backward(Tensor grad_output, Tensor self) -> Tensor", _BOTH,
   decomposition=_mish_backward)  # fmt: skip


def _gelu_backward(grad_output: Any, self: Any, approximate: str = "none") -> Any:
    if approximate == "none":
        below = 0.5 * (1 + F.erf(self * 0.7071067811865476))
        density = F.exp(self * self * -0.5) * 0.3989422804014327
        return grad_output * (below + self * density)
    curve = F.tanh(0.7978845608028654 * (self + 0.044715 * self * self * self))
    slope = 0.7978845608028654 * (1 + 0.134145 * self * self)
    return grad_output * (0.5 * (1 + curve) + 0.5 * self * (1 - curve * curve) * slope)


op('gelu(Tensor self, *, str approximate="none") -> Tensor', checked(POINTWISE, _check_gelu),
   {"self": "gelu_backward(grad, self, approximate=approximate)"})  # fmt: skip
op('gelu_backward(Tensor grad_output, Tensor self, *, str approximate="none") -> Tensor',
   checked(_BOTH, _check_gelu), decomposition=_gelu_backward)  # fmt: skip


def _elu_backward(
    grad_output: Any, alpha: Any, scale: Any, input_scale: Any, is_result: bool, self_or_result: Any
) -> Any:
    of = self_or_result
    if is_result:
        slope = input_scale * (of + alpha * scale)
    else:
        slope = input_scale * alpha * scale * F.exp(of * input_scale)
    return F.where(of <= 0, grad_output * slope, grad_output * scale)


op("elu(Tensor self, Scalar alpha=1, Scalar scale=1, Scalar input_scale=1) -> Tensor", POINTWISE,
   {"self": "elu_backward(grad, alpha, scale, input_scale, False, self)"})  # fmt: skip
op("elu_backward(Tensor grad_output, Scalar alpha, Scalar scale, Scalar input_scale, "
   "bool is_result, Tensor self_or_result) -> Tensor", checked(POINTWISE, _check_elu),
   decomposition=_elu_backward)  # fmt: skip


def _softplus_backward(grad_output: Any, self: Any, beta: Any, threshold: Any) -> Any:
    scaled = self * beta
    return F.where(scaled > threshold, grad_output, grad_output * F.sigmoid(scaled))


op("softplus(Tensor self, Scalar beta=1, Scalar threshold=20) -> Tensor", POINTWISE,
   {"self": "softplus_backward(grad, self, beta, threshold)"})  # fmt: skip
op("softplus_backward(Tensor grad_output, Tensor self, Scalar beta, Scalar threshold) -> Tensor",
   _BOTH, decomposition=_softplus_backward)  # fmt: skip
op("log_sigmoid_forward(Tensor self) -> (Tensor output, Tensor buffer)", like("self", "self"),
   {"self": "log_sigmoid_backward(grad, self, result1)"})  # fmt: skip
op("log_sigmoid_backward(Tensor grad_output, Tensor self, Tensor buffer) -> Tensor", _BOTH,
   decomposition=lambda grad_output, self, buffer: grad_output * F.sigmoid(-self))  # fmt: skip

# ---- gates


def _halve(shape: tuple[int, ...], dim: int) -> tuple[int, ...]:
    place = normalize_dim(dim, len(shape))
    return (*shape[:place], shape[place] // 2, *shape[place + 1 :])


_HALVES = "a dimension of even size, which is split into values and gates"


def _glu_backward(grad_output: Any, self: Any, dim: int) -> Any:
    half = self.shape[dim] // 2
    values, gates = F.narrow(self, dim, 0, half), F.sigmoid(F.narrow(self, dim, half, half))
    gated = grad_output * gates
    return F.cat([gated, gated * values * (1 - gates)], dim)


op("glu(Tensor self, int dim=-1) -> Tensor", reshaped(_halve, "dim", expects=_HALVES),
   {"self": "glu_backward(grad, self, dim)"})  # fmt: skip
op("glu_backward(Tensor grad_output, Tensor self, int dim) -> Tensor",
   like("self", expects=_HALVES), decomposition=_glu_backward)  # fmt: skip

# ---- random slopes

op("rrelu_with_noise(Tensor self, Tensor(b!) noise, Scalar lower=0.125, "
   "Scalar upper=0.3333333333333333, bool training=False) -> Tensor", like("self"),
   {"self": "rrelu_with_noise_backward(grad, self, noise, lower, upper, training, False)"},
   effect=True)  # fmt: skip


def _rrelu_backward(
    grad_output: Any, self: Any, noise: Any, lower: Any, upper: Any, training: bool,
    self_is_result: bool,
) -> Any:  # fmt: skip
    if training and upper - lower > 1e-6:
        return grad_output * noise
    return F.leaky_relu_backward(grad_output, self, (lower + upper) / 2, self_is_result)


op("rrelu_with_noise_backward(Tensor grad_output, Tensor self, Tensor noise, Scalar lower, "
   "Scalar upper, bool training, bool self_is_result) -> Tensor", like("self"),
   decomposition=_rrelu_backward)  # fmt: skip

# ---- composites


composites(
    {
        "relu6(Tensor self) -> Tensor": lambda self: F.hardtanh(self, 0, 6),
        # The fixed point at which activations keep mean 0 and variance 1.
        "selu(Tensor self) -> Tensor": (
            lambda self: F.elu(self, 1.6732632423543772, 1.0507009873554805)
        ),
        "log_sigmoid(Tensor self) -> Tensor": lambda self: F.log_sigmoid_forward(self)[0],
        "softsign(Tensor self) -> Tensor": lambda self: self / (F.abs(self) + 1),
        "tanhshrink(Tensor self) -> Tensor": lambda self: self - F.tanh(self),
    }
)


@composite("celu(Tensor self, Scalar alpha=1.0) -> Tensor")
def celu(self: Any, alpha: Any = 1.0) -> Any:
    if alpha == 0:
        raise ValueError("alpha cannot be 0")
    return F.elu(self, alpha, 1.0, 1.0 / alpha)


@composite("prelu(Tensor self, Tensor weight) -> Tensor")
def prelu(self: Any, weight: Any) -> Any:
    if weight.ndim and weight.shape[0] != 1:
        channels = self.shape[1] if self.ndim > 1 else 1
        if weight.ndim != 1 or weight.shape[0] != channels:
            raise ValueError(f"a weight of {list(weight.shape)} does not fit {channels} channels")
        weight = F.reshape(weight, (1, channels) + (1,) * (self.ndim - 2))
    elif not self.ndim:
        weight = F.reshape(weight, ())
    return F._prelu_kernel(self, weight)
