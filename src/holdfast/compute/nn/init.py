"""How parameters begin: `init.kaiming_uniform_(weight)` and its kin.

Covers: filling tensors in place, by the formulas of the papers they are named after.
Leaves to others: drawing numbers (`holdfast.compute.random`).
Promise: numbers are drawn tensor by tensor in the order of the calls, in float32 as torch draws
them: with the same seed and the same order they are torch's.
"""

from __future__ import annotations

import math
from numbers import Integral
from typing import Any

import numpy

from holdfast.base.errors import BadInput
from holdfast.compute import autograd, functional
from holdfast.compute import dtype as formats
from holdfast.compute.device import device as as_device
from holdfast.compute.schema import described
from holdfast.compute.tensors import CustomTensor

_GAINS = {"tanh": 5.0 / 3, "relu": math.sqrt(2.0), "selu": 3.0 / 4}
_PLAIN = ("linear", "conv1d", "conv2d", "conv3d", "sigmoid")


def empty(*shape: int, device: Any = None, dtype: Any = None) -> CustomTensor:
    """A tensor with nothing in particular in it, float32 unless `dtype` says otherwise.

    Raises BadInput for sizes that are no whole numbers from 0 up.
    """
    if not all(isinstance(size, Integral) and size >= 0 for size in shape):
        raise BadInput(
            f"a weight cannot have the sizes {list(shape)}", expected="whole numbers from 0 up"
        )
    place = as_device(device)
    kind = formats.FLOAT32 if dtype is None else formats.dtype(dtype)
    return CustomTensor._wrap(place.engine.alloc(shape, kind), place)


def uniform_(tensor: CustomTensor, a: float = 0.0, b: float = 1.0) -> CustomTensor:
    """Evenly between `a` and `b`."""
    with autograd.no_grad():
        return functional.uniform_(tensor, a, b)


def normal_(tensor: CustomTensor, mean: float = 0.0, std: float = 1.0) -> CustomTensor:
    """Normally distributed."""
    with autograd.no_grad():
        return functional.normal_functional_(tensor, mean, std)


def trunc_normal_(
    tensor: CustomTensor, mean: float = 0.0, std: float = 1.0, a: float = -2.0, b: float = 2.0
) -> CustomTensor:
    """Normally distributed, with everything outside of [a, b] left out.

    Even numbers between the two ends' probabilities go through the inverse of the distribution;
    torch draws in another way, so these are not its numbers.
    """
    low, high = (0.5 * (1 + math.erf((end - mean) / std / math.sqrt(2))) for end in (a, b))
    uniform_(tensor, 2 * low - 1, 2 * high - 1)
    with autograd.no_grad():
        functional.erfinv_(tensor)
        functional.mul_(tensor, std * math.sqrt(2.0))
        functional.add_(tensor, mean)
        return functional.clamp_(tensor, a, b)


def constant_(tensor: CustomTensor, val: float) -> CustomTensor:
    """One number everywhere."""
    value = numpy.broadcast_to(numpy.asarray(val, tensor.dtype), tensor.shape)
    engine = tensor.device.engine
    engine.write(tensor._array, engine.upload(value))
    tensor._touch()
    return tensor


def ones_(tensor: CustomTensor) -> CustomTensor:
    """1 everywhere."""
    return constant_(tensor, 1.0)


def zeros_(tensor: CustomTensor) -> CustomTensor:
    """0 everywhere."""
    return constant_(tensor, 0.0)


def eye_(tensor: CustomTensor) -> CustomTensor:
    """1 on the diagonal of a matrix, 0 elsewhere."""
    if tensor.ndim != 2:
        raise BadInput(f"eye_ cannot fill {described(tensor)}", expected="a matrix")
    engine = tensor.device.engine
    engine.write(tensor._array, engine.upload(numpy.eye(*tensor.shape, dtype=tensor.dtype)))
    tensor._touch()
    return tensor


def fans(tensor: CustomTensor) -> tuple[int, int]:
    """How many numbers go into one output of a weight, and out of one input."""
    if tensor.ndim < 2:
        raise BadInput(
            f"{described(tensor)} has no fan in and fan out",
            expected="a weight of at least two dimensions",
        )
    field = math.prod(tensor.shape[2:])
    return tensor.shape[1] * field, tensor.shape[0] * field


def calculate_gain(nonlinearity: str, param: float | None = None) -> float:
    """What an activation is made up for with. Raises BadInput with the names there are."""
    if nonlinearity in _PLAIN or nonlinearity.startswith("conv_transpose"):
        return 1.0
    if nonlinearity == "leaky_relu":
        return math.sqrt(2.0 / (1 + (0.01 if param is None else param) ** 2))
    if nonlinearity not in _GAINS:
        names = ", ".join((*_PLAIN, *_GAINS, "leaky_relu"))
        raise BadInput(f"no gain is known for {nonlinearity!r}", expected=f"one of {names}")
    return _GAINS[nonlinearity]


def xavier_uniform_(tensor: CustomTensor, gain: float = 1.0) -> CustomTensor:
    """Evenly, with the variance of Glorot and Bengio (2010)."""
    bound = math.sqrt(3.0) * (gain * math.sqrt(2.0) * inverse_root(sum(fans(tensor))))
    return uniform_(tensor, -bound, bound)


def xavier_normal_(tensor: CustomTensor, gain: float = 1.0) -> CustomTensor:
    """Normally, with the variance of Glorot and Bengio (2010)."""
    return normal_(tensor, 0.0, gain * math.sqrt(2.0) * inverse_root(sum(fans(tensor))))


def kaiming_uniform_(
    tensor: CustomTensor, a: float = 0, mode: str = "fan_in", nonlinearity: str = "leaky_relu"
) -> CustomTensor:
    """Evenly, with the variance of He and others (2015); `a` is the slope of leaky_relu."""
    bound = math.sqrt(3.0) * _kaiming(tensor, a, mode, nonlinearity)
    return uniform_(tensor, -bound, bound)


def kaiming_normal_(
    tensor: CustomTensor, a: float = 0, mode: str = "fan_in", nonlinearity: str = "leaky_relu"
) -> CustomTensor:
    """Normally, with the variance of He and others (2015); `a` is the slope of leaky_relu."""
    return normal_(tensor, 0.0, _kaiming(tensor, a, mode, nonlinearity))


def _kaiming(tensor: CustomTensor, a: float, mode: str, nonlinearity: str) -> float:
    if mode not in ("fan_in", "fan_out"):
        raise BadInput(f"{mode!r} is no mode", expected="one of fan_in, fan_out")
    return calculate_gain(nonlinearity, a) * inverse_root(fans(tensor)[mode == "fan_out"])


def inverse_root(fan: int) -> float:
    """1/√fan, or 0 where nothing goes in: the bound of most biases."""
    return 1 / math.sqrt(fan) if fan > 0 else 0.0
