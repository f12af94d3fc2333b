"""Initialization of parameters in place: `init.kaiming_uniform_(weight)` …

Numbers are drawn in float32, tensor by tensor in the order of the calls, as torch draws them:
the same seed and order give torch's numbers.
"""

from __future__ import annotations

import math
from numbers import Integral
from typing import Any

import numpy

from holdfast.base.errors import BadInput
from holdfast.compute import dtype as dtypes
from holdfast.compute import functional
from holdfast.compute.autograd import tape
from holdfast.compute.nn.convert import fill
from holdfast.compute.ops.schema import describe
from holdfast.compute.tensors.custom_tensor import CustomTensor
from holdfast.compute.tensors.device import device as as_device

_GAINS = {"tanh": 5.0 / 3, "relu": math.sqrt(2.0), "selu": 3.0 / 4}
_PLAIN = ("linear", "conv1d", "conv2d", "conv3d", "sigmoid")


def empty(*shape: int, device: Any = None, dtype: Any = None) -> CustomTensor:
    """An uninitialized tensor, float32 unless `dtype` is given.

    Raises BadInput for invalid sizes.
    """
    if not all(isinstance(size, Integral) and size >= 0 for size in shape):
        raise BadInput(
            f"a weight cannot have the sizes {list(shape)}", expected="integers from 0 up"
        )
    place = as_device(device)
    kind = dtypes.FLOAT32 if dtype is None else dtypes.dtype(dtype)
    return CustomTensor._wrap(place.engine.alloc(shape, kind), place)


def uniform_(tensor: CustomTensor, a: float = 0.0, b: float = 1.0) -> CustomTensor:
    """Uniform between `a` and `b`."""
    with tape.no_grad():
        return functional.uniform_(tensor, a, b)


def normal_(tensor: CustomTensor, mean: float = 0.0, std: float = 1.0) -> CustomTensor:
    with tape.no_grad():
        return functional.normal_functional_(tensor, mean, std)


def trunc_normal_(
    tensor: CustomTensor, mean: float = 0.0, std: float = 1.0, a: float = -2.0, b: float = 2.0
) -> CustomTensor:
    """Normal, truncated to [a, b].

    Uniform numbers go through the inverse CDF; torch draws in another way, so these are not its
    numbers.
    """
    low, high = (0.5 * (1 + math.erf((end - mean) / std / math.sqrt(2))) for end in (a, b))
    uniform_(tensor, 2 * low - 1, 2 * high - 1)
    with tape.no_grad():
        functional.erfinv_(tensor)
        functional.mul_(tensor, std * math.sqrt(2.0))
        functional.add_(tensor, mean)
        return functional.clamp_(tensor, a, b)


def constant_(tensor: CustomTensor, val: float) -> CustomTensor:
    """Fill with one value."""
    fill(tensor, numpy.broadcast_to(numpy.asarray(val, tensor.dtype), tensor.shape))
    return tensor


def ones_(tensor: CustomTensor) -> CustomTensor:
    return constant_(tensor, 1.0)


def zeros_(tensor: CustomTensor) -> CustomTensor:
    return constant_(tensor, 0.0)


def eye_(tensor: CustomTensor) -> CustomTensor:
    """The identity matrix."""
    if tensor.ndim != 2:
        raise BadInput(f"eye_ cannot fill {describe(tensor)}", expected="a matrix")
    fill(tensor, numpy.eye(*tensor.shape, dtype=tensor.dtype))
    return tensor


def fans(tensor: CustomTensor) -> tuple[int, int]:
    """The fan-in and fan-out of a weight."""
    if tensor.ndim < 2:
        raise BadInput(
            f"{describe(tensor)} has no fan in and fan out",
            expected="a weight of at least two dimensions",
        )
    field = math.prod(tensor.shape[2:])
    return tensor.shape[1] * field, tensor.shape[0] * field


def calculate_gain(nonlinearity: str, param: float | None = None) -> float:
    """The recommended gain for an activation. Raises BadInput that lists the names."""
    if nonlinearity in _PLAIN or nonlinearity.startswith("conv_transpose"):
        return 1.0
    if nonlinearity == "leaky_relu":
        return math.sqrt(2.0 / (1 + (0.01 if param is None else param) ** 2))
    if nonlinearity not in _GAINS:
        names = ", ".join((*_PLAIN, *_GAINS, "leaky_relu"))
        raise BadInput(f"no gain is known for {nonlinearity!r}", expected=f"one of {names}")
    return _GAINS[nonlinearity]


def xavier_uniform_(tensor: CustomTensor, gain: float = 1.0) -> CustomTensor:
    """Uniform, with the variance of Glorot and Bengio (2010)."""
    bound = math.sqrt(3.0) * (gain * math.sqrt(2.0) * inverse_root(sum(fans(tensor))))
    return uniform_(tensor, -bound, bound)


def xavier_normal_(tensor: CustomTensor, gain: float = 1.0) -> CustomTensor:
    """Normal, with the variance of Glorot and Bengio (2010)."""
    return normal_(tensor, 0.0, gain * math.sqrt(2.0) * inverse_root(sum(fans(tensor))))


def kaiming_uniform_(
    tensor: CustomTensor, a: float = 0, mode: str = "fan_in", nonlinearity: str = "leaky_relu"
) -> CustomTensor:
    """Uniform, with the variance of He et al. (2015); `a` is leaky_relu's slope."""
    bound = math.sqrt(3.0) * _kaiming(tensor, a, mode, nonlinearity)
    return uniform_(tensor, -bound, bound)


def kaiming_normal_(
    tensor: CustomTensor, a: float = 0, mode: str = "fan_in", nonlinearity: str = "leaky_relu"
) -> CustomTensor:
    """Normal, with the variance of He et al. (2015); `a` is leaky_relu's slope."""
    return normal_(tensor, 0.0, _kaiming(tensor, a, mode, nonlinearity))


def _kaiming(tensor: CustomTensor, a: float, mode: str, nonlinearity: str) -> float:
    if mode not in ("fan_in", "fan_out"):
        raise BadInput(f"{mode!r} is no mode", expected="one of fan_in, fan_out")
    return calculate_gain(nonlinearity, a) * inverse_root(fans(tensor)[mode == "fan_out"])


def uniform_all(module: Any, fan: int) -> None:
    """Fill every parameter of a module with uniform numbers within 1/√fan."""
    bound = inverse_root(fan)
    for parameter in module.parameters():
        uniform_(parameter, -bound, bound)


def inverse_root(fan: int) -> float:
    """1/√fan, or 0 for fan 0: the bound of most biases."""
    return 1 / math.sqrt(fan) if fan > 0 else 0.0
