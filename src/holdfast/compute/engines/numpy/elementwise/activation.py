"""Activations and their backward ops, computed in blocks that stay in the cache."""

from __future__ import annotations

from typing import Any

import numpy

from holdfast.compute import dtype as dtypes
from holdfast.compute.engines.numpy.elementwise import blocked
from holdfast.compute.engines.numpy.elementwise.blocked import (
    block_kernel,
    blockwise,
    choose,
    keep_where,
    select,
)
from holdfast.compute.engines.numpy.kernels import kernel, register, widen

_DENSITY = 0.3989422804014327  # 1 / sqrt(2 pi)
_TANH_SCALE = 0.7978845608028654  # sqrt(2 / pi)
_TANH_CUBE = 0.044715


def _mask_gradient(grad: Any, self: Any, passes: Any) -> Any:
    """`grad` where `passes(self)`, else 0."""
    if grad.dtype.kind != "f":
        return numpy.where(passes(self), grad, grad.dtype.type(0))
    return blockwise(lambda out, grad, self: keep_where(out, passes(self), grad), grad, self)


# ---- piecewise linear


register("relu", lambda self: numpy.maximum(self, 0))


@kernel("threshold")
def threshold(self: Any, threshold: Any, value: Any) -> Any:
    return select(self <= threshold, numpy.asarray(value).astype(self.dtype), self)


@kernel("threshold_backward")
def threshold_backward(grad_output: Any, self: Any, threshold: Any) -> Any:
    return _mask_gradient(grad_output, self, lambda x: ~(x <= threshold))


@kernel("leaky_relu")
def leaky_relu(self: Any, negative_slope: Any = 0.01) -> Any:
    if 0 < negative_slope <= 1:
        return numpy.maximum(self, self * negative_slope)
    return select(self > 0, self, self * negative_slope)


@kernel("leaky_relu_backward")
def leaky_relu_backward(
    grad_output: Any, self: Any, negative_slope: Any, self_is_result: bool
) -> Any:
    def block(out: Any, grad: Any, x: Any) -> None:
        numpy.multiply(grad, negative_slope, out=out)
        choose(out, x > 0, grad, out)

    return blockwise(block, grad_output, self)


@kernel("hardtanh")
def hardtanh(self: Any, min_val: Any = -1, max_val: Any = 1) -> Any:
    out = numpy.maximum(self, min_val)
    return numpy.minimum(out, max_val)


@kernel("hardtanh_backward")
def hardtanh_backward(grad_output: Any, self: Any, min_val: Any, max_val: Any) -> Any:
    return _mask_gradient(grad_output, self, lambda x: (x > min_val) & (x < max_val))


def _ramp(out: Any, x: Any) -> None:
    """(x + 3) / 6 between 0 and 1."""
    numpy.add(x, 3, out=out)
    numpy.maximum(out, 0, out=out)
    numpy.minimum(out, 6, out=out)
    numpy.divide(out, 6, out=out)


block_kernel("hardsigmoid")(_ramp)


@kernel("hardsigmoid_backward")
def hardsigmoid_backward(grad_output: Any, self: Any) -> Any:
    return _mask_gradient(grad_output / 6, self, lambda x: (x > -3) & (x < 3))


@block_kernel("hardswish")
def hardswish(out: Any, x: Any) -> None:
    _ramp(out, x)
    numpy.multiply(out, x, out=out)


@block_kernel("hardswish_backward")
def hardswish_backward(out: Any, grad: Any, x: Any) -> None:
    numpy.divide(x, 3, out=out)
    numpy.add(out, 0.5, out=out)
    numpy.multiply(out, grad, out=out)
    keep_where(out, x > -3, out)
    choose(out, x < 3, out, grad)


@kernel("hardshrink")
def hardshrink(self: Any, lambd: Any = 0.5) -> Any:
    return hardshrink_backward(self, self, lambd)


@kernel("hardshrink_backward", "softshrink_backward")
def hardshrink_backward(grad_out: Any, self: Any, lambd: Any) -> Any:
    return _mask_gradient(grad_out, self, lambda x: ~((x >= -lambd) & (x <= lambd)))


