"""Kernels that reduce: sums, products, extremes, moments, truth values.

Promise: NaN is carried as torch carries it; narrow floats are added in float32.
"""

from __future__ import annotations

import math
from typing import Any

import numpy

from holdfast.compute import dtype as formats
from holdfast.compute.engines.numpy.kernels import cast, floating, kernel, widened
from holdfast.compute.engines.numpy.reducing import axes, row_moments, total
from holdfast.compute.ops.rules import normalized_dim

# ---- sums and products


def _to_add(self: Any, kind: Any) -> Any:
    return cast(self, formats.working(kind)) if self.dtype != kind else widened(self)


@kernel("sum.dim_IntList")
def sum_dim(self: Any, dim: Any, keepdim: bool = False, *, dtype: Any = None) -> Any:
    kind = formats.asked(dtype, formats.of_sums(self.dtype))
    if kind.kind in "iub" and self.dtype.kind in "iub":
        made = numpy.add.reduce(self, axis=axes(dim, self), keepdims=keepdim, dtype=kind)
        return cast(made, kind)
    return cast(total(_to_add(self, kind), axes(dim, self), keepdim), kind)


@kernel("sum")
def sum_all(self: Any, *, dtype: Any = None) -> Any:
    return sum_dim(self, None, dtype=dtype)


