"""Cumulative sums, products, minima and maxima, and reductions of segments.

As in torch, float32 is accumulated in float64.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy

from holdfast.compute import dtype as dtypes
from holdfast.compute.engines.numpy.kernels import cast, kernel, register, to_floating, widen
from holdfast.compute.engines.numpy.reduce.axes import spans, to_three_axes
from holdfast.compute.ops.rules import normalize_dim

_WIDER = {dtypes.FLOAT32: dtypes.FLOAT64, dtypes.COMPLEX64: dtypes.COMPLEX128}


def _accumulate(ufunc: Any, self: Any, dim: int, *, dtype: Any = None) -> Any:
    axis = normalize_dim(dim, self.ndim)
    kind = dtypes.dtype_or(dtype, dtypes.of_sums(self.dtype))
    working = dtypes.working(kind)
    values = cast(self, working)
    if not self.ndim:
        return cast(values.copy(), kind)
    if working not in _WIDER:
        return cast(ufunc.accumulate(values, axis=axis, dtype=working), kind)
    rows = to_three_axes(values, axis)
    made = numpy.empty(rows.shape, kind)
    with numpy.errstate(over="ignore"):
        for part in spans(rows.shape[0], rows.shape[1] * rows.shape[2]):
            made[part] = ufunc.accumulate(rows[part].astype(_WIDER[working]), axis=1)
    return made.reshape(self.shape)


def _running_extreme(ufunc: Any, self: Any, dim: int) -> tuple[Any, Any]:
    """The extreme so far, and the last index of it, or of a NaN."""
    axis = normalize_dim(dim, self.ndim)
    if not self.ndim:
        return self.copy(), numpy.zeros((), dtypes.INT64)
    values = widen(self)
    found = ufunc.accumulate(values, axis=axis)
    here = values == found
    if values.dtype.kind == "f":
        here |= numpy.isnan(values)
    shape = [1] * self.ndim
    shape[axis] = self.shape[axis]
    indices = numpy.arange(self.shape[axis], dtype=dtypes.INT64).reshape(shape)
    return cast(found, self.dtype), numpy.maximum.accumulate(indices * here, axis=axis)


for _name, _run, _ufunc in (
    ("cumsum", _accumulate, numpy.add),
    ("cumprod", _accumulate, numpy.multiply),
    ("cummax", _running_extreme, numpy.maximum),
    ("cummin", _running_extreme, numpy.minimum),
):
    register(_name, functools.partial(_run, _ufunc))


@kernel("logcumsumexp")
def logcumsumexp(self: Any, dim: int) -> Any:
    axis = normalize_dim(dim, self.ndim)
    values = to_floating(self)
    if not self.ndim or not self.size:
        return self.copy()
    if values.dtype.kind != "c":
        made = numpy.logaddexp.accumulate(values, axis=axis, dtype=dtypes.FLOAT64)
        return cast(made, self.dtype)
    made = values.copy()
    rows = numpy.moveaxis(made, axis, 0)
    with numpy.errstate(divide="ignore", invalid="ignore", over="ignore"):
        for row in range(1, rows.shape[0]):
            rows[row] = _log_add(rows[row - 1], rows[row])
    return made


def _log_add(one: Any, other: Any) -> Any:
    """log(exp(one) + exp(other)) of complex numbers, without overflow."""
    less = one.real < other.real
    low, high = numpy.where(less, one, other), numpy.where(less, other, one)
    found = numpy.log1p(numpy.exp(low - high)) + high
    same = numpy.isinf(high.real) & (low.real == high.real)
    return numpy.where(same & (high.real < 0), low, found)


# ---- segments

_STARTS = {"sum": 0.0, "mean": 0.0, "prod": 1.0, "max": -numpy.inf, "min": numpy.inf}
_UFUNCS = {"sum": numpy.add, "mean": numpy.add, "prod": numpy.multiply, "max": numpy.maximum,
           "min": numpy.minimum}  # fmt: skip


def _edges(data: Any, lengths: Any, offsets: Any, axis: int, unsafe: bool = False) -> Any:
    """The edges of segments, one row for each combination of the dimensions before `axis`."""
    if axis < 0 or axis >= data.ndim:
        raise IndexError(f"axis {axis} is out of range for {data.ndim} dimensions")
    if offsets is not None:
        return offsets.reshape(-1, offsets.shape[-1])
    if lengths is None:
        raise ValueError("segment_reduce needs lengths or offsets")
    rows = lengths.reshape(-1, lengths.shape[-1])
    if not unsafe and rows.size and (rows.min() < 0 or (rows.sum(1) != data.shape[axis]).any()):
        raise ValueError(f"the lengths do not add up to {data.shape[axis]}, or one is negative")
    zeros = numpy.zeros((rows.shape[0], 1), rows.dtype)
    return numpy.concatenate([zeros, numpy.cumsum(rows, 1)], 1)


@kernel("segment_reduce")
def segment_reduce(
    data: Any, reduce: str, *, lengths: Any = None, indices: Any = None, offsets: Any = None,
    axis: int = 0, unsafe: bool = False, initial: Any = None,
) -> Any:  # fmt: skip
    if reduce not in _UFUNCS:
        raise ValueError(f"{reduce!r} is none of {', '.join(_UFUNCS)}")
    edges = _edges(data, lengths, offsets, axis, unsafe)
    segments = edges.shape[1] - 1
    values = widen(data).reshape(edges.shape[0], *data.shape[axis:])
    made = numpy.empty((edges.shape[0], segments, *data.shape[axis + 1 :]), values.dtype)
    start = values.dtype.type(_STARTS[reduce] if initial is None else initial)
    for row, bounds in enumerate(edges):
        for segment in range(segments):
            part = values[row, bounds[segment] : bounds[segment + 1]]
            made[row, segment] = _segment(reduce, part, start, initial)
    return cast(made, data.dtype).reshape(*data.shape[:axis], segments, *data.shape[axis + 1 :])


def _segment(reduce: str, part: Any, start: Any, initial: Any) -> Any:
    size = part.shape[0]
    if reduce == "mean" and not size and initial is None:
        return numpy.nan
    found = _UFUNCS[reduce].reduce(part, axis=0, initial=start)
    return found / part.dtype.type(size) if reduce == "mean" and size else found


@kernel("_segment_reduce_backward")
def segment_reduce_backward(
    grad: Any, output: Any, data: Any, reduce: str, *, lengths: Any = None, offsets: Any = None,
    axis: int = 0, initial: Any = None,
) -> Any:  # fmt: skip
    edges = _edges(data, lengths, offsets, axis, True)
    rows = edges.shape[0]
    values = widen(data).reshape(rows, *data.shape[axis:])
    after = data.shape[axis + 1 :]
    grads = widen(grad).reshape(rows, -1, *after)
    outs = widen(output).reshape(grads.shape)
    made = numpy.zeros(values.shape, values.dtype)
    for row, bounds in enumerate(edges):
        for segment in range(edges.shape[1] - 1):
            span = slice(bounds[segment], bounds[segment + 1])
            part = values[row, span]
            if part.shape[0]:
                slope = _segment_slope(reduce, part, outs[row, segment], initial)
                made[row, span] = grads[row, segment] * slope
    return cast(made, data.dtype).reshape(data.shape)


def _segment_slope(reduce: str, part: Any, out: Any, initial: Any) -> Any:
    if reduce == "sum":
        return part.dtype.type(1)
    if reduce == "mean":
        return part.dtype.type(1 / part.shape[0])
    if reduce in ("max", "min"):
        chosen = (part == out) | (numpy.isnan(part) & numpy.isnan(out))
        return chosen / numpy.maximum(chosen.sum(axis=0), 1).astype(part.dtype)
    first = numpy.ones((1, *part.shape[1:]), part.dtype)
    before = numpy.multiply.accumulate(numpy.concatenate([first, part[:-1]]), axis=0)
    after = numpy.multiply.accumulate(numpy.concatenate([first, part[:0:-1]]), axis=0)[::-1]
    return before * after * part.dtype.type(1 if initial is None else initial)
