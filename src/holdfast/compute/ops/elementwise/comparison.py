"""Elementwise ops that compare or choose: comparisons, logic, bits, `where`, clamp."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from holdfast.compute import functional as F
from holdfast.compute.ops.rules import POINTWISE, POINTWISE_BOOL, Rule
from holdfast.compute.ops.table import composite, op

for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    op(f"{_name}.Tensor(Tensor self, Tensor other) -> Tensor", POINTWISE_BOOL)
    op(f"{_name}.Scalar(Tensor self, Scalar other) -> Tensor", POINTWISE_BOOL)
for _name in ("logical_and", "logical_or", "logical_xor"):
    op(f"{_name}(Tensor self, Tensor other) -> Tensor", POINTWISE_BOOL)
_TESTS = ("isnan", "isinf", "isfinite", "isposinf", "isneginf", "isreal", "signbit")
for _name in ("logical_not", *_TESTS):
    op(f"{_name}(Tensor self) -> Tensor", POINTWISE_BOOL)

# ---- bits

_BITS = replace(POINTWISE, expects="integers or booleans, in shapes that broadcast with each other")
op("bitwise_not(Tensor self) -> Tensor", _BITS)
for _name in ("bitwise_and", "bitwise_or", "bitwise_xor"):
    op(f"{_name}.Tensor(Tensor self, Tensor other) -> Tensor", _BITS)
    op(f"{_name}.Scalar(Tensor self, Scalar other) -> Tensor", _BITS)
    op(f"{_name}.Scalar_Tensor(Scalar self, Tensor other) -> Tensor",
       replace(_BITS, among=("self", "other")))  # fmt: skip
for _name in ("bitwise_left_shift", "bitwise_right_shift"):
    op(f"{_name}.Tensor(Tensor self, Tensor other) -> Tensor", _BITS)
    op(f"{_name}.Tensor_Scalar(Tensor self, Scalar other) -> Tensor", _BITS)
    op(f"{_name}.Scalar_Tensor(Scalar self, Tensor other) -> Tensor",
       replace(_BITS, among=("self", "other")))  # fmt: skip

# ---- choosing

op("where.self(Tensor condition, Tensor self, Tensor other) -> Tensor",
   Rule(POINTWISE.infer, "same", ("self", "other"), False, POINTWISE.expects),
   {"self": "where(condition, grad, 0)", "other": "where(condition, 0, grad)"})  # fmt: skip
op("clamp(Tensor self, Scalar? min=None, Scalar? max=None) -> Tensor", POINTWISE,
   {"self": "where(unclamped_mask(self, min, max), grad, 0)"})  # fmt: skip
op("clamp.Tensor(Tensor self, Tensor? min=None, Tensor? max=None) -> Tensor", POINTWISE,
   {"self": "where(unclamped_mask(self, min, max), grad, 0)",
    "min": "where(self < min if max is None else (self < min) & (min < max), grad, 0)",
    "max": "where(self > max if min is None else (self > max) | (max < min), grad, 0)"}
   )  # fmt: skip
for _limit, _sign in (("min", ">="), ("max", "<=")):
    op(f"clamp_{_limit}(Tensor self, Scalar {_limit}) -> Tensor", POINTWISE,
       {"self": f"where(self {_sign} {_limit}, grad, 0)"})  # fmt: skip
    op(f"clamp_{_limit}.Tensor(Tensor self, Tensor {_limit}) -> Tensor", POINTWISE,
       {"self": f"where(self {_sign} {_limit}, grad, 0)",
        _limit: f"where(self {_sign} {_limit}, 0, grad)"})  # fmt: skip

# Equal elements share the gradient; if one is NaN, both get all of it.
for _name, _loses, _beats in (("maximum", "<", ">"), ("minimum", ">", "<")):
    op(f"{_name}(Tensor self, Tensor other) -> Tensor", POINTWISE,
       {"self": f"where(self {_loses} other, 0, where(self == other, grad / 2, grad))",
        "other": f"where(self {_beats} other, 0, where(self == other, grad / 2, grad))"}
       )  # fmt: skip
for _name, _wins in (("fmax", ">="), ("fmin", "<=")):
    op(f"{_name}(Tensor self, Tensor other) -> Tensor", POINTWISE,
       {"self": f"where((self {_wins} other) | isnan(other), grad, 0)",
        "other": f"where((self {_wins} other) | isnan(other), 0, grad)"})  # fmt: skip
op("heaviside(Tensor self, Tensor values) -> Tensor", POINTWISE)


@composite(
    "isclose(Tensor self, Tensor other, float rtol=1e-05, float atol=1e-08, "
    "bool equal_nan=False) -> Tensor"
)
def isclose(
    self: Any, other: Any, rtol: float = 1e-05, atol: float = 1e-08, equal_nan: bool = False
) -> Any:
    near = F.abs(self - other) <= atol + F.abs(rtol * other)
    close = (self == other) | (near & F.isfinite(self) & F.isfinite(other))
    return close | (F.isnan(self) & F.isnan(other)) if equal_nan else close
