"""Arithmetic: sums, products, division, powers, logarithms, rounding."""

from __future__ import annotations

import functools
from typing import Any

import numpy

from holdfast.compute import dtype as dtypes
from holdfast.compute.engines.numpy.elementwise.blocked import blockwise, remainder_block
from holdfast.compute.engines.numpy.elementwise.blocked import log1p as fast_log1p
from holdfast.compute.engines.numpy.kernels import cast, kernel, register, widen

_FEW = 256  # elements; for fewer, a loop over blocks costs more than it saves
_TABLE = 1024  # elements up to which `exp` is exact to the last bit

for _name in (
    *("exp2", "expm1", "log", "log2", "log10", "sqrt", "sin", "cos", "tan", "asin", "acos"),
    *("atan", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "deg2rad", "rad2deg", "atan2"),
    *("logaddexp2", "hypot", "nextafter", "square", "gcd", "lcm"),
):
    register(_name, getattr(numpy, _name))
for _name, _ufunc in {
    "mul.Tensor": numpy.multiply,
    "div.Tensor": numpy.true_divide,
    "div.Scalar": numpy.true_divide,
    "copysign.Tensor": numpy.copysign,
    "copysign.Scalar": numpy.copysign,
    "neg": numpy.negative,
    "abs": numpy.absolute,
}.items():
    register(_name, _ufunc)


@kernel("exp")
def exp(self: Any) -> Any:
    """Small arrays are computed in float64: NumPy's float32 is off by 1 ulp or more.

    Models compute embedding frequencies with exp, multiply them by a thousand and take the sine,
    which turns an error in the last bit into one in the fourth digit.
    """
    if self.dtype == dtypes.FLOAT32 and self.size <= _TABLE:
        return numpy.exp(self.astype(dtypes.FLOAT64)).astype(dtypes.FLOAT32)
    return numpy.exp(self)


def _scale(value: Any, by: Any, integer: bool) -> Any:
    """`value * by`; a negative factor of unsigned integers wraps around."""
    if by == 1:
        return value
    if integer and isinstance(by, float | complex):
        raise TypeError(f"integers cannot be scaled by {by!r}")
    return numpy.multiply(value, _wrap_integer(by, value) if integer else by)


def _is_integer(array: Any) -> bool:
    return array.dtype.kind in "biu"


def _wrap_integer(number: Any, like: Any) -> Any:
    """A Python int in the integer dtype of `like`; it wraps around if it does not fit."""
    if type(number) is int and like.dtype.kind in "iu":
        return numpy.asarray(number).astype(like.dtype)
    return number


@kernel("add.Tensor", "add.Scalar")
def add(self: Any, other: Any, alpha: Any = 1) -> Any:
    return numpy.add(self, _scale(_wrap_integer(other, self), alpha, _is_integer(self)))


@kernel("sub.Tensor", "sub.Scalar")
def sub(self: Any, other: Any, alpha: Any = 1) -> Any:
    return numpy.subtract(self, _scale(_wrap_integer(other, self), alpha, _is_integer(self)))


@kernel("rsub.Tensor", "rsub.Scalar")
def rsub(self: Any, other: Any, alpha: Any = 1) -> Any:
    return numpy.subtract(_wrap_integer(other, self), _scale(self, alpha, _is_integer(self)))


@kernel("mul.Scalar")
def mul(self: Any, other: Any) -> Any:
    return numpy.multiply(self, _wrap_integer(other, self))


# ---- division


def _refuse_zero(self: Any, other: Any) -> None:
    """Raise ZeroDivisionError for integers, which have no infinity."""
    if numpy.asarray(self).dtype.kind in "biu" and not numpy.all(other):
        raise ZeroDivisionError("integer division by zero")


