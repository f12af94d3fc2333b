"""Special functions, from SciPy, which computes float32 in float64."""

from __future__ import annotations

import functools
from typing import Any

import numpy

from holdfast.compute.engines.numpy import scipy
from holdfast.compute.engines.numpy.elementwise import blocked
from holdfast.compute.engines.numpy.elementwise.blocked import block_kernel
from holdfast.compute.engines.numpy.kernels import kernel, register


def _special() -> Any:
    return scipy.submodule("special")


def _from_scipy(name: str, theirs: str) -> None:
    def compute(*args: Any) -> Any:
        return getattr(_special(), theirs)(*args)

    register(name, compute)


for _name in ("erfcx", "ndtri", "log_ndtr", "entr", "i0e", "i1", "i1e", "zeta"):
    _from_scipy(f"special_{_name}", _name)
for _name, _theirs in {
    "erfc": "erfc",
    "igamma": "gammainc",
    "igammac": "gammaincc",
    "special_zeta.self_scalar": "zeta",
    "special_zeta.other_scalar": "zeta",
    "i0": "i0",
    **{f"special_bessel_{one}": one for one in ("j0", "j1", "y0", "y1")},
    **{f"special_modified_bessel_{one}": one for one in ("i0", "i1", "k0", "k1")},
    **{f"special_scaled_modified_bessel_{one}": f"{one}e" for one in ("k0", "k1")},
}.items():
    _from_scipy(_name, _theirs)


erf = block_kernel("erf")(blocked.erf)


@kernel("erfinv")
def erfinv(self: Any) -> Any:
    # SciPy takes a hundred times as long for elements outside [-1, 1], which give NaN.
    inside = numpy.abs(self) <= 1
    found = _special().erfinv(numpy.where(inside, self, self.dtype.type(0)))
    return numpy.where(inside, found, self.dtype.type(numpy.nan))


@kernel("logit")
def logit(self: Any, eps: float | None = None) -> Any:
    if eps is not None:
        self = numpy.minimum(numpy.maximum(self, eps), 1 - eps)
    return numpy.log(self / (1 - self))


@kernel("logit_backward")
def logit_backward(grad_output: Any, self: Any, eps: float | None = None) -> Any:
    low, high = (0.0, 1.0) if eps is None else (eps, 1 - eps)
    inside = (self >= low) & (self <= high)
    outside = numpy.nan if eps is None else 0.0
    return numpy.where(inside, grad_output / (self * (1 - self)), self.dtype.type(outside))


# ---- gamma and zeta


@kernel("lgamma")
def lgamma(self: Any) -> Any:
    # log|gamma(x)| is infinite at minus infinity too.
    return _special().gammaln(numpy.where(numpy.isneginf(self), -self, self))


@kernel("polygamma")
def polygamma(n: int, self: Any) -> Any:
    if n == 0:
        return digamma(self)
    x = self.astype(numpy.float64, copy=False)
    if n == 1:
        out = _trigamma(x)
    else:
        out = (-1) ** (n + 1) * _special().gamma(n + 1.0) * _special().zeta(n + 1.0, x)
    return out.astype(self.dtype)


@kernel("digamma")
def digamma(self: Any) -> Any:
    """Below 0 by reflection: digamma(1 - x) - digamma(x) = pi / tan(pi x)."""
    x = self.astype(numpy.float64, copy=False)
    left = x < 0
    if not left.any():
        return _special().psi(self)
    right = _special().psi(numpy.where(left, 1 - x, x))
    apart = x - numpy.rint(x)
    slope = numpy.where(apart == 0, numpy.nan, numpy.pi / numpy.tan(numpy.pi * apart))
    return numpy.where(left, right - slope, right).astype(self.dtype)


def _trigamma(x: Any) -> Any:
    """Below 1/2 by reflection: trigamma(x) + trigamma(1 - x) = (pi / sin(pi x))²."""
    left = x < 0.5
    right = _special().zeta(2.0, numpy.where(left, 1 - x, x))
    ratio = numpy.pi / numpy.sin(numpy.pi * x)
    return numpy.where(left, ratio * ratio - right, right)


# ---- logarithms


def _multiply_log(log: Any, self: Any, other: Any) -> Any:
    product = numpy.where(numpy.equal(self, 0), 0, self * log(other))
    return numpy.where(numpy.isnan(other), numpy.nan, product)


for _name in ("Tensor", "Scalar_Self", "Scalar_Other"):
    register(f"xlogy.{_name}", functools.partial(_multiply_log, numpy.log))
for _name in ("", ".self_scalar", ".other_scalar"):
    register(f"special_xlog1py{_name}", functools.partial(_multiply_log, numpy.log1p))


# ---- Airy and spherical Bessel


register("special_airy_ai", lambda x: _special().airy(x)[0])


@kernel("special_spherical_bessel_j0")
def spherical(x: Any) -> Any:
    return numpy.where(numpy.isinf(x), x.dtype.type(0), numpy.sinc(x / numpy.pi))