@kernel("softshrink")
def softshrink(self: Any, lambd: Any = 0.5) -> Any:
    return self - hardtanh(self, -lambd, lambd)


register("_prelu_kernel", lambda self, weight: select(self > 0, self, self * weight))


@kernel("_prelu_kernel_backward")
def prelu_backward(grad_output: Any, self: Any, weight: Any) -> Any:
    kind = dtypes.working(self.dtype)
    grad, x, slope = (a.astype(kind, copy=False) for a in (grad_output, self, weight))
    through = select(x > 0, grad, grad * slope)
    back = _mask_gradient(x * grad, x, lambda x: ~(x > 0))
    return through.astype(self.dtype, copy=False), back.astype(self.dtype, copy=False)


# ---- sigmoid, tanh, silu, mish


sigmoid = block_kernel("sigmoid")(blocked.sigmoid)


@block_kernel("sigmoid_backward", "sigmoid_backward")
def sigmoid_backward(out: Any, grad: Any, y: Any) -> None:
    numpy.conjugate(y, out=out) if out.dtype.kind == "c" else numpy.copyto(out, y)
    slope = 1 - out
    numpy.multiply(out, slope, out=out)
    numpy.multiply(out, grad, out=out)


@block_kernel("tanh_backward")
def tanh_backward(out: Any, grad: Any, y: Any) -> None:
    numpy.square(y, out=out)
    numpy.subtract(1, out, out=out)
    if out.dtype.kind == "c":
        numpy.conjugate(out, out=out)
    numpy.multiply(out, grad, out=out)


@block_kernel("silu", "silu")
def silu(out: Any, x: Any) -> None:
    numpy.negative(x, out=out)
    numpy.exp(out, out=out)
    numpy.add(out, 1, out=out)
    numpy.true_divide(x, out, out=out)


@block_kernel("silu_backward", "silu_backward")
def silu_backward(out: Any, grad: Any, x: Any) -> None:
    blocked.sigmoid(out, x)
    slope = 1 - out
    slope *= x
    slope += 1
    numpy.multiply(out, slope, out=out)
    if out.dtype.kind == "c":
        numpy.conjugate(out, out=out)
    numpy.multiply(out, grad, out=out)


def _tanh_softplus(x: Any) -> tuple[Any, Any]:
    """Numerator and denominator of tanh(softplus(x)) = n / (n + 2), n = e^x (e^x + 2).

    Above 30 it is 1 in float32, and n would overflow.
    """
    power = numpy.exp(numpy.minimum(x, 30))
    product = power * (power + 2)
    return product, product + 2


@block_kernel("mish")
def mish(out: Any, x: Any) -> None:
    over, under = _tanh_softplus(x)
    numpy.true_divide(over, under, out=out)
    numpy.multiply(out, x, out=out)


@block_kernel("mish_backward")
def mish_backward(out: Any, grad: Any, x: Any) -> None:
    over, under = _tanh_softplus(x)
    over /= under
    blocked.sigmoid(out, x)
    numpy.multiply(out, x, out=out)
    numpy.multiply(out, 1 - over * over, out=out)
    numpy.add(out, over, out=out)
    numpy.multiply(out, grad, out=out)


# ---- gelu


@block_kernel(None, "gelu")
def _gelu(out: Any, x: Any) -> None:
    blocked.gauss(out, x)
    numpy.multiply(out, x, out=out)


def _tanh_cubic(out: Any, x: Any) -> None:
    """tanh(sqrt(2 / pi) * (x + 0.044715 x³)), which approximates erf(x / sqrt(2))."""
    numpy.square(x, out=out)
    numpy.multiply(out, _TANH_SCALE * _TANH_CUBE, out=out)
    numpy.add(out, _TANH_SCALE, out=out)
    numpy.multiply(out, x, out=out)
    numpy.tanh(out, out=out)


@block_kernel(None, "gelu_tanh")
def _gelu_tanh(out: Any, x: Any) -> None:
    _tanh_cubic(out, x)
    numpy.add(out, 1, out=out)
    numpy.multiply(out, x, out=out)
    numpy.multiply(out, 0.5, out=out)


