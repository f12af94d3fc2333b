"""Expressions of special functions that C has, or that are short. Long series run on the host."""

from __future__ import annotations

from typing import Any

import numpy

from holdfast.compute.engines.opencl.elementwise.expressions import add, for_overloads


def _logit(bound: dict[str, Any], kind: numpy.dtype[Any]) -> str:
    if bound["eps"] is None:
        return "log($self / (K(1.0) - $self))"
    inside = "f_minimum(f_maximum($self, $eps), K(1.0) - $eps)"
    return f"log({inside} / (K(1.0) - {inside}))"


def _logit_backward(bound: dict[str, Any], kind: numpy.dtype[Any]) -> str:
    low, high, outside = "K(0.0)", "K(1.0)", "(T)NAN"
    if bound["eps"] is not None:
        low, high, outside = "$eps", "K(1.0) - $eps", "K(0.0)"
    slope = "$grad_output / ($self * (K(1.0) - $self))"
    return f"(($self >= {low}) & ($self <= {high})) ? {slope} : {outside}"


add(
    {
        "erf": "f_erf($self)",
        "erfc": "erfc($self)",
        "lgamma": "lgamma($self)",
        "digamma": "f_digamma($self)",
        "logit": _logit,
        "logit_backward": _logit_backward,
        "special_entr": "$self != $self ? $self : ($self > K(0.0) ? -$self * log($self)"
        " : ($self == K(0.0) ? K(0.0) : -(T)INFINITY))",
        "special_spherical_bessel_j0": "$x == K(0.0) ? K(1.0)"
        " : (fabs($x) == (T)INFINITY ? K(0.0) : f_sin($x) / $x)",
        **for_overloads(
            "xlogy", "Tensor Scalar_Self Scalar_Other", "f_xlogy($self, $other, log($other))"
        ),
        **for_overloads(
            "special_xlog1py", "- self_scalar other_scalar", "f_xlogy($self, $other, log1p($other))"
        ),
    }
)
