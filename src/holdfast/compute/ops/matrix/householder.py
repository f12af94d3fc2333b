"""Products of Householder reflections, one by one, so that their gradient follows from the tape.

Engines use their own kernels if no gradient is needed.
"""

from __future__ import annotations

from typing import Any

from holdfast.compute import functional as F
from holdfast.compute.ops.elementwise.complex_numbers import conjugate


def _adjoint(matrix: Any) -> Any:
    return conjugate(F.transpose(matrix, -2, -1))


def _reflected(out: Any, vectors: Any, tau: Any, order: Any) -> Any:
    """(1 - tau v v^H) from the left, for every column v in that order."""
    for place in order:
        v = F.narrow(vectors, -1, place, 1)
        scale = F.unsqueeze(F.narrow(tau, -1, place, 1), -1)
        out = out - F.matmul(scale * v, F.matmul(_adjoint(v), out))
    return out


def _vectors(of: Any) -> Any:
    """The vectors below LAPACK's diagonal, with the implicit ones on it."""
    return F.tril(of, -1) + _identity(of)


def _identity(of: Any) -> Any:
    return F.tril(F.triu(F.ones_like(of)))


def householder_product(input: Any, tau: Any) -> Any:
    """The first columns of the product of all reflections."""
    start = _identity(input)
    if not tau.shape[-1]:
        return start + input * 0  # a result of its arguments, though it is the same for all
    return _reflected(start, _vectors(input), tau, reversed(range(tau.shape[-1])))


def ormqr(self: Any, input2: Any, input3: Any, left: bool = True, transpose: bool = False) -> Any:
    """Multiply a matrix by the product of all reflections, or its adjoint, from either side."""
    # From the right, C Q is the adjoint of Q^H C^H.
    side = input3 if left else _adjoint(input3)
    back = transpose == left
    count = input2.shape[-1]
    order = range(count) if back else reversed(range(count))
    start = side if count else F.clone(side)  # a result is never an argument itself
    found = _reflected(start, _vectors(self), conjugate(input2) if back else input2, order)
    return found if left else _adjoint(found)
