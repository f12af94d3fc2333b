"""Expressions of activations and their gradients."""

from __future__ import annotations

from typing import Any

import numpy

from holdfast.compute.engines.opencl.elementwise.expressions import Text, add

_INSIDE = "(($self > {0}) & ($self < {1})) ? {2} : K(0.0)"


def _floats(**texts: str) -> dict[str, Text]:
    return {name: {"f": text} for name, text in texts.items()}


# ---- piecewise linear


_SHRUNK = "(($self >= -$lambd) & ($self <= $lambd)) ? K(0.0) : {0}"
_NUMBERS: dict[str, str] = {
    "relu": "$self < K(0) ? K(0) : $self",
    "threshold": "$self <= $threshold ? (T)$value : $self",
    "threshold_backward": "$self <= $threshold ? K(0) : $grad_output",
    "hardtanh": "f_minimum(f_maximum($self, (T)$min_val), (T)$max_val)",
}
# K(0) is not a float constant: "0f" is no number in C.
for _name, _text in _NUMBERS.items():
    _bool = {"b": "$self"} if _name == "relu" else {}
    add({_name: {"f": _text.replace("K(0)", "K(0.0)"), "i": _text, **_bool}})
add(
    _floats(
        leaky_relu="$self > K(0.0) ? $self : $self * $negative_slope",
        hardtanh_backward=_INSIDE.format("$min_val", "$max_val", "$grad_output"),
        hardsigmoid="f_ramp($self)",
        hardsigmoid_backward=_INSIDE.format("-K(3.0)", "K(3.0)", "$grad_output / K(6.0)"),
        hardswish="f_ramp($self) * $self",
        hardswish_backward="$self < K(3.0) ? ($self > -K(3.0) ? $grad_output * ($self / K(3.0)"
        " + K(0.5)) : K(0.0)) : $grad_output",
        leaky_relu_backward="$self > K(0.0) ? $grad_output : $grad_output * $negative_slope",
        hardshrink=_SHRUNK.format("$self"),
        softshrink="$self - f_minimum(f_maximum($self, -$lambd), $lambd)",
        hardshrink_backward=_SHRUNK.format("$grad_out"),
        softshrink_backward=_SHRUNK.format("$grad_output"),
        _prelu_kernel="$self > K(0.0) ? $self : $self * $weight",
    )
)

# ---- sigmoid, tanh and derived functions


def _gelu(exact: str, tanh: str) -> Text:
    def text(bound: dict[str, Any], kind: numpy.dtype[Any]) -> str | None:
        text = exact if bound["approximate"] == "none" else tanh
        return None if kind.kind in "biu" else text

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
add({"elu_backward": _elu_backward})
