"""Expressions of arithmetic: sums, products, powers, roots, trigonometry, rounding and signs.

Integers wrap around as in C. Integer division by a tensor that contains a zero gives 0 there: to
raise, as the host does, the call would have to wait for the device.
"""

from __future__ import annotations

from typing import Any

import numpy

from holdfast.compute import dtype as dtypes
from holdfast.compute.engines.opencl.elementwise.expressions import (
    Text,
    add,
    for_overloads,
    letter_of,
)

# ---- sums and products


def _scaled_text(numbers: str, truths: str | None, scale: str = "alpha") -> Text:
    def text(bound: dict[str, Any], kind: numpy.dtype[Any]) -> str | None:
        by = bound[scale]
        if kind.kind in "biu" and isinstance(by, float | complex):
            raise TypeError(f"integers cannot be scaled by {by!r}")
        if kind.kind == "b" and truths is None:
            raise TypeError("booleans cannot be subtracted; use bitwise_xor or logical_xor")
        return truths if kind.kind == "b" else numbers

    return text


def _no_bool(text: dict[str, str]) -> Text:
    def check(bound: dict[str, Any], kind: numpy.dtype[Any]) -> str:
        if kind.kind == "b":
            raise TypeError("booleans have no sign; use logical_not")
        return text[letter_of(kind)]

    return check


add(
    {
        **for_overloads(
            "add",
            "Tensor Scalar",
            _scaled_text("$self + $alpha * $other", "$self | ($other & ($alpha != 0))"),
        ),
        **for_overloads("sub", "Tensor Scalar", _scaled_text("$self - $alpha * $other", None)),
        **for_overloads("rsub", "Tensor Scalar", _scaled_text("$other - $alpha * $self", None)),
        **for_overloads("mul", "Tensor Scalar", "$self * $other"),
        **for_overloads("div", "Tensor Scalar", "$self / $other"),
        "addcmul": _scaled_text(
            "$self + $value * ($tensor1 * $tensor2)",
            "$self | ($tensor1 & $tensor2 & ($value != 0))",
            "value",
        ),
        "addcdiv": "$self + $value * ($tensor1 / $tensor2)",
        **for_overloads("lerp", "Scalar Tensor", {"f": "f_lerp($self, $end, $weight)"}),
        "neg": _no_bool({"f": "-$self", "i": "(T)(0 - $self)", "u": "(T)(0 - $self)"}),
        "square": "$self * $self",
        "reciprocal": "K(1.0) / $self",
    }
)

# ---- division with remainder


def _division_text(numbers: str, whole: str | None = None) -> Text:
    def text(bound: dict[str, Any], kind: numpy.dtype[Any]) -> str | None:
        if kind.kind == "b":
            return None
        if kind.kind in "iu":
            other = bound["other"]
            empty = getattr(bound["self"], "size", 1) == 0  # nothing is divided then
            if not hasattr(other, "ndim") and not other and not empty:
                raise ZeroDivisionError("integer division by zero")
            return whole or numbers
        return numbers

    return text


add(
    {
        **for_overloads(
            "floor_divide", "- Scalar", _division_text("f_floor_divide($self, $other)")
        ),
        **for_overloads(
            "remainder", "Tensor Scalar Scalar_Tensor", _division_text("f_remainder($self, $other)")
        ),
        **for_overloads(
            "fmod", "Tensor Scalar", _division_text("fmod($self, $other)", "f_fmod($self, $other)")
        ),
    },
    fixed=True,
)
add({"gcd": {"i": "f_gcd($self, $other)"}, "lcm": {"i": "f_lcm($self, $other)"}})

# ---- powers

# The formulas torch uses for the commonest float exponents.
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
            raise ValueError("integers have no negative powers")
        return "f_power($self, $exponent)"
    return _POWERS.get(exponent) or _any_power(bound, kind)


def _any_power(bound: dict[str, Any], kind: numpy.dtype[Any]) -> str:
    """A power whose exponents are known on the device only; an integer never has a negative one."""
    if kind.kind == "b":
        return "$self | ($exponent == 0)"
    exact = kind.kind in "iu" or kind == dtypes.FLOAT64
    return "f_power($self, $exponent)" if exact else "pow($self, $exponent)"


add({"pow.Tensor_Scalar": _power}, fixed=True)
add(for_overloads("pow", "Tensor_Tensor Scalar", _any_power))

# ---- roots, logarithms, trigonometry

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
        **for_overloads("copysign", "Tensor Scalar", {"f": "copysign($self, $other)"}),
        "nextafter": _next,
        "_conj": "$self",
        "_conj_physical": "$self",
        "angle": {"f": "$self != $self ? $self : ($self < K(0.0) ? K(3.141592653589793) : K(0.0))"},
    }
)
