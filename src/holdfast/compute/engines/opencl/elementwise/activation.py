"""Expressions of activations and their gradients, with the NumPy engine's argument errors."""

from __future__ import annotations

from typing import Any

import numpy

from holdfast.compute.engines.opencl.elementwise.expressions import Text, add

_INSIDE = "(($self > {0}) & ($self < {1})) ? {2} : K(0.0)"


def _floats(**texts: str) -> dict[str, Text]:
    return {name: {"f": text} for name, text in texts.items()}


# ---- piecewise linear


def _leaky_backward(bound: dict[str, Any], kind: numpy.dtype[Any]) -> str | None:
    if bound["self_is_result"] and bound["negative_slope"] < 0:
        raise ValueError("in place, a negative slope hides which elements were negative")
    return "$self > K(0.0) ? $grad_output : $grad_output * $negative_slope"


def _softshrink(bound: dict[str, Any], kind: numpy.dtype[Any]) -> str | None:
    if bound["lambd"] < 0:
        raise ValueError(f"lambd cannot be below 0, as {bound['lambd']} is")
    return None if kind.kind in "biu" else "$self - f_minimum(f_maximum($self, -$lambd), $lambd)"


_SHRUNK = "(($self >= -$lambd) & ($self <= $lambd)) ? K(0.0) : {0}"
_NUMBERS: dict[str, str] = {
    "relu": "$self < K(0) ? K(0) : $self",
    "threshold": "$self <= $threshold ? (T)$value : $self",
    "threshold_backward": "$self <= $threshold ? K(0) : $grad_output",
    "hardtanh": "f_minimum(f_maximum($self, (T)$min_val), (T)$max_val)",
}
# K(0) is not a float constant: "0f" is no number in C.
add(
    {
        name: {"f": text.replace("K(0)", "K(0.0)"), "i": text, "b": "$self"}
        if name == "relu"
        else {"f": text.replace("K(0)", "K(0.0)"), "i": text}
        for name, text in _NUMBERS.items()
    }
)
add(
    _floats(
        leaky_relu="$self > K(0.0) ? $self : $self * $negative_slope",
        hardtanh_backward=_INSIDE.format("$min_val", "$max_val", "$grad_output"),
        hardsigmoid="f_ramp($self)",
        hardsigmoid_backward=_INSIDE.format("-K(3.0)", "K(3.0)", "$grad_output / K(6.0)"),
        hardswish="f_ramp($self) * $self",
        hardswish_backward="$self < K(3.0) ? ($self > -K(3.0) ? $grad_output * ($self / K(3.0)"
        " + K(0.5)) : K(0.0)) : $grad_output",
        hardshrink=_SHRUNK.format("$self"),
        hardshrink_backward=_SHRUNK.format("$grad_out"),
        softshrink_backward=_SHRUNK.format("$grad_output"),
        _prelu_kernel="$self > K(0.0) ? $self : $self * $weight",
    )
)
add({"leaky_relu_backward": _leaky_backward, "softshrink": _softshrink}, fixed=True)

# ---- sigmoid, tanh and derived functions


def _gelu(exact: str, tanh: str) -> Text:
    def text(bound: dict[str, Any], kind: numpy.dtype[Any]) -> str | None:
        named = bound["approximate"]
        if named not in ("none", "tanh"):
            raise ValueError(f"approximate {named!r} is neither 'none' nor 'tanh'")
        return None if kind.kind in "biu" else exact if named == "none" else tanh

    return text


_SLOPE = "f_sigmoid($self) * (K(1.0) + $self * (K(1.0) - f_sigmoid($self)))"
add({"sigmoid": "f_sigmoid($self)"})
add(
    _floats(
        sigmoid_backward="$grad_output * ($output * (K(1.0) - $output))",
        tanh_backward="$grad_output * (K(1.0) - $output * $output)",
        silu="$self / (K(1.0) + exp(-$self))",
        silu_backward=f"$grad_output * {_SLOPE}",
        mish="$self * f_mish($self)",
        mish_backward="$grad_output * f_mish_slope($self)",
        log_sigmoid_backward="$grad_output / (K(1.0) + exp($self))",
    )
)
add(
    {
        "gelu": _gelu("$self * f_gauss($self)", "f_gelu_tanh($self)"),
        "gelu_backward": _gelu(
            "$grad_output * f_gelu_slope($self)", "$grad_output * f_gelu_tanh_slope($self)"
        ),
    }
)

# ---- one-sided exponentials


def _elu_backward(bound: dict[str, Any], kind: numpy.dtype[Any]) -> str | None:
    if bound["is_result"] and bound["alpha"] < 0:
        raise ValueError("in place, a negative alpha hides which elements were negative")
    if kind.kind in "biu":
        return None
    slope = (
        "($self_or_result + $alpha * $scale) * $input_scale"
        if bound["is_result"]
        else "$input_scale * $alpha * $scale * exp($self_or_result * $input_scale)"
    )
    return f"$self_or_result <= K(0.0) ? $grad_output * ({slope}) : $grad_output * $scale"


add(
    _floats(
        elu="$self <= K(0.0) ? $alpha * $scale * expm1($self * $input_scale) : $self * $scale",
        softplus="$self * $beta > $threshold ? $self : f_soft($self * $beta) / $beta",
        softplus_backward="$self * $beta > $threshold ? $grad_output"
        " : $grad_output * f_sigmoid($self * $beta)",
    )
)
add({"elu_backward": _elu_backward}, fixed=True)
