"""Sums, products, minima and maxima, any and all, mean and variance.

NaN propagates as in torch; narrow floats are summed in float32.
"""

from __future__ import annotations

import math
from typing import Any

import numpy

from holdfast.compute import dtype as dtypes
from holdfast.compute.engines.numpy.kernels import cast, kernel, to_floating, widen
from holdfast.compute.engines.numpy.reduce.axes import axes, row_moments, total
from holdfast.compute.ops.rules import normalize_dim

# ---- sums and products


def _to_working(self: Any, kind: Any) -> Any:
    return cast(self, dtypes.working(kind)) if self.dtype != kind else widen(self)


@kernel("sum.dim_IntList")
def sum_dim(self: Any, dim: Any, keepdim: bool = False, *, dtype: Any = None) -> Any:
    kind = dtypes.dtype_or(dtype, dtypes.of_sums(self.dtype))
    if kind.kind in "iub" and self.dtype.kind in "iub":
        made = numpy.add.reduce(self, axis=axes(dim, self), keepdims=keepdim, dtype=kind)
        return cast(made, kind)
    return cast(total(_to_working(self, kind), axes(dim, self), keepdim), kind)


@kernel("sum")
def sum_all(self: Any, *, dtype: Any = None) -> Any:
    return sum_dim(self, None, dtype=dtype)


