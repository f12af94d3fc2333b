"""Orthogonal polynomials by their recurrences, computed in float64.

A negative degree gives 0; a fractional one is truncated.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy

from holdfast.compute.engines.numpy.kernels import register

# (k, x, p[k], p[k - 1]) -> p[k + 1]
Step = Callable[[int, Any, Any, Any], Any]


_STEPS: dict[str, Step] = {
    "chebyshev": lambda k, x, now, before: 2 * x * now - before,
    "hermite": lambda k, x, now, before: 2 * (x * now - k * before),
    "hermite_e": lambda k, x, now, before: x * now - k * before,
    "laguerre": lambda k, x, now, before: ((2 * k + 1 - x) * now - k * before) / (k + 1),
    "legendre": lambda k, x, now, before: ((2 * k + 1) * x * now - k * before) / (k + 1),
}


def _polynomial(name: str, first: Callable[[Any], Any], step: Step, shifted: bool = False) -> None:
    """Register a polynomial whose degree 0 is 1 and whose degree 1 is `first`."""

    def compute(x: Any, n: Any) -> Any:
        degrees = numpy.trunc(numpy.asarray(n, numpy.float64))
        at = numpy.asarray(x, numpy.float64)
        at, degrees = numpy.broadcast_arrays(2 * at - 1 if shifted else at, degrees)
        before, now = numpy.ones(at.shape), numpy.asarray(first(at), numpy.float64)
        out = numpy.where(degrees == 0, before, 0.0)
        highest = int(degrees.max(initial=0))
        for k in range(1, highest + 1):
            out = numpy.where(degrees == k, now, out)
            before, now = now, step(k, at, now, before)
        return out.astype(x.dtype if hasattr(x, "ndim") else n.dtype)

    for overload in ("", ".x_scalar", ".n_scalar"):
        register(f"special_{name}{overload}", compute)


for _prefix, _shifted in (("", False), ("shifted_", True)):
    for _kind, _first in {
        "t": lambda x: x,
        "u": lambda x: 2 * x,
        "v": lambda x: 2 * x - 1,
        "w": lambda x: 2 * x + 1,
    }.items():
        _polynomial(f"{_prefix}chebyshev_polynomial_{_kind}", _first, _STEPS["chebyshev"], _shifted)
_polynomial("hermite_polynomial_h", lambda x: 2 * x, _STEPS["hermite"])
_polynomial("hermite_polynomial_he", lambda x: x, _STEPS["hermite_e"])
_polynomial("laguerre_polynomial_l", lambda x: 1 - x, _STEPS["laguerre"])
_polynomial("legendre_polynomial_p", lambda x: x, _STEPS["legendre"])