@kernel("div.Tensor_mode", "div.Scalar_mode")
def divide(self: Any, other: Any, rounding_mode: str | None) -> Any:
    kind = dtypes.result_type(self, other)
    if rounding_mode is None:
        kind = dtypes.with_fractions(kind)
    working = dtypes.working(kind)
    out = _divide_in_mode(cast(self, working), cast(other, working), rounding_mode, kind)
    return numpy.asarray(out).astype(kind, copy=False)


def _divide_in_mode(self: Any, other: Any, mode: str | None, kind: numpy.dtype[Any]) -> Any:
    if mode is None:
        return numpy.true_divide(self, other)
    if mode == "floor":
        return floor_divide(self, other)
    if not _is_integer(self):
        # The quotient is first rounded to the result's dtype, as in torch.
        return numpy.trunc(
            cast(numpy.true_divide(self, other), kind).astype(self.dtype, copy=False)
        )
    _refuse_zero(self, other)
    down = numpy.floor_divide(self, other)
    # Inexact negative quotients were rounded away from zero: add 1.
    return down + ((down < 0) & (down * other != self))


@kernel("floor_divide", "floor_divide.Scalar")
def floor_divide(self: Any, other: Any) -> Any:
    _refuse_zero(self, other)
    return numpy.floor_divide(self, other)


@kernel("remainder.Tensor", "remainder.Scalar", "remainder.Scalar_Tensor")
def remainder(self: Any, other: Any) -> Any:
    _refuse_zero(other, other)
    return _remainder(self, other, numpy.floor, numpy.remainder)


@kernel("fmod.Tensor", "fmod.Scalar")
def fmod(self: Any, other: Any) -> Any:
    _refuse_zero(self, other)
    return _remainder(self, other, numpy.trunc, numpy.fmod)


def _remainder(self: Any, other: Any, rounded: Any, exact: Any) -> Any:
    """`exact`, in blocks for float32, where NumPy's own loop takes ten times as long."""
    one, by = numpy.asarray(self), numpy.asarray(other)
    integer = _is_integer(one) and _is_integer(by)
    if integer or dtypes.FLOAT32 not in (one.dtype, by.dtype) or one.size * by.size < _FEW:
        return exact(self, other)

    def block(out: Any, one: Any, by: Any) -> None:
        remainder_block(out, one, by, rounded, exact)

    return blockwise(block, cast(one, dtypes.FLOAT32), cast(by, dtypes.FLOAT32))


# ---- sums of products


@kernel("addcmul")
def addcmul(self: Any, tensor1: Any, tensor2: Any, value: Any = 1) -> Any:
    return numpy.add(self, _scale(tensor1 * tensor2, value, _is_integer(self)))


@kernel("addcdiv")
def addcdiv(self: Any, tensor1: Any, tensor2: Any, value: Any = 1) -> Any:
    return numpy.add(self, _scale(tensor1 / tensor2, value, False))


@kernel("lerp.Scalar", "lerp.Tensor")
def lerp(self: Any, end: Any, weight: Any) -> Any:
    # From the nearer end, so that a weight of 1 gives exactly `end`.
    span = end - self
    if not hasattr(weight, "ndim"):
        return self + weight * span if abs(weight) < 0.5 else end - span * (1 - weight)
    return numpy.where(numpy.abs(weight) < 0.5, self + weight * span, end - span * (1 - weight))


@kernel("logaddexp")
def logaddexp(self: Any, other: Any) -> Any:
    if self.dtype.kind != "c":
        return numpy.logaddexp(self, other)
    larger = self.real >= other.real
    high, low = numpy.where(larger, self, other), numpy.where(larger, other, self)
    # The difference of two equal infinities would be NaN.
    gap = numpy.where(numpy.isinf(high.real) & (high == low), 0, low - high)
    return high + numpy.log1p(numpy.exp(gap))


@kernel("log1p")
def log1p(self: Any) -> Any:
    if self.dtype != dtypes.FLOAT32:
        return numpy.log1p(self)
    return blockwise(fast_log1p, self)


# ---- powers


