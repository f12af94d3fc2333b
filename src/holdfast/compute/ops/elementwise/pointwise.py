"""Elementwise arithmetic, powers, exponentials, trigonometry and rounding."""

from __future__ import annotations

from typing import Any

import numpy

from holdfast.compute import dtype as dtypes
from holdfast.compute import functional as F
from holdfast.compute.ops.rules import (
    POINTWISE,
    POINTWISE_FLOAT,
    POINTWISE_REAL,
    Meta,
    Rule,
    checked,
    find_promotion,
    like,
    meta_of,
    pointwise,
    rule,
)
from holdfast.compute.ops.table import Op, composite, op

# ---- arithmetic

op("add.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor", POINTWISE,
   {"self": "grad", "other": "scale_grad(grad, alpha)"})  # fmt: skip
op("add.Scalar(Tensor self, Scalar other, Scalar alpha=1) -> Tensor", POINTWISE, {"self": "grad"})
op("sub.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor", POINTWISE,
   {"self": "grad", "other": "-scale_grad(grad, alpha)"})  # fmt: skip
op("sub.Scalar(Tensor self, Scalar other, Scalar alpha=1) -> Tensor", POINTWISE, {"self": "grad"})
op("rsub.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor", POINTWISE,
   {"self": "-scale_grad(grad, alpha)", "other": "grad"})  # fmt: skip
op("rsub.Scalar(Tensor self, Scalar other, Scalar alpha=1) -> Tensor", POINTWISE,
   {"self": "-scale_grad(grad, alpha)"})  # fmt: skip
op("mul.Tensor(Tensor self, Tensor other) -> Tensor", POINTWISE,
   {"self": "grad * conj(other)", "other": "grad * conj(self)"})  # fmt: skip
op("mul.Scalar(Tensor self, Scalar other) -> Tensor", POINTWISE, {"self": "grad * conj(other)"})
op("div.Tensor(Tensor self, Tensor other) -> Tensor", POINTWISE_FLOAT,
   {"self": "grad / conj(other)",
    "other": "-grad * conj((self / other) / other)"})  # fmt: skip
op("div.Scalar(Tensor self, Scalar other) -> Tensor", POINTWISE_FLOAT,
   {"self": "grad / conj(other)"})  # fmt: skip


def _infer_div(op: Op, bound: dict[str, Any]) -> Meta:
    """Rounding division of integers returns integers; plain division does not."""
    shapes = [bound[name].shape for name in ("self", "other") if hasattr(bound[name], "shape")]
    kind = find_promotion(op, bound)[1]
    if bound["rounding_mode"] is None:
        kind = dtypes.with_fractions(kind)
    return Meta(numpy.broadcast_shapes(*shapes), kind)


def _check_mode(self: Any, other: Any, rounding_mode: str | None) -> None:
    if rounding_mode not in (None, "trunc", "floor"):
        raise ValueError(f"rounding_mode {rounding_mode!r} is none of None, 'trunc', 'floor'")


_DIVIDE = Rule(
    _infer_div,
    among=("self", "other"),
    expects='rounding_mode None, "trunc" or "floor", and shapes that broadcast',
    check=_check_mode,
)
_SELF_DIVIDED = "grad / conj(other) if rounding_mode is None else zeros_like(grad)"
op("div.Tensor_mode(Tensor self, Tensor other, *, str? rounding_mode) -> Tensor", _DIVIDE,
   {"self": _SELF_DIVIDED,
    "other": "-grad * conj((self / other) / other) if rounding_mode is None else zeros_like(grad)"}
   )  # fmt: skip
op("div.Scalar_mode(Tensor self, Scalar other, *, str? rounding_mode) -> Tensor", _DIVIDE,
   {"self": _SELF_DIVIDED})  # fmt: skip
op("floor_divide(Tensor self, Tensor other) -> Tensor", POINTWISE)
op("floor_divide.Scalar(Tensor self, Scalar other) -> Tensor", POINTWISE)
op("remainder.Tensor(Tensor self, Tensor other) -> Tensor", POINTWISE,
   {"self": "grad", "other": "-grad * div(self, other, rounding_mode='floor')"})  # fmt: skip
op("remainder.Scalar(Tensor self, Scalar other) -> Tensor", POINTWISE, {"self": "grad"})
op("remainder.Scalar_Tensor(Scalar self, Tensor other) -> Tensor",
   pointwise(among=("self", "other")),
   {"other": "-grad * floor(reciprocal(other) * self)"})  # fmt: skip
