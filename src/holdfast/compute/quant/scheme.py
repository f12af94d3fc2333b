"""`Scheme`, `quantize`, `Quantized`: scales and zero points from ranges, rounding, 4-bit packing.

level = round(x / scale) + zero_point, clipped to low..high; half rounds to even, as in torch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy

from holdfast.base.errors import BadInput
from holdfast.compute.ops.schema import describe
from holdfast.compute.tensors.creation import from_numpy
from holdfast.compute.tensors.custom_tensor import CustomTensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheme:
    """Levels of `bits` bits.

    Symmetric levels have no zero point. `axis`: one scale for each channel along it. `group`:
    one scale for each so many elements along the last axis.
    """

    bits: int = 8
    symmetric: bool = True
    axis: int | None = None
    group: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.bits, int) or not 2 <= self.bits <= 8:
            raise BadInput(f"{self.bits!r} bits are not supported", expected="2 to 8 bits")
        if self.group is not None and (self.group < 1 or self.axis is not None):
            raise BadInput(
                f"groups of {self.group} elements along axis {self.axis} are not supported",
                expected="a group of at least 1, and no axis beside it",
            )

    @property
    def low(self) -> int:
        """The lowest level."""
        return -(2 ** (self.bits - 1)) + self.symmetric

    @property
    def high(self) -> int:
        """The highest level."""
        return 2 ** (self.bits - 1) - 1

    def __str__(self) -> str:
        spread = f"axis {self.axis}" if self.axis is not None else "tensor"
        spread = f"group of {self.group}" if self.group else spread
        return f"int{self.bits} per {spread}" + ("" if self.symmetric else ", affine")


INT8 = Scheme()
INT8_CHANNELS = Scheme(axis=0)
INT8_ACTIVATIONS = Scheme(symmetric=False)
INT4 = Scheme(bits=4, group=32)


def parameters(scheme: Scheme, low: Any, high: Any, where: str = "the tensor") -> tuple[Any, Any]:
    """Scales (float32) and zero points (int32) that cover the ranges low..high.

    Raises BadInput for ranges that are not finite.
    """
    low, high = numpy.asarray(low, numpy.float64), numpy.asarray(high, numpy.float64)
    bad = ~(numpy.isfinite(low) & numpy.isfinite(high))
    if bad.any():
        raise BadInput(
            f"cannot quantize {where}: {int(bad.sum())} of {bad.size} ranges hold NaN or infinity",
            expected="finite numbers",
            hint="look for the layer whose output overflows before quantizing",
        )
    low, high = numpy.minimum(low, 0), numpy.maximum(high, 0)
    if scheme.symmetric:
        scale = numpy.maximum(-low, high) / scheme.high
        zero = numpy.zeros(scale.shape)
    else:
        scale = (high - low) / (scheme.high - scheme.low)
        zero = scheme.low - numpy.rint(low / numpy.where(scale > 0, scale, 1))
    scale = numpy.where(scale > 0, scale, 1.0).astype(numpy.float32)
    # For ranges near the smallest float32 the scale would be zero.
    scale = numpy.maximum(scale, numpy.finfo(numpy.float32).tiny)
    return scale, numpy.clip(zero, scheme.low, scheme.high).astype(numpy.int32)


@dataclass(slots=True, eq=False, repr=False)
class Quantized:
    """Integer levels with their scales and zero points."""

    values: CustomTensor
    scale: Any
    zero_point: Any
    scheme: Scheme
    shape: tuple[int, ...]

    def dequantize(self) -> CustomTensor:
        """The float32 values of the levels."""
        levels = self.levels().astype(numpy.float32)
        spread = _Spread(self.scheme, levels.shape)
        if self.scheme.group:
            levels = levels.reshape(spread.grouped)
        scale, zero = self.scale.data, self.zero_point.data.astype(numpy.float32)
        made = (levels - zero.reshape(spread.scales)) * scale.reshape(spread.scales)
        return from_numpy(numpy.asarray(made).reshape(self.shape), self.values.device)

    def levels(self) -> Any:
        """The levels as an int8 array in the original shape."""
        if self.scheme.bits == 4:
            return unpack(self.values.data, self.shape)
        return self.values.data.reshape(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of levels, scales and zero points."""
        return sum(part.nbytes for part in (self.values, self.scale, self.zero_point))

    def __repr__(self) -> str:
        return f"<Quantized {list(self.shape)} {self.scheme}, {self.nbytes} bytes>"


