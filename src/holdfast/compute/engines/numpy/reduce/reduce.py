"""Sums, products, minima and maxima, any and all, mean and variance.

NaN propagates as in torch; narrow floats are summed in float32.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy

from holdfast.compute import dtype as dtypes
from holdfast.compute.engines.numpy.kernels import cast, kernel, register, to_floating, widen
from holdfast.compute.engines.numpy.reduce.axes import axes, row_moments, total
from holdfast.compute.ops.rules import normalize_dim

# ---- sums and products


def _to_working(self: Any, kind: Any) -> Any:
    return cast(self, dtypes.working(kind)) if self.dtype != kind else widen(self)


@kernel("sum", "sum.dim_IntList")
def sum_dim(self: Any, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    kind = dtypes.dtype_or(dtype, dtypes.of_sums(self.dtype))
    if kind.kind in "iub" and self.dtype.kind in "iub":
        made = numpy.add.reduce(self, axis=axes(dim, self), keepdims=keepdim, dtype=kind)
        return cast(made, kind)
    return cast(total(_to_working(self, kind), axes(dim, self), keepdim), kind)


@kernel("nansum")
def nansum(self: Any, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    if dtypes.category(self.dtype) == dtypes.FLOATING:
        self = numpy.where(numpy.isnan(self), self.dtype.type(0), self)
    return sum_dim(self, dim, keepdim, dtype=dtype)


@kernel("mean", "mean.dim")
def mean(self: Any, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    kind, over = dtypes.dtype_or(dtype, self.dtype), axes(dim, self)
    count = math.prod(self.shape[axis] for axis in over)
    added = total(_to_working(self, kind), over, keepdim)
    with numpy.errstate(divide="ignore", invalid="ignore"):
        return cast(numpy.divide(added, added.dtype.type(count)), kind)


@kernel("prod", "prod.dim_int")
def prod(self: Any, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    kind, over = dtypes.dtype_or(dtype, dtypes.of_sums(self.dtype)), axes(dim, self)
    if self.dtype.kind == "b" and kind.kind in "iu":
        self = self.astype(kind)
    made = numpy.multiply.reduce(
        _to_working(self, kind), axis=over, keepdims=keepdim, dtype=dtypes.working(kind)
    )
    return cast(made, kind)


# ---- minima and maxima


def _extreme(ufunc: Any, self: Any, dim: Any = None, keepdim: bool = False) -> Any:
    return cast(ufunc.reduce(widen(self), axis=axes(dim, self), keepdims=keepdim), self.dtype)


@kernel("aminmax")
def aminmax(self: Any, *, dim: Any = None, keepdim: bool = False) -> Any:
    return tuple(_extreme(f, self, dim, keepdim) for f in (numpy.minimum, numpy.maximum))


def _arg_extreme(chooser: Any, self: Any, dim: Any = None, keepdim: bool = False) -> Any:
    """The first index of the extreme, or of a NaN."""
    values = widen(self)
    if dim is None:
        found = numpy.asarray(chooser(values.reshape(-1)))
        return found.reshape((1,) * self.ndim) if keepdim else found
    axis = normalize_dim(dim, self.ndim)
    if not self.ndim:
        return numpy.zeros((), dtypes.INT64)
    return chooser(values, axis=axis, keepdims=keepdim)


def _extreme_with_index(chooser: Any, self: Any, dim: int, keepdim: bool = False) -> Any:
    if not self.ndim:
        return numpy.array(self), _arg_extreme(chooser, self, dim, keepdim)
    axis = normalize_dim(dim, self.ndim)
    indices = _arg_extreme(chooser, self, dim, True)
    values = numpy.take_along_axis(self, indices, axis)
    return (values, indices) if keepdim else (values.squeeze(axis), indices.squeeze(axis))


for _name, _ufunc, _chooser in (
    ("max", numpy.maximum, numpy.argmax),
    ("min", numpy.minimum, numpy.argmin),
):
    register(_name, functools.partial(_extreme, _ufunc))
    register(f"a{_name}", functools.partial(_extreme, _ufunc))
    register(f"arg{_name}", functools.partial(_arg_extreme, _chooser))
    register(f"{_name}.dim", functools.partial(_extreme_with_index, _chooser))


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


def _reduce_bool(ufunc: Any, self: Any, dim: Any = None, keepdim: bool = False) -> Any:
    kind = self.dtype if self.dtype == numpy.uint8 else dtypes.BOOL
    return cast(ufunc.reduce(self.astype(bool), axis=axes(dim, self), keepdims=keepdim), kind)


def _reduce_dims(ufunc: Any, self: Any, dim: Any = None, keepdim: bool = False) -> Any:
    """Here an empty list of dimensions means none; elsewhere it means all."""
    if dim is not None and not len(dim):
        return self.astype(bool).astype(self.dtype if self.dtype == numpy.uint8 else bool)
    return _reduce_bool(ufunc, self, dim, keepdim)


for _name, _ufunc in (("all", numpy.logical_and), ("any", numpy.logical_or)):
    register(_name, functools.partial(_reduce_bool, _ufunc))
    register(f"{_name}.dim", functools.partial(_reduce_bool, _ufunc))
    register(f"{_name}.dims", functools.partial(_reduce_dims, _ufunc))


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


def _moments(
    finish: Any, self: Any, dim: Any = None, *, correction: Any = None, keepdim: bool = False
) -> tuple[Any, Any]:
    """`finish` of the variance, and the mean."""
    over = axes(dim, self)
    count = math.prod(self.shape[axis] for axis in over)
    values = widen(self)
    with numpy.errstate(divide="ignore", invalid="ignore"):
        mean, squares = _mean_and_squares(values, over)
        divisor = squares.dtype.type(max(count - (1 if correction is None else correction), 0))
        variance = numpy.divide(squares, divisor)
    if not keepdim:
        variance, mean = (numpy.squeeze(one, over) for one in (variance, mean))
    return cast(finish(variance), dtypes.real_of(self.dtype)), cast(mean, self.dtype)


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


def _moment(finish: Any, self: Any, dim: Any = None, **named: Any) -> Any:
    return _moments(finish, self, dim, **named)[0]


for _name, _finish in (("var", numpy.positive), ("std", numpy.sqrt)):
    register(f"{_name}_mean.correction", functools.partial(_moments, _finish))
    register(f"{_name}.correction", functools.partial(_moment, _finish))


@kernel("var.dim")
def var_dim(self: Any, dim: Any = None, unbiased: bool = True, keepdim: bool = False) -> Any:
    return _moment(numpy.positive, self, dim, correction=int(unbiased), keepdim=keepdim)


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