@kernel("nansum")
def nansum(self: Any, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    if self.dtype.kind == "c":
        raise TypeError("nansum does not take complex numbers")
    if dtypes.category(self.dtype) == dtypes.FLOATING:
        self = numpy.where(numpy.isnan(self), self.dtype.type(0), self)
    return sum_dim(self, dim, keepdim, dtype=dtype)


@kernel("mean.dim")
def mean_dim(self: Any, dim: Any, keepdim: bool = False, *, dtype: Any = None) -> Any:
    kind = dtypes.dtype_or(dtype, self.dtype)
    if dtypes.category(kind) < dtypes.FLOATING:
        raise TypeError(f"the mean of {kind} is not an integer; name a dtype, or cast first")
    over = axes(dim, self)
    count = math.prod(self.shape[axis] for axis in over)
    added = total(_to_working(self, kind), over, keepdim)
    with numpy.errstate(divide="ignore", invalid="ignore"):
        return cast(numpy.divide(added, added.dtype.type(count)), kind)


@kernel("mean")
def mean_all(self: Any, *, dtype: Any = None) -> Any:
    return mean_dim(self, None, dtype=dtype)


def _product(self: Any, over: Any, keepdim: bool, dtype: Any) -> Any:
    kind = dtypes.dtype_or(dtype, dtypes.of_sums(self.dtype))
    if self.dtype.kind == "b" and kind.kind in "iu":
        self = self.astype(kind)
    made = numpy.multiply.reduce(
        _to_working(self, kind), axis=over, keepdims=keepdim, dtype=dtypes.working(kind)
    )
    return cast(made, kind)


@kernel("prod")
def prod_all(self: Any, *, dtype: Any = None) -> Any:
    return _product(self, axes(None, self), False, dtype)


@kernel("prod.dim_int")
def prod_dim(self: Any, dim: int, keepdim: bool = False, *, dtype: Any = None) -> Any:
    return _product(self, axes(dim, self), keepdim, dtype)


# ---- minima and maxima


def refuse_complex(self: Any) -> Any:
    """`widen`; raises TypeError for complex numbers."""
    if self.dtype.kind == "c":
        raise TypeError("complex numbers have no order")
    return widen(self)


def _refuse_empty(self: Any, over: tuple[int, ...]) -> None:
    """Raise IndexError if one of the axes has size 0."""
    if any(self.shape[axis] == 0 for axis in over):
        raise IndexError("an extreme over a dimension of size 0 does not exist")


def _extreme(ufunc: Any, self: Any, dim: Any, keepdim: bool) -> Any:
    over = axes(dim, self)
    _refuse_empty(self, over)
    return cast(ufunc.reduce(refuse_complex(self), axis=over, keepdims=keepdim), self.dtype)


@kernel("amax")
def amax(self: Any, dim: Any = (), keepdim: bool = False) -> Any:
    return _extreme(numpy.maximum, self, dim, keepdim)


@kernel("amin")
def amin(self: Any, dim: Any = (), keepdim: bool = False) -> Any:
    return _extreme(numpy.minimum, self, dim, keepdim)


@kernel("max")
def max_all(self: Any) -> Any:
    return amax(self)


@kernel("min")
def min_all(self: Any) -> Any:
    return amin(self)


@kernel("aminmax")
def aminmax(self: Any, *, dim: Any = None, keepdim: bool = False) -> Any:
    return amin(self, dim, keepdim), amax(self, dim, keepdim)


def _arg_extreme(chooser: Any, self: Any, dim: Any, keepdim: bool) -> Any:
    """The first index of the extreme, or of a NaN."""
    values = refuse_complex(self)
    if dim is None:
        _refuse_empty(self, axes(None, self))
        found = numpy.asarray(chooser(values.reshape(-1)))
        return found.reshape((1,) * self.ndim) if keepdim else found
    if not self.ndim:
        normalize_dim(dim, 0)
        return numpy.zeros((), dtypes.INT64)
    axis = normalize_dim(dim, self.ndim)
    _refuse_empty(self, (axis,))
    return chooser(values, axis=axis, keepdims=keepdim)


@kernel("argmax")
def argmax(self: Any, dim: Any = None, keepdim: bool = False) -> Any:
    return _arg_extreme(numpy.argmax, self, dim, keepdim)


@kernel("argmin")
def argmin(self: Any, dim: Any = None, keepdim: bool = False) -> Any:
    return _arg_extreme(numpy.argmin, self, dim, keepdim)


def _extreme_with_index(chooser: Any, self: Any, dim: int, keepdim: bool) -> Any:
    if not self.ndim:
        return numpy.array(self), _arg_extreme(chooser, self, dim, keepdim)
    axis = normalize_dim(dim, self.ndim)
    indices = _arg_extreme(chooser, self, dim, True)
    values = numpy.take_along_axis(self, indices, axis)
    return (values, indices) if keepdim else (values.squeeze(axis), indices.squeeze(axis))


@kernel("max.dim")
def max_dim(self: Any, dim: int, keepdim: bool = False) -> Any:
    return _extreme_with_index(numpy.argmax, self, dim, keepdim)


@kernel("min.dim")
def min_dim(self: Any, dim: int, keepdim: bool = False) -> Any:
    return _extreme_with_index(numpy.argmin, self, dim, keepdim)


@kernel("value_selecting_reduction_backward")
def value_selecting_reduction_backward(
    grad: Any, dim: int, indices: Any, sizes: Any, keepdim: bool
) -> Any:
    made = numpy.zeros(tuple(sizes), grad.dtype)
    if not made.ndim:
        made[...] = grad.reshape(())
        return made
    axis = normalize_dim(dim, made.ndim)
    if not keepdim:
        grad, indices = numpy.expand_dims(grad, axis), numpy.expand_dims(indices, axis)
    numpy.put_along_axis(made, indices, grad, axis)
    return made


# ---- booleans and counts


def _reduce_bool(ufunc: Any, self: Any, dim: Any, keepdim: bool) -> Any:
    kind = self.dtype if self.dtype == numpy.uint8 else dtypes.BOOL
    return cast(ufunc.reduce(self.astype(bool), axis=axes(dim, self), keepdims=keepdim), kind)


@kernel("all", "all.dim")
def all_of(self: Any, dim: Any = None, keepdim: bool = False) -> Any:
    return _reduce_bool(numpy.logical_and, self, dim, keepdim)


@kernel("any", "any.dim")
def any_of(self: Any, dim: Any = None, keepdim: bool = False) -> Any:
    return _reduce_bool(numpy.logical_or, self, dim, keepdim)


@kernel("all.dims")
def all_dims(self: Any, dim: Any = None, keepdim: bool = False) -> Any:
    return _reduce_dims(all_of, self, dim, keepdim)


@kernel("any.dims")
def any_dims(self: Any, dim: Any = None, keepdim: bool = False) -> Any:
    return _reduce_dims(any_of, self, dim, keepdim)


def _reduce_dims(function: Any, self: Any, dim: Any, keepdim: bool) -> Any:
    """Here an empty list of dimensions means none; elsewhere it means all."""
    if dim is not None and not len(dim):
        return self.astype(bool).astype(self.dtype if self.dtype == numpy.uint8 else bool)
    return function(self, dim, keepdim)


@kernel("count_nonzero", "count_nonzero.dim_IntList")
def count_nonzero(self: Any, dim: Any = None) -> Any:
    over = axes(dim, self)
    if not self.ndim:
        return numpy.asarray(int(bool(self)), dtypes.INT64)
    return numpy.asarray(numpy.count_nonzero(self, axis=over), dtypes.INT64)


@kernel("equal")
def equal(self: Any, other: Any) -> bool:
    return self.shape == other.shape and bool(numpy.equal(self, other).all())


@kernel("hash_tensor")
def hash_tensor(self: Any, dim: Any = (), *, keepdim: bool = False, mode: int = 0) -> Any:
    if mode:
        raise ValueError(f"mode must be 0 (exclusive or), not {mode}")
    wide = numpy.float64 if dtypes.category(self.dtype) == dtypes.FLOATING else numpy.int64
    bits = self.astype(wide).view(numpy.uint64)
    return numpy.bitwise_xor.reduce(bits, axis=axes(dim, self), keepdims=keepdim)


# ---- moments


def _moments(self: Any, dim: Any, correction: Any, keepdim: bool) -> tuple[Any, Any]:
    """The variance and the mean."""
    if dtypes.category(self.dtype) < dtypes.FLOATING:
        raise TypeError(f"a variance of {self.dtype} needs floating-point or complex numbers")
    over = axes(dim, self)
    count = math.prod(self.shape[axis] for axis in over)
    values = widen(self)
    with numpy.errstate(divide="ignore", invalid="ignore"):
        mean, squares = _mean_and_squares(values, over)
        divisor = squares.dtype.type(max(count - (1 if correction is None else correction), 0))
        variance = numpy.divide(squares, divisor)
    if not keepdim:
        variance, mean = (numpy.squeeze(one, over) for one in (variance, mean))
    return variance, mean


def _mean_and_squares(values: Any, over: tuple[int, ...]) -> tuple[Any, Any]:
    """The mean over axes, and the sum of squared distances from it; axes stay with size 1."""
    kept = tuple(1 if axis in over else size for axis, size in enumerate(values.shape))
    lead = values.ndim - len(over)
    trailing = set(over) == set(range(lead, values.ndim))
    if trailing and values.size and values.dtype.kind == "f" and values.flags.c_contiguous:
        mean, squares = row_moments(values.reshape(math.prod(values.shape[:lead]), -1))
        return mean.reshape(kept), squares.reshape(kept)
    count = math.prod(values.shape[axis] for axis in over)
    mean = total(values, over, True) / values.real.dtype.type(count)
    apart = values - mean
    if apart.dtype.kind == "c":
        apart = apart.real**2 + apart.imag**2
    else:
        apart = numpy.multiply(apart, apart)
    return numpy.asarray(mean), total(apart, over, True)


@kernel("var_mean.correction")
def var_mean(self: Any, dim: Any = None, *, correction: Any = None, keepdim: bool = False) -> Any:
    variance, mean = _moments(self, dim, correction, keepdim)
    return cast(variance, dtypes.real_of(self.dtype)), cast(mean, self.dtype)


@kernel("var.correction")
def var(self: Any, dim: Any = None, *, correction: Any = None, keepdim: bool = False) -> Any:
    return var_mean(self, dim, correction=correction, keepdim=keepdim)[0]


@kernel("var.dim")
def var_dim(self: Any, dim: Any = None, unbiased: bool = True, keepdim: bool = False) -> Any:
    return var(self, dim, correction=int(unbiased), keepdim=keepdim)


@kernel("std_mean.correction")
def std_mean(self: Any, dim: Any = None, *, correction: Any = None, keepdim: bool = False) -> Any:
    variance, mean = _moments(self, dim, correction, keepdim)
    return cast(numpy.sqrt(variance), dtypes.real_of(self.dtype)), cast(mean, self.dtype)


@kernel("std.correction")
def std(self: Any, dim: Any = None, *, correction: Any = None, keepdim: bool = False) -> Any:
    return std_mean(self, dim, correction=correction, keepdim=keepdim)[0]


@kernel("logsumexp")
def logsumexp(self: Any, dim: Any, keepdim: bool = False) -> Any:
    over = axes(dim, self)
    values = to_floating(self)
    kind = dtypes.with_fractions(self.dtype)
    real = values.real
    top = numpy.maximum.reduce(real, axis=over, keepdims=True, initial=-numpy.inf)
    top = numpy.where(numpy.isfinite(top), top, real.dtype.type(0))
    apart = numpy.asarray(values - top)
    with numpy.errstate(divide="ignore", over="ignore"):
        found = numpy.log(total(numpy.exp(apart, out=apart), over, True))
    found = numpy.asarray(found + top)
    return cast(found if keepdim else numpy.squeeze(found, over), kind)


@kernel("allclose")
def allclose(
    self: Any, other: Any, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False
) -> bool:
    return bool(numpy.allclose(widen(self), widen(other), rtol, atol, equal_nan))