@kernel("nansum")
def nansum(self: Any, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    if self.dtype.kind == "c":
        raise TypeError("nansum does not take complex numbers")
    if formats.category(self.dtype) == formats.FLOATING:
        self = numpy.where(numpy.isnan(self), self.dtype.type(0), self)
    return sum_dim(self, dim, keepdim, dtype=dtype)


@kernel("mean.dim")
def mean_dim(self: Any, dim: Any, keepdim: bool = False, *, dtype: Any = None) -> Any:
    kind = formats.asked(dtype, self.dtype)
    if formats.category(kind) < formats.FLOATING:
        raise TypeError(f"the mean of {kind} is not a whole number; name a dtype, or cast first")
    over = axes(dim, self)
    count = math.prod(self.shape[axis] for axis in over)
    added = total(_to_add(self, kind), over, keepdim)
    with numpy.errstate(divide="ignore", invalid="ignore"):
        return cast(numpy.divide(added, added.dtype.type(count)), kind)


@kernel("mean")
def mean_all(self: Any, *, dtype: Any = None) -> Any:
    return mean_dim(self, None, dtype=dtype)


def _multiplied(self: Any, over: Any, keepdim: bool, dtype: Any) -> Any:
    kind = formats.asked(dtype, formats.of_sums(self.dtype))
    if self.dtype.kind == "b" and kind.kind in "iu":
        self = self.astype(kind)
    made = numpy.multiply.reduce(
        _to_add(self, kind), axis=over, keepdims=keepdim, dtype=formats.working(kind)
    )
    return cast(made, kind)


@kernel("prod")
def prod_all(self: Any, *, dtype: Any = None) -> Any:
    return _multiplied(self, axes(None, self), False, dtype)


@kernel("prod.dim_int")
def prod_dim(self: Any, dim: int, keepdim: bool = False, *, dtype: Any = None) -> Any:
    return _multiplied(self, axes(dim, self), keepdim, dtype)


# ---- extremes


def ordered(self: Any) -> Any:
    """`self` as numbers that have an order. Raises TypeError for complex ones."""
    if self.dtype.kind == "c":
        raise TypeError("complex numbers have no order")
    return widened(self)


def _filled(self: Any, over: tuple[int, ...]) -> None:
    """Raise IndexError where there is nothing to choose from."""
    if any(self.shape[axis] == 0 for axis in over):
        raise IndexError("an extreme over a dimension of size 0 does not exist")


def _extreme(ufunc: Any, self: Any, dim: Any, keepdim: bool) -> Any:
    over = axes(dim, self)
    _filled(self, over)
    return cast(ufunc.reduce(ordered(self), axis=over, keepdims=keepdim), self.dtype)


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


def _place(chooser: Any, self: Any, dim: Any, keepdim: bool) -> Any:
    """Where the extreme is: the first place of it, or of a NaN."""
    values = ordered(self)
    if dim is None:
        _filled(self, axes(None, self))
        found = numpy.asarray(chooser(values.reshape(-1)))
        return found.reshape((1,) * self.ndim) if keepdim else found
    if not self.ndim:
        normalized_dim(dim, 0)
        return numpy.zeros((), formats.INT64)
    axis = normalized_dim(dim, self.ndim)
    _filled(self, (axis,))
    return chooser(values, axis=axis, keepdims=keepdim)


@kernel("argmax")
def argmax(self: Any, dim: Any = None, keepdim: bool = False) -> Any:
    return _place(numpy.argmax, self, dim, keepdim)


@kernel("argmin")
def argmin(self: Any, dim: Any = None, keepdim: bool = False) -> Any:
    return _place(numpy.argmin, self, dim, keepdim)


def _with_place(chooser: Any, self: Any, dim: int, keepdim: bool) -> Any:
    if not self.ndim:
        return numpy.array(self), _place(chooser, self, dim, keepdim)
    axis = normalized_dim(dim, self.ndim)
    places = _place(chooser, self, dim, True)
    values = numpy.take_along_axis(self, places, axis)
    return (values, places) if keepdim else (values.squeeze(axis), places.squeeze(axis))


@kernel("max.dim")
def max_dim(self: Any, dim: int, keepdim: bool = False) -> Any:
    return _with_place(numpy.argmax, self, dim, keepdim)


@kernel("min.dim")
def min_dim(self: Any, dim: int, keepdim: bool = False) -> Any:
    return _with_place(numpy.argmin, self, dim, keepdim)


@kernel("value_selecting_reduction_backward")
def value_selecting_reduction_backward(
    grad: Any, dim: int, indices: Any, sizes: Any, keepdim: bool
) -> Any:
    made = numpy.zeros(tuple(sizes), grad.dtype)
    if not made.ndim:
        made[...] = grad.reshape(())
        return made
    axis = normalized_dim(dim, made.ndim)
    if not keepdim:
        grad, indices = numpy.expand_dims(grad, axis), numpy.expand_dims(indices, axis)
    numpy.put_along_axis(made, indices, grad, axis)
    return made


# ---- truth values and counts


def _truth(ufunc: Any, self: Any, dim: Any, keepdim: bool) -> Any:
    kind = self.dtype if self.dtype == numpy.uint8 else formats.BOOL
    return cast(ufunc.reduce(self.astype(bool), axis=axes(dim, self), keepdims=keepdim), kind)


@kernel("all", "all.dim")
def all_of(self: Any, dim: Any = None, keepdim: bool = False) -> Any:
    return _truth(numpy.logical_and, self, dim, keepdim)


@kernel("any", "any.dim")
def any_of(self: Any, dim: Any = None, keepdim: bool = False) -> Any:
    return _truth(numpy.logical_or, self, dim, keepdim)


@kernel("all.dims")
def all_dims(self: Any, dim: Any = None, keepdim: bool = False) -> Any:
    return _over_named(all_of, self, dim, keepdim)


@kernel("any.dims")
def any_dims(self: Any, dim: Any = None, keepdim: bool = False) -> Any:
    return _over_named(any_of, self, dim, keepdim)


def _over_named(function: Any, self: Any, dim: Any, keepdim: bool) -> Any:
    """No dimensions named means none here, where it means all elsewhere."""
    if dim is not None and not len(dim):
        return self.astype(bool).astype(self.dtype if self.dtype == numpy.uint8 else bool)
    return function(self, dim, keepdim)


@kernel("count_nonzero", "count_nonzero.dim_IntList")
def count_nonzero(self: Any, dim: Any = None) -> Any:
    over = axes(dim, self)
    if not self.ndim:
        return numpy.asarray(int(bool(self)), formats.INT64)
    return numpy.asarray(numpy.count_nonzero(self, axis=over), formats.INT64)


@kernel("equal")
def equal(self: Any, other: Any) -> bool:
    return self.shape == other.shape and bool(numpy.equal(self, other).all())


@kernel("hash_tensor")
def hash_tensor(self: Any, dim: Any = (), *, keepdim: bool = False, mode: int = 0) -> Any:
    if mode:
        raise ValueError(f"mode {mode} is unknown; 0 (exclusive or) is the one there is")
    wide = numpy.float64 if formats.category(self.dtype) == formats.FLOATING else numpy.int64
    words = self.astype(wide).view(numpy.uint64)
    return numpy.bitwise_xor.reduce(words, axis=axes(dim, self), keepdims=keepdim)


# ---- moments


def _moments(self: Any, dim: Any, correction: Any, keepdim: bool) -> tuple[Any, Any]:
    """The variance and the mean."""
    if formats.category(self.dtype) < formats.FLOATING:
        raise TypeError(f"a variance of {self.dtype} needs floating-point or complex numbers")
    over = axes(dim, self)
    count = math.prod(self.shape[axis] for axis in over)
    values = widened(self)
    with numpy.errstate(divide="ignore", invalid="ignore"):
        mean, squares = _spread(values, over)
        divisor = squares.dtype.type(max(count - (1 if correction is None else correction), 0))
        variance = numpy.divide(squares, divisor)
    if not keepdim:
        variance, mean = (numpy.squeeze(one, over) for one in (variance, mean))
    return variance, mean


def _spread(values: Any, over: tuple[int, ...]) -> tuple[Any, Any]:
    """The mean over axes, which stay with size 1, and the summed squares of what is left."""
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
    return cast(variance, formats.real_of(self.dtype)), cast(mean, self.dtype)


@kernel("var.correction")
def var(self: Any, dim: Any = None, *, correction: Any = None, keepdim: bool = False) -> Any:
    return var_mean(self, dim, correction=correction, keepdim=keepdim)[0]


@kernel("var.dim")
def var_dim(self: Any, dim: Any = None, unbiased: bool = True, keepdim: bool = False) -> Any:
    return var(self, dim, correction=int(unbiased), keepdim=keepdim)


@kernel("std_mean.correction")
def std_mean(self: Any, dim: Any = None, *, correction: Any = None, keepdim: bool = False) -> Any:
    variance, mean = _moments(self, dim, correction, keepdim)
    return cast(numpy.sqrt(variance), formats.real_of(self.dtype)), cast(mean, self.dtype)


@kernel("std.correction")
def std(self: Any, dim: Any = None, *, correction: Any = None, keepdim: bool = False) -> Any:
    return std_mean(self, dim, correction=correction, keepdim=keepdim)[0]


@kernel("logsumexp")
def logsumexp(self: Any, dim: Any, keepdim: bool = False) -> Any:
    over = axes(dim, self)
    values = floating(self)
    kind = formats.with_fractions(self.dtype)
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
    return bool(numpy.allclose(widened(self), widened(other), rtol, atol, equal_nan))
