"""Vector norms over any axes, dist, renorm."""

from __future__ import annotations

import math
from typing import Any

import numpy

from holdfast.compute import dtype as dtypes
from holdfast.compute.engines.numpy.kernels import cast, kernel, widen
from holdfast.compute.engines.numpy.reduce.axes import axes, total


def p_norm(values: Any, p: float, over: tuple[int, ...], keepdim: bool = False) -> Any:
    """The p-norm over axes; the result is real."""
    if p == 0:
        found = numpy.count_nonzero(values, axis=over, keepdims=keepdim) if over else values != 0
        return numpy.asarray(found, values.real.dtype)
    if p == 2:
        return _euclidean_norm(values, over, keepdim)
    size = numpy.abs(values)
    if math.isinf(p):
        ufunc, start = (numpy.maximum, 0) if p > 0 else (numpy.minimum, numpy.inf)
        return ufunc.reduce(size, axis=over, keepdims=keepdim, initial=start)
    if p == 1:
        return total(size, over, keepdim)
    with numpy.errstate(divide="ignore"):
        power = numpy.power(size, size.dtype.type(p))
        return numpy.power(total(power, over, keepdim), size.dtype.type(1 / p))


def _euclidean_norm(values: Any, over: tuple[int, ...], keepdim: bool) -> Any:
    if values.dtype.kind == "f" and not keepdim:
        if len(over) == values.ndim and values.flags.c_contiguous:
            line = values.reshape(-1)
            return numpy.sqrt(numpy.dot(line, line))
        if over == (values.ndim - 1,):
            return numpy.sqrt(numpy.vecdot(values, values))
    if values.dtype.kind == "c":
        square = values.real * values.real + values.imag * values.imag
    else:
        square = numpy.multiply(values, values)
    return numpy.sqrt(total(square, over, keepdim))


@kernel(
    *("linalg_vector_norm", "norm.Scalar", "norm.ScalarOpt_dim", "norm.ScalarOpt_dim_dtype"),
    "norm.ScalarOpt_dtype",
)
def norm(
    self: Any, p: Any = 2, dim: Any = None, keepdim: bool = False, *, dtype: Any = None
) -> Any:
    kind = dtypes.dtype_or(dtype, self.dtype)
    order = 2.0 if p is None else float(p)
    found = p_norm(widen(cast(self, kind)), order, axes(dim, self), keepdim)
    return cast(found, dtypes.real_of(kind))


@kernel("dist")
def dist(self: Any, other: Any, p: Any = 2) -> Any:
    apart = numpy.asarray(numpy.subtract(widen(self), widen(other)))
    kind = dtypes.real_of(dtypes.result_type(self, other))
    return cast(p_norm(apart, float(p), axes(None, apart)), kind)


@kernel("renorm")
def renorm(self: Any, p: Any, dim: int, maxnorm: Any) -> Any:
    axis, values = axes([dim], self)[0], widen(self)
    sizes = p_norm(values, float(p), tuple(d for d in range(self.ndim) if d != axis), True)
    limit = sizes.dtype.type(maxnorm)
    factor = numpy.where(sizes > limit, limit / (sizes + sizes.dtype.type(1e-7)), 1)
    return cast(values * factor.astype(sizes.dtype), self.dtype)