@kernel("pow.Tensor_Scalar")
def power(self: Any, exponent: Any) -> Any:
    short = _SHORT.get(exponent) if type(exponent) in (int, float) else None
    if short is not None:
        return short(self)
    if _is_integer(self):
        if exponent < 0:
            raise ValueError("integers have no negative powers")
        return _integer_power(self, numpy.asarray(exponent).astype(self.dtype))
    return numpy.power(self, exponent)


_SHORT = {1: numpy.positive, 2: numpy.square, 3: lambda x: numpy.multiply(numpy.square(x), x)}


@kernel("pow.Tensor_Tensor", "pow.Scalar")
def powers(self: Any, exponent: Any) -> Any:
    if exponent.dtype.kind in "biu":
        return _integer_power(numpy.asarray(self).astype(exponent.dtype), exponent)
    return numpy.power(self, exponent)


def _integer_power(self: Any, exponent: Any) -> Any:
    """Powers of integers; negative powers give 0, except of 1 and -1."""
    if self.dtype.kind == "b":
        return self | ~exponent
    if self.dtype.kind == "u":
        return numpy.power(self, exponent)
    out = numpy.power(self, numpy.abs(exponent))
    return numpy.where((exponent < 0) & (numpy.abs(self) != 1), 0, out).astype(self.dtype)


register("rsqrt", lambda self: numpy.true_divide(1, numpy.sqrt(self)))
register("reciprocal", lambda self: numpy.true_divide(1, self))


@kernel("sinc")
def sinc(self: Any) -> Any:
    angle = numpy.multiply(self, numpy.pi)
    return numpy.where(self == 0, numpy.ones_like(self), numpy.sin(angle) / angle)


# ---- rounding and signs


def _round(ufunc: Any, self: Any) -> Any:
    return self.copy() if _is_integer(self) else ufunc(self)


for _name, _ufunc in {
    "floor": numpy.floor,
    "ceil": numpy.ceil,
    "trunc": numpy.trunc,
    "round": numpy.rint,
}.items():
    register(_name, functools.partial(_round, _ufunc))


@kernel("round.decimals")
def round_decimals(self: Any, decimals: int) -> Any:
    if _is_integer(self):
        return numpy.round(self, decimals)
    scale = 10.0 ** abs(decimals)
    if decimals < 0:
        return numpy.rint(self / scale) * scale
    return numpy.rint(self * scale) / scale


register("frac", lambda self: numpy.subtract(self, numpy.trunc(self)))


@kernel("sign")
def sign(self: Any) -> Any:
    if self.dtype.kind in "bu":
        return numpy.not_equal(self, 0).astype(self.dtype)
    # NumPy's sign of NaN is NaN, torch's is 0.
    return numpy.subtract(self > 0, self < 0, dtype=self.dtype, casting="unsafe")


@kernel("frexp.Tensor")
def frexp(self: Any) -> Any:
    mantissa, exponent = numpy.frexp(widen(self))
    return cast(mantissa, self.dtype), cast(exponent, dtypes.DTYPES["int32"])


@kernel("nan_to_num")
def nan_to_num(
    self: Any, nan: float | None = None, posinf: float | None = None, neginf: float | None = None
) -> Any:
    out = self.copy()
    for part in (out.real, out.imag) if out.dtype.kind == "c" else (out,):
        if _is_integer(part):
            continue
        limit = _limits(part.dtype)
        high = limit.max if posinf is None else posinf
        low = limit.min if neginf is None else neginf
        rising, falling = numpy.isposinf(part), numpy.isneginf(part)
        part[numpy.isnan(part)] = 0.0 if nan is None else nan
        part[rising] = high
        part[falling] = low
    return out


def _limits(kind: numpy.dtype[Any]) -> Any:
    if dtypes.ml_dtypes is None:
        return numpy.finfo(kind)
    return dtypes.ml_dtypes.finfo(kind)