class _Spread:
    """The shape of scales for broadcasting, and the shape with groups split off."""

    def __init__(self, scheme: Scheme, shape: tuple[int, ...]) -> None:
        self.grouped = shape
        if scheme.group:
            if not shape or shape[-1] % scheme.group:
                raise BadInput(
                    f"cannot quantize {list(shape)} in groups of {scheme.group}",
                    expected="a last size that the group divides",
                )
            self.grouped = (*shape[:-1], shape[-1] // scheme.group, scheme.group)
            self.scales = (*self.grouped[:-1], 1)
        elif scheme.axis is None:
            self.scales = (1,) * len(shape)
        else:
            if not -len(shape) <= scheme.axis < len(shape):
                raise BadInput(
                    f"cannot quantize {list(shape)} along axis {scheme.axis}",
                    expected=f"an axis from {-len(shape)} to {len(shape) - 1}",
                )
            axis = scheme.axis % len(shape)
            self.scales = tuple(s if d == axis else 1 for d, s in enumerate(shape))


def quantize(
    tensor: Any, scheme: Scheme = INT8, scale: Any = None, zero_point: Any = None
) -> Quantized:
    """Round a tensor to levels; scales come from its own range unless given.

    Raises BadInput for NaN, infinity, integers, and shapes that the scheme does not fit.
    """
    of = tensor if isinstance(tensor, CustomTensor) else CustomTensor(tensor)
    if not of.is_floating_point():
        raise BadInput(f"cannot quantize {describe(of)}", expected="floating-point numbers")
    array = of.data.astype(numpy.float32)
    spread = _Spread(scheme, array.shape)
    grouped = array.reshape(spread.grouped)
    if scale is None:
        bad = array.size - int(numpy.isfinite(array).sum())
        if bad:
            raise BadInput(
                f"cannot quantize {describe(of)}: {bad} of {array.size} elements are NaN or "
                "infinite",
                expected="finite numbers",
                hint="look for the layer whose output overflows before quantizing",
            )
        low, high = _range(grouped, spread.scales)
        scale, zero_point = parameters(scheme, low, high, describe(of))
    scales = _check_given("scale", scale, numpy.float32, spread.scales)
    if not (numpy.isfinite(scales) & (scales > 0)).all():
        raise BadInput(
            f"cannot quantize {describe(of)} by a scale of {scales.min()}",
            expected="scales above 0",
        )
    zeros = numpy.zeros(spread.scales, numpy.int32)
    if zero_point is not None:
        zeros = _check_given("zero_point", zero_point, numpy.int32, spread.scales)
    levels = numpy.clip(numpy.rint(grouped / scales) + zeros, scheme.low, scheme.high)
    levels = levels.astype(numpy.int8).reshape(array.shape)
    stored = pack(levels) if scheme.bits == 4 else levels
    parts = stored, scales.astype(numpy.float32).reshape(-1), zeros.astype(numpy.int32).reshape(-1)
    upload = of.device.engine.upload  # into memory of the device's pool
    values, *scaling = (CustomTensor._wrap(upload(part), of.device) for part in parts)
    return Quantized(values, scaling[0], scaling[1], scheme, array.shape)


def _check_given(name: str, value: Any, kind: Any, shape: tuple[int, ...]) -> Any:
    array = numpy.asarray(value.data if isinstance(value, CustomTensor) else value, kind)
    if array.size != math.prod(shape):
        raise BadInput(
            f"{name} has {array.size} elements",
            expected=f"{math.prod(shape)}, one for each channel or group",
        )
    return array.reshape(shape)


def _range(array: Any, scales: tuple[int, ...]) -> tuple[Any, Any]:
    if not array.size:
        return numpy.zeros(scales), numpy.zeros(scales)
    dims = tuple(d for d, size in enumerate(scales) if size == 1)
    return array.min(axis=dims, keepdims=True), array.max(axis=dims, keepdims=True)


def pack(levels: Any) -> Any:
    """Pack 4-bit levels, two in a byte, the first in the low half."""
    flat = (levels.reshape(-1).astype(numpy.int16) & 0xF).astype(numpy.uint8)
    if flat.size % 2:
        flat = numpy.append(flat, numpy.uint8(0))
    return flat[0::2] | (flat[1::2] << 4)


def unpack(packed: Any, shape: tuple[int, ...]) -> Any:
    """The inverse of `pack`, as int8."""
    halves = numpy.stack((packed & 0xF, packed >> 4), axis=-1).reshape(-1)
    signed = ((halves.astype(numpy.int8) ^ 8) - 8).astype(numpy.int8)
    return signed[: math.prod(shape)].reshape(shape)
