"""Expressions that calculate: sums, products, powers, roots, angles, rounding, signs.

Covers: arithmetic of one, two and three operands, formats that meet.
Leaves to others: division that rounds as it is told (`pointwise`), special functions (`special`).
Promise: whole numbers wrap around as in C. A division of whole numbers by a tensor with a zero in
it gives 0 there: to refuse it, as the host does, the device would have to be waited for.
"""

from __future__ import annotations

from typing import Any

import numpy

from holdfast.compute import dtype as formats
from holdfast.compute.engines.opencl.expressions import Text, add, each, letter_of

# ---- sums and products


def _scaled(numbers: str, truths: str | None, scale: str = "alpha") -> Text:
    def text(bound: dict[str, Any], kind: numpy.dtype[Any]) -> str | None:
        by = bound[scale]
        if kind.kind in "biu" and isinstance(by, float | complex):
            raise TypeError(f"whole numbers cannot be scaled by {by!r}")
        if kind.kind == "b" and truths is None:
            raise TypeError("truth values cannot be subtracted: bitwise_xor or logical_xor can")
        return truths if kind.kind == "b" else numbers

    return text


def _no_whole(text: str) -> Text:
    def checked(bound: dict[str, Any], kind: numpy.dtype[Any]) -> str:
        if kind.kind in "biu":
            raise TypeError(
                "whole numbers cannot be divided here; add(self, div(…)) says how to round"
            )
        return text

    return checked


def _signed(text: dict[str, str]) -> Text:
    def checked(bound: dict[str, Any], kind: numpy.dtype[Any]) -> str:
        if kind.kind == "b":
            raise TypeError("truth values have no sign: logical_not changes them")
        return text[letter_of(kind)]

    return checked


add(
    {
        **each(
            "add",
            "Tensor Scalar",
            _scaled("$self + $alpha * $other", "$self | ($other & ($alpha != 0))"),
        ),
        **each("sub", "Tensor Scalar", _scaled("$self - $alpha * $other", None)),
        **each("rsub", "Tensor Scalar", _scaled("$other - $alpha * $self", None)),
        **each("mul", "Tensor Scalar", "$self * $other"),
        **each("div", "Tensor Scalar", "$self / $other"),
        "addcmul": _scaled(
            "$self + $value * ($tensor1 * $tensor2)",
            "$self | ($tensor1 & $tensor2 & ($value != 0))",
            "value",
        ),
        "addcdiv": _no_whole("$self + $value * ($tensor1 / $tensor2)"),
        **each("lerp", "Scalar Tensor", {"f": "f_lerp($self, $end, $weight)"}),
        "neg": _signed({"f": "-$self", "i": "(T)(0 - $self)", "u": "(T)(0 - $self)"}),
        "square": "$self * $self",
        "reciprocal": "K(1.0) / $self",
    }
)

# ---- divisions with a rest


def _apart(numbers: str, whole: str) -> Text:
    def text(bound: dict[str, Any], kind: numpy.dtype[Any]) -> str | None:
        if kind.kind == "b":
            return None
        if kind.kind in "iu":
            other = bound["other"]
            empty = getattr(bound["self"], "size", 1) == 0  # nothing is divided then
            if not hasattr(other, "ndim") and not other and not empty:
                raise ZeroDivisionError("division of whole numbers by zero")
            return whole
        return numbers

    return text


add(
    {
        **each(
            "floor_divide",
            "- Scalar",
            _apart("f_floor_divide($self, $other)", "f_floor_divide($self, $other)"),
        ),
        **each(
            "remainder",
            "Tensor Scalar Scalar_Tensor",
            _apart("f_remainder($self, $other)", "f_remainder($self, $other)"),
        ),
        **each("fmod", "Tensor Scalar", _apart("fmod($self, $other)", "f_fmod($self, $other)")),
    },
    fixed=True,
)
add(
    {
        "gcd": {"i": "f_gcd($self, $other)"},
        "lcm": {"i": "f_lcm($self, $other)"},
    }
)