op("fmod.Tensor(Tensor self, Tensor other) -> Tensor", POINTWISE,
   {"self": "grad", "other": "-grad * div(self, other, rounding_mode='trunc')"})  # fmt: skip
op("fmod.Scalar(Tensor self, Scalar other) -> Tensor", POINTWISE, {"self": "grad"})
op("addcmul(Tensor self, Tensor tensor1, Tensor tensor2, *, Scalar value=1) -> Tensor", POINTWISE,
   {"self": "grad", "tensor1": "scale_grad(grad, value) * conj(tensor2)",
    "tensor2": "scale_grad(grad, value) * conj(tensor1)"})  # fmt: skip


def _check_addcdiv(self: Any, tensor1: Any, tensor2: Any, value: Any = 1) -> None:
    if dtypes.result_type(self, tensor1, tensor2).kind in "biu":
        raise TypeError("integers cannot be divided here; use add(self, div(…)) with rounding")


op("addcdiv(Tensor self, Tensor tensor1, Tensor tensor2, *, Scalar value=1) -> Tensor",
   checked(POINTWISE, _check_addcdiv),
   {"self": "grad", "tensor1": "scale_grad(grad, value) / conj(tensor2)",
    "tensor2": "-scale_grad(grad, value) * conj((tensor1 / tensor2) / tensor2)"})  # fmt: skip
op("lerp.Scalar(Tensor self, Tensor end, Scalar weight) -> Tensor", POINTWISE,
   {"self": "grad * (1 - conj(weight))", "end": "grad * conj(weight)"})  # fmt: skip
op("lerp.Tensor(Tensor self, Tensor end, Tensor weight) -> Tensor", POINTWISE,
   {"self": "grad * (1 - conj(weight))", "end": "grad * conj(weight)",
    "weight": "grad * conj(end - self)"})  # fmt: skip
op("gcd(Tensor self, Tensor other) -> Tensor", POINTWISE)
op("lcm(Tensor self, Tensor other) -> Tensor", POINTWISE)
op("hypot(Tensor self, Tensor other) -> Tensor", POINTWISE,
   {"self": "grad * (self / result)", "other": "grad * (other / result)"})  # fmt: skip

# ---- powers

op("pow.Tensor_Tensor(Tensor self, Tensor exponent) -> Tensor", POINTWISE,
   {"self": "power_grad(grad, self, exponent)",
    "exponent": "exponent_grad(grad, self, exponent, result)"})  # fmt: skip
op("pow.Tensor_Scalar(Tensor self, Scalar exponent) -> Tensor", POINTWISE,
   {"self": "power_grad(grad, self, exponent)"})  # fmt: skip
op("pow.Scalar(Scalar self, Tensor exponent) -> Tensor", pointwise(among=("self", "exponent")),
   {"exponent": "exponent_grad(grad, self, exponent, result)"})  # fmt: skip

# ---- unary ops that turn integers into floats

for _name, _line in {
    "exp": "grad * conj(result)",
    "exp2": "grad * conj(result) * 0.6931471805599453",
    "expm1": "grad * conj(result + 1)",
    "log": "grad / conj(self)",
    "log2": "grad / (conj(self) * 0.6931471805599453)",
    "log10": "grad / (conj(self) * 2.302585092994046)",
    "log1p": "grad / conj(self + 1)",
    "sqrt": "grad / (2 * conj(result))",
    "rsqrt": "-0.5 * grad * conj(result * result * result)",
    "reciprocal": "-grad * conj(result * result)",
    "sin": "grad * conj(cos(self))",
    "cos": "-grad * conj(sin(self))",
    "tan": "grad * conj(1 + result * result)",
    "asin": "grad * conj(rsqrt(1 - self * self))",
    "acos": "-grad * conj(rsqrt(1 - self * self))",
    "atan": "grad / conj(self * self + 1)",
    "sinh": "grad * conj(cosh(self))",
    "cosh": "grad * conj(sinh(self))",
    "tanh": "tanh_backward(grad, result)",
    "asinh": "grad * conj(rsqrt(self * self + 1))",
    # Two roots, not the root of a product: only they have acosh's branch cut.
    "acosh": "grad * conj(rsqrt(self - 1) * rsqrt(self + 1))",
    "atanh": "grad / conj(1 - self * self)",
    "sinc": "sinc_grad(grad, self)",
    "deg2rad": "grad * 0.017453292519943295",
    "rad2deg": "grad * 57.29577951308232",
}.items():
    op(f"{_name}(Tensor self) -> Tensor", POINTWISE_FLOAT, {"self": _line})

