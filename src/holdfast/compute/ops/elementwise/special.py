"""Special functions: error functions, gamma, zeta, Bessel, xlogy, orthogonal polynomials.

A function without a gradient has none in torch either.
"""

from __future__ import annotations

import math
from typing import Any

from holdfast.compute import functional as F
from holdfast.compute.ops.rules import POINTWISE_FLOAT, checked, pointwise
from holdfast.compute.ops.table import composite, op

for _name, _line in {
    "erf": "grad * exp(-(self * self)) * 1.1283791670955126",
    "erfc": "grad * exp(-(self * self)) * -1.1283791670955126",
    "erfinv": "grad * exp(result * result) * 0.8862269254527579",
    "special_erfcx": "grad * (2 * self * result - 1.1283791670955126)",
    "special_ndtri": "grad * exp(result * result / 2) * 2.5066282746310002",
    # The density over the distribution, without their vanishing exponentials.
    "special_log_ndtr": "grad / special_erfcx(self * -0.7071067811865476) * 0.7978845608028654",
    "lgamma": "grad * digamma(self)",
    "digamma": "grad * polygamma(1, self)",
    "i0": "grad * special_i1(self)",
    "special_i0e": "grad * (special_i1e(self) - sgn(self) * result)",
    "special_i1": "grad * where(self == 0, 0.5, i0(self) - result / self)",
    "special_i1e": "grad * where(self == 0, 0.5, "
    "special_i0e(self) - result * (sgn(self) + reciprocal(self)))",
    "special_entr": "grad * (-log(self) - 1)",
}.items():
    op(f"{_name}(Tensor self) -> Tensor", POINTWISE_FLOAT, {"self": _line})

op("logit(Tensor self, float? eps=None) -> Tensor", POINTWISE_FLOAT,
   {"self": "logit_backward(grad, self, eps)"})  # fmt: skip
op("logit_backward(Tensor grad_output, Tensor self, float? eps=None) -> Tensor", POINTWISE_FLOAT,
   {"grad_output": "logit_backward(grad, self, eps)",
    "self": "logit_double_backward(grad, grad_output, self, eps)"})  # fmt: skip


def _check_polygamma(n: int, self: Any) -> None:
    if n < 0:
        raise ValueError(f"the order of polygamma must be 0 or more, not {n}")


op("polygamma(int n, Tensor self) -> Tensor", checked(POINTWISE_FLOAT, _check_polygamma),
   {"self": "grad * polygamma(n + 1, self)"})  # fmt: skip

# ---- binary

_DENSITY = "exp((self - 1) * log(other) - other - lgamma(self))"
op("igamma(Tensor self, Tensor other) -> Tensor", POINTWISE_FLOAT,
   {"other": f"grad * {_DENSITY}"})  # fmt: skip
op("igammac(Tensor self, Tensor other) -> Tensor", POINTWISE_FLOAT,
   {"other": f"-grad * {_DENSITY}"})  # fmt: skip

_PAIR = pointwise("float", among=("self", "other"))
_LOG = {
    "self": "where((self == 0) & (other <= 0), 0, grad * log(other))",
    "other": "grad * self / other",
}
_LOG1P = {
    "self": "where((self == 0) & (other <= -1), 0, grad * log1p(other))",
    "other": "grad * self / (other + 1)",
}
_ZETA = {"other": "-grad * self * special_zeta(self + 1, other)"}
op("xlogy.Tensor(Tensor self, Tensor other) -> Tensor", _PAIR, _LOG)
op("xlogy.Scalar_Self(Scalar self, Tensor other) -> Tensor", _PAIR, {"other": _LOG["other"]})
op("xlogy.Scalar_Other(Tensor self, Scalar other) -> Tensor", _PAIR,
   {"self": "grad * log_of(other) if other > 0 else where(self == 0, 0, grad * log_of(other))"}
   )  # fmt: skip
op("special_xlog1py(Tensor self, Tensor other) -> Tensor", _PAIR, _LOG1P)
op("special_xlog1py.self_scalar(Scalar self, Tensor other) -> Tensor", _PAIR,
   {"other": _LOG1P["other"]})  # fmt: skip
op("special_xlog1py.other_scalar(Tensor self, Scalar other) -> Tensor", _PAIR,
   {"self": "grad * log_of(1 + other) if other > -1 else "
            "where(self == 0, 0, grad * log_of(1 + other))"})  # fmt: skip
op("special_zeta(Tensor self, Tensor other) -> Tensor", _PAIR, _ZETA)
op("special_zeta.self_scalar(Scalar self, Tensor other) -> Tensor", _PAIR, _ZETA)
op("special_zeta.other_scalar(Tensor self, Scalar other) -> Tensor", _PAIR)

# ---- Bessel and Airy functions

for _name in (
    *("bessel_j0", "bessel_j1", "bessel_y0", "bessel_y1"),
    *("modified_bessel_i0", "modified_bessel_i1", "modified_bessel_k0", "modified_bessel_k1"),
):
    op(f"special_{_name}(Tensor self) -> Tensor", POINTWISE_FLOAT)
for _name in (
    *("airy_ai", "scaled_modified_bessel_k0", "scaled_modified_bessel_k1"),
    "spherical_bessel_j0",
):
    op(f"special_{_name}(Tensor x) -> Tensor", POINTWISE_FLOAT)

# ---- orthogonal polynomials: of x, of degree n

for _name in (
    *("chebyshev_polynomial_t", "chebyshev_polynomial_u", "chebyshev_polynomial_v"),
    *("chebyshev_polynomial_w", "shifted_chebyshev_polynomial_t", "shifted_chebyshev_polynomial_u"),
    *("shifted_chebyshev_polynomial_v", "shifted_chebyshev_polynomial_w", "hermite_polynomial_h"),
    *("hermite_polynomial_he", "laguerre_polynomial_l", "legendre_polynomial_p"),
):
    _POLYNOMIAL = pointwise("float", among=("x", "n"))
    op(f"special_{_name}(Tensor x, Tensor n) -> Tensor", _POLYNOMIAL)
    op(f"special_{_name}.x_scalar(Scalar x, Tensor n) -> Tensor", _POLYNOMIAL)
    op(f"special_{_name}.n_scalar(Tensor x, Scalar n) -> Tensor", _POLYNOMIAL)

# ---- composites


@composite("mvlgamma(Tensor self, int p) -> Tensor")
def mvlgamma(self: Any, p: int) -> Any:
    if p < 1:
        raise ValueError(f"mvlgamma has no order {p}: orders begin with 1")
    added = F.lgamma(self)
    for half in range(1, p):
        added = added + F.lgamma(self - half / 2)
    return added + p * (p - 1) / 4 * math.log(math.pi)


@composite("special_ndtr(Tensor self) -> Tensor")
def ndtr(self: Any) -> Any:
    # Through erfc on the left, where 1 + erf would cancel.
    turned = self * 0.7071067811865476
    right = 0.5 + 0.5 * F.erf(turned)
    return F.where(turned < -1, 0.5 * F.erfc(-turned), right)
