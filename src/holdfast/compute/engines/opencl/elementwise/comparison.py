"""Expressions that compare and select, and bitwise ones.

maximum and minimum propagate NaN; fmax and fmin ignore it, as in torch.
"""

from __future__ import annotations

from typing import Any

import numpy

from holdfast.compute.engines.opencl.elementwise.expressions import Text, add, for_overloads

for _name, _sign in {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}.items():
    add(for_overloads(_name, "Tensor Scalar", f"$self {_sign} $other"))
_NEVER = dict.fromkeys("ib", "$self != $self")
add(
    {
        "logical_and": "($self != 0) & ($other != 0)",
        "logical_or": "($self != 0) | ($other != 0)",
        "logical_xor": "($self != 0) != ($other != 0)",
        "logical_not": "$self == 0",
        "isnan": "$self != $self",
        "isinf": {"f": "fabs($self) == (T)INFINITY", **_NEVER},
        "isposinf": {"f": "$self == (T)INFINITY", **_NEVER},
        "isneginf": {"f": "$self == -(T)INFINITY", **_NEVER},
        "isfinite": {"f": "fabs($self) < (T)INFINITY", **dict.fromkeys("ib", "$self == $self")},
        "isreal": "($self == $self) | ($self != $self)",
        "signbit": {
            "f": "signbit($self) != 0",
            "i": "$self < 0",
            "u": "0 & $self",
            "b": "0 & $self",
        },
    }
)

# ---- bits

for _name, _sign in {"and": "&", "or": "|", "xor": "^"}.items():
    _text: Text = dict.fromkeys("ib", f"$self {_sign} $other")
    add(for_overloads(f"bitwise_{_name}", "Tensor Scalar Scalar_Tensor", _text))
_SHIFTS = "Tensor Tensor_Scalar Scalar_Tensor"
add(
    {
        "bitwise_not": {"i": "~$self", "b": "$self == 0"},
        **for_overloads("bitwise_left_shift", _SHIFTS, {"i": "f_left($self, $other)"}),
        **for_overloads("bitwise_right_shift", _SHIFTS, {"i": "f_right($self, $other)"}),
    }
)

# ---- selecting


def _clamp(bound: dict[str, Any], kind: numpy.dtype[Any]) -> str | None:
    low, high = bound["min"], bound["max"]
    if low is None and high is None:
        raise ValueError("neither min nor max is given")
    if kind.kind == "b":
        return None
    found = "$self" if low is None else "f_maximum($self, $min)"
    # If min is above max, the result is max.
    return found if high is None else f"f_minimum({found}, $max)"


def _extreme(function: str, other: str = "other") -> dict[str, str]:
    joined = "|" if function == "f_maximum" else "&"
    number = f"{function}($self, ${other})"
    return {"f": number, "i": number, "b": f"$self {joined} ${other}"}


add(
    {
        "where.self": "$condition != 0 ? $self : $other",
        **for_overloads("clamp", "- Tensor", _clamp),
        **for_overloads("clamp_min", "- Tensor", _extreme("f_maximum", "min")),
        **for_overloads("clamp_max", "- Tensor", _extreme("f_minimum", "max")),
        "maximum": _extreme("f_maximum"),
        "minimum": _extreme("f_minimum"),
        "fmax": {**_extreme("f_maximum"), "f": "fmax($self, $other)"},
        "fmin": {**_extreme("f_minimum"), "f": "fmin($self, $other)"},
        "heaviside": {
            "f": "$self == K(0.0) ? $values : ($self > K(0.0) ? K(1.0) : K(0.0))",
            "i": "$self == 0 ? $values : (T)($self > 0)",
            "b": "$self == 0 ? $values : (T)1",
        },
    }
)