# ---- powers

# What torch writes for the commonest exponents of floats.
_POWERS = {
    1.0: "$self",
    2.0: "$self * $self",
    3.0: "$self * $self * $self",
    0.5: "sqrt($self)",
    -0.5: "K(1.0) / sqrt($self)",
    -1.0: "K(1.0) / $self",
    -2.0: "K(1.0) / ($self * $self)",
}


def _power(bound: dict[str, Any], kind: numpy.dtype[Any]) -> str | None:
    exponent = bound["exponent"]
    if kind.kind == "b":
        return "$self | ($exponent == 0)"
    if kind.kind in "iu":
        if exponent < 0:
            raise ValueError("whole numbers have no negative powers")
        return "f_power($self, $exponent)"
    return _POWERS.get(exponent) or _any_power(bound, kind)


def _any_power(bound: dict[str, Any], kind: numpy.dtype[Any]) -> str:
    """A power that may be any number; of whole numbers none of them is below 0."""
    if kind.kind == "b":
        return "$self | ($exponent == 0)"
    exact = kind.kind in "iu" or kind == formats.FLOAT64
    return "f_power($self, $exponent)" if exact else "pow($self, $exponent)"


add({"pow.Tensor_Scalar": _power}, fixed=True)
add(each("pow", "Tensor_Tensor Scalar", _any_power))

# ---- roots, logarithms, angles

for _name in (
    *("exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sqrt"),
    *("asin", "acos", "atan", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh"),
):
    add({_name: f"{_name}($self)"})
add(
    {
        "sin": "f_sin($self)",
        "cos": "f_cos($self)",
        "tan": "f_tan($self)",
        "rsqrt": "K(1.0) / sqrt($self)",
        "sinc": "f_sinc($self)",
        "deg2rad": "$self * K(0.017453292519943295)",
        "rad2deg": "$self * K(57.29577951308232)",
        "atan2": "atan2($self, $other)",
        "hypot": {"f": "hypot($self, $other)"},
        "logaddexp": {"f": "f_logaddexp($self, $other)"},
        "logaddexp2": {"f": "f_logaddexp2($self, $other)"},
    }
)

# ---- rounding and signs


def _decimals(bound: dict[str, Any], kind: numpy.dtype[Any]) -> str | None:
    places = bound["decimals"]
    if kind.kind in "biu":
        return "$self" if places >= 0 and kind.kind != "b" else None
    scale = f"K({10.0 ** abs(places)!r})"
    one, other = ("*", "/") if places >= 0 else ("/", "*")
    return f"rint($self {one} {scale}) {other} {scale}"


def _next(bound: dict[str, Any], kind: numpy.dtype[Any]) -> str | None:
    return "nextafter($self, $other)" if kind.name in ("float32", "float64") else None


_SIGN: dict[str, str] = {
    "f": "f_sign($self)",
    "i": "($self > 0) - ($self < 0)",
    "u": "$self != 0",
    "b": "$self",
}
for _name, _function in {
    "floor": "floor",
    "ceil": "ceil",
    "trunc": "trunc",
    "round": "rint",
}.items():
    add({_name: {"f": f"{_function}($self)", "i": "$self", "b": "$self"}})
add({"round.decimals": _decimals}, fixed=True)
add(
    {
        "frac": {"f": "$self - trunc($self)"},
        "sign": _SIGN,
        "sgn": _SIGN,
        "abs": {"f": "fabs($self)", "i": "f_size($self)", "u": "$self", "b": "$self"},
        **each("copysign", "Tensor Scalar", {"f": "copysign($self, $other)"}),
        "nextafter": _next,
        "_conj": "$self",
        "_conj_physical": "$self",
        "angle": {"f": "$self != $self ? $self : ($self < K(0.0) ? K(3.141592653589793) : K(0.0))"},
    }
)