@block_kernel(None, "gelu_backward")
def _gelu_slope(out: Any, grad: Any, x: Any) -> None:
    density = numpy.square(x)
    density *= -0.5
    numpy.exp(density, out=density)
    density *= _DENSITY
    density *= x
    blocked.gauss(out, x)
    numpy.add(out, density, out=out)
    numpy.multiply(out, grad, out=out)


@block_kernel(None, "gelu_tanh_backward")
def _gelu_tanh_slope(out: Any, grad: Any, x: Any) -> None:
    _tanh_cubic(out, x)
    rising = numpy.square(x)
    rising *= 3 * _TANH_CUBE * _TANH_SCALE
    rising += _TANH_SCALE
    rising *= x
    rising *= 1 - out * out
    rising += 1
    rising += out
    rising *= 0.5
    numpy.multiply(rising, grad, out=out)


@kernel("gelu")
def gelu(self: Any, approximate: str = "none") -> Any:
    return (_gelu if approximate == "none" else _gelu_tanh)(self)


@kernel("gelu_backward")
def gelu_backward(grad_output: Any, self: Any, approximate: str = "none") -> Any:
    return (_gelu_slope if approximate == "none" else _gelu_tanh_slope)(grad_output, self)


# ---- elu, softplus, log_sigmoid


@kernel("elu")
def elu(self: Any, alpha: Any = 1, scale: Any = 1, input_scale: Any = 1) -> Any:
    def block(out: Any, x: Any) -> None:
        numpy.minimum(x, 0, out=out)
        numpy.multiply(out, input_scale, out=out)
        numpy.expm1(out, out=out)
        numpy.multiply(out, alpha * scale, out=out)
        right = numpy.maximum(x, 0)
        right *= scale
        numpy.add(out, right, out=out)

    return blockwise(block, self)


@kernel("elu_backward")
def elu_backward(
    grad_output: Any, alpha: Any, scale: Any, input_scale: Any, is_result: bool, self_or_result: Any
) -> Any:
    def block(out: Any, grad: Any, of: Any) -> None:
        if is_result:
            numpy.add(of, alpha * scale, out=out)
            numpy.multiply(out, input_scale, out=out)
        else:
            numpy.multiply(of, input_scale, out=out)
            numpy.exp(out, out=out)
            numpy.multiply(out, input_scale * alpha * scale, out=out)
        numpy.multiply(out, grad, out=out)
        choose(out, of <= 0, out, grad * scale)

    return blockwise(block, grad_output, self_or_result)


@kernel("softplus")
def softplus(self: Any, beta: Any = 1, threshold: Any = 20) -> Any:
    def block(out: Any, x: Any) -> None:
        scaled = x * beta
        _softplus_block(out, scaled)
        numpy.divide(out, beta, out=out)
        numpy.copyto(out, x, where=scaled > threshold)

    return blockwise(block, self)


def _softplus_block(out: Any, x: Any) -> None:
    """log(1 + exp(x)), without an overflow."""
    numpy.absolute(x, out=out)
    numpy.negative(out, out=out)
    numpy.exp(out, out=out)
    blocked.log1p(out, out)
    numpy.add(out, numpy.maximum(x, 0), out=out)


@kernel("softplus_backward")
def softplus_backward(grad_output: Any, self: Any, beta: Any, threshold: Any) -> Any:
    def block(out: Any, grad: Any, x: Any) -> None:
        scaled = x * beta
        blocked.sigmoid(out, scaled)
        numpy.multiply(out, grad, out=out)
        numpy.copyto(out, grad, where=scaled > threshold)

    return blockwise(block, grad_output, self)


@kernel("log_sigmoid_forward")
def log_sigmoid(self: Any) -> Any:
    x = widen(self)
    buffer = numpy.exp(-numpy.abs(x))
    out = numpy.minimum(x, 0) - blockwise(blocked.log1p, buffer)
    return tuple(numpy.asarray(a).astype(self.dtype, copy=False) for a in (out, buffer))


@kernel("log_sigmoid_backward")
def log_sigmoid_backward(grad_output: Any, self: Any, buffer: Any) -> Any:
    return grad_output * blockwise(blocked.sigmoid, -self)