op("atan2(Tensor self, Tensor other) -> Tensor", POINTWISE_FLOAT,
   {"self": "grad * other / (self * self + other * other)",
    "other": "-grad * self / (self * self + other * other)"})  # fmt: skip
op("logaddexp(Tensor self, Tensor other) -> Tensor", POINTWISE,
   {"self": "grad / conj(1 + exp(other - self))",
    "other": "grad / conj(1 + exp(self - other))"})  # fmt: skip
op("logaddexp2(Tensor self, Tensor other) -> Tensor", POINTWISE,
   {"self": "grad / (1 + exp2(other - self))",
    "other": "grad / (1 + exp2(self - other))"})  # fmt: skip

# ---- rounding and signs

for _name in ("floor", "ceil", "trunc", "round", "sign"):
    op(f"{_name}(Tensor self) -> Tensor", POINTWISE, {"self": "zeros_like(grad)"})
op("round.decimals(Tensor self, *, int decimals) -> Tensor", POINTWISE,
   {"self": "zeros_like(grad)"})  # fmt: skip
op("frac(Tensor self) -> Tensor", POINTWISE, {"self": "grad"})
op("neg(Tensor self) -> Tensor", POINTWISE, {"self": "-grad"})


def _check_positive(self: Any) -> None:
    if self.dtype.kind == "b":
        raise TypeError("booleans have no sign")


op("positive(Tensor(a) self) -> Tensor(a)", checked(like("self"), _check_positive),
   {"self": "grad"})  # fmt: skip
op("square(Tensor self) -> Tensor", POINTWISE, {"self": "2 * grad * conj(self)"})
op("abs(Tensor self) -> Tensor", POINTWISE_REAL, {"self": "grad * sgn(self)"})
op("copysign.Tensor(Tensor self, Tensor other) -> Tensor", POINTWISE_FLOAT,
   {"self": "grad * sign(self) * copysign(sign(self), other)",
    "other": "zeros_like(grad)"})  # fmt: skip
op("copysign.Scalar(Tensor self, Scalar other) -> Tensor", POINTWISE_FLOAT,
   {"self": "grad * sign(self) * copysign(sign(self), other)"})  # fmt: skip
# The next float depends on the dtype, so narrow dtypes are not widened.
op("nextafter(Tensor self, Tensor other) -> Tensor",
   Rule(POINTWISE.infer, "same", widen=False, expects=POINTWISE.expects),
   {"self": "where(self == other, 0, grad)", "other": "zeros_like(grad)"})  # fmt: skip


def _infer_frexp(op: Op, bound: dict[str, Any]) -> tuple[Meta, Meta]:
    of = bound["self"]
    return meta_of(of), Meta(tuple(of.shape), dtypes.DTYPES["int32"])


def _check_frexp(self: Any) -> None:
    if self.dtype.kind in "biuc":
        raise TypeError(f"frexp needs a floating-point dtype, not {self.dtype}")


op("frexp.Tensor(Tensor self) -> (Tensor mantissa, Tensor exponent)",
   rule(_infer_frexp, "floating-point numbers", _check_frexp),
   {"self": "grad / exp2(result1)"})  # fmt: skip
op("nan_to_num(Tensor self, float? nan=None, float? posinf=None, float? neginf=None) -> Tensor",
   like("self"), {"self": "where(isfinite(self), grad, 0)"})  # fmt: skip

# ---- composites


@composite("ldexp.Tensor(Tensor self, Tensor other) -> Tensor")
def ldexp(self: Any, other: Any) -> Any:
    return self * F.pow(2.0, other)


def _widest(value: Any) -> Any:
    """Cast to the widest dtype of its category; a scalar is returned as is."""
    if not hasattr(value, "dtype"):
        return value
    return value.to("complex128" if dtypes.is_complex(value.dtype) else "float64")


@composite("float_power.Tensor_Tensor(Tensor self, Tensor exponent) -> Tensor")
@composite("float_power.Tensor_Scalar(Tensor self, Scalar exponent) -> Tensor")
@composite("float_power.Scalar(Scalar self, Tensor exponent) -> Tensor")
def float_power(self: Any, exponent: Any) -> Any:
    return F.pow(_widest(self), _widest(exponent))
