"""Reduction ops: sums, products, means, extremes, all and any, counts.

NaN propagates as in torch. Narrow floats are summed in float32 or wider; integer sums are exact.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import numpy

from holdfast.compute import dtype as dtypes
from holdfast.compute.engines.numpy.reduce.axes import axes
from holdfast.compute.engines.opencl.elementwise import strided_kernels
from holdfast.compute.engines.opencl.elementwise.strided_kernels import Input, Number
from holdfast.compute.engines.opencl.reduce.reduction import ReduceOutput, reduce
from holdfast.compute.engines.opencl.runtime.array import Array, NotHere, broadcast_shape
from holdfast.compute.engines.opencl.runtime.engine_protocol import CLEngine
from holdfast.compute.engines.opencl.runtime.kernel_table import kernel, register, working
from holdfast.compute.ops.rules import normalize_dim

# ---- shared


def accumulator(kind: numpy.dtype[Any]) -> str:
    """The C type to accumulate in: long for integers."""
    if kind.kind in "iu":
        return "ulong" if kind == numpy.uint64 else "long"
    return working(kind)


def scalar(engine: CLEngine, name: str, value: float, type: str = "float") -> Number:
    """A scalar for the final expression, as wide as the sums are."""
    return Number(name, value, "double" if type == "double" or engine.has_double else "float")


def reduced_shape(shape: Sequence[int], over: tuple[int, ...], keepdim: bool) -> tuple[int, ...]:
    """The shape of the result."""
    return tuple(1 if d in over else n for d, n in enumerate(shape) if keepdim or d not in over)


def reduce_one(
    engine: CLEngine, fold: str, value: str, inputs: Sequence[Input], over: tuple[int, ...],
    keepdim: bool, kind: numpy.dtype[Any], type: str, numbers: Sequence[Number] = (),
    finish: str = "$total",
) -> Array:  # fmt: skip
    """Reduce one expression into a new array."""
    shape = broadcast_shape([i.array.shape for i in inputs])
    out = engine.alloc(reduced_shape(shape, over, False), kind)
    reduce(engine, [ReduceOutput(fold, value, type, out, finish)], inputs, numbers, shape, over)
    return out.view(kind, reduced_shape(shape, over, True)) if keepdim else out


def _reduce_array(
    engine: CLEngine, fold: str, self: Array, over: Any, keepdim: bool, kind: Any,
    type: str | None = None, numbers: Sequence[Number] = (), finish: str = "$total",
) -> Array:  # fmt: skip
    type = accumulator(kind) if type is None else type
    inputs = [Input("self", self, type)]
    return reduce_one(engine, fold, "$self", inputs, over, keepdim, kind, type, numbers, finish)


# ---- sums and products


def _sum_dtype(self: Array, dtype: Any) -> numpy.dtype[Any]:
    kind = dtypes.dtype_or(dtype, dtypes.of_sums(self.dtype))
    if kind == dtypes.BOOL:
        raise NotHere("sums of booleans")
    return kind


def _add_or_multiply(
    fold: str, engine: CLEngine, self: Array, dim: Any = None, keepdim: bool = False, *,
    dtype: Any = None,
) -> Array:  # fmt: skip
    return _reduce_array(engine, fold, self, axes(dim, self), keepdim, _sum_dtype(self, dtype))


for _fold, _overload in (("sum", "dim_IntList"), ("prod", "dim_int")):
    register(_fold, functools.partial(_add_or_multiply, _fold))
    register(f"{_fold}.{_overload}", functools.partial(_add_or_multiply, _fold))


@kernel("nansum")
def nansum(
    engine: CLEngine, self: Array, dim: Any = None, keepdim: bool = False, *, dtype: Any = None
) -> Array:
    if not dtypes.is_floating(self.dtype):
        return _add_or_multiply("sum", engine, self, dim, keepdim, dtype=dtype)
    kind = _sum_dtype(self, dtype)
    own, type = working(self.dtype), accumulator(kind)
    inputs = [Input("self", self, own)]
    value = f"({type})(isnan($self) ? 0 : $self)"
    return reduce_one(engine, "sum", value, inputs, axes(dim, self), keepdim, kind, type)


@kernel("mean", "mean.dim")
def mean(
    engine: CLEngine, self: Array, dim: Any = None, keepdim: bool = False, *, dtype: Any = None
) -> Array:
    return mean_of(engine, self, axes(dim, self), keepdim, dtypes.dtype_or(dtype, self.dtype))


def mean_of(
    engine: CLEngine, self: Array, over: tuple[int, ...], keepdim: bool, kind: numpy.dtype[Any]
) -> Array:
    """The mean over dimensions, in a dtype."""
    type = working(kind)
    count = scalar(engine, "count", math.prod(self.shape[d] for d in over), type)
    return _reduce_array(engine, "sum", self, over, keepdim, kind, type, [count], "$total / $count")


# ---- extremes


def _extreme(
    fold: str, engine: CLEngine, self: Array, dim: Any = None, keepdim: bool = False
) -> Array:
    return _reduce_array(engine, fold, self, axes(dim, self), keepdim, self.dtype)


@kernel("aminmax")
def aminmax(engine: CLEngine, self: Array, *, dim: Any = None, keepdim: bool = False) -> Any:
    over, type = axes(dim, self), accumulator(self.dtype)
    outs = [engine.alloc(reduced_shape(self.shape, over, False), self.dtype) for _ in range(2)]
    parts = [
        ReduceOutput(fold, "$self", type, out)
        for fold, out in zip(("min", "max"), outs, strict=True)
    ]
    reduce(engine, parts, [Input("self", self, type)], [], self.shape, over)
    shape = reduced_shape(self.shape, over, keepdim)
    return tuple(out.view(self.dtype, shape) for out in outs)


def _arg_extreme(
    values: bool, fold: str, engine: CLEngine, self: Array, dim: Any = None, keepdim: bool = False
) -> Any:
    """Extremes (if `values`) and their first indices; NaN counts as the extreme."""
    over = axes(dim, self)
    shape, type = reduced_shape(self.shape, over, False), accumulator(self.dtype)
    if engine.mapping == "cpu":
        return _arg_extreme_cpu(engine, fold, self, over, keepdim)
    found = engine.alloc(shape, self.dtype) if values else None
    place = engine.alloc(shape, dtypes.INT64)
    part = ReduceOutput(fold, "$self", type, found, place=place)
    reduce(engine, [part], [Input("self", self, type)], [], self.shape, over)
    shape = reduced_shape(self.shape, over, keepdim)
    return None if found is None else found.view(self.dtype, shape), place.view(dtypes.INT64, shape)


def _arg_extreme_cpu(engine: CLEngine, fold: str, self: Array, over: Any, keepdim: bool) -> Any:
    """Extremes first, then their indices: on CPUs two passes without branches are faster."""
    found = _reduce_array(engine, fold, self, over, True, self.dtype)
    own = working(self.dtype)
    inputs = [Input("self", self, own), Input("found", found, own)]
    few = math.prod(self.shape[axis] for axis in over) < 2**31
    type, none = ("int", "INT_MAX") if few else ("long", "LONG_MAX")
    text = f"$self == $found || $self != $self ? ({type})$index : {none}"
    place = reduce_one(engine, "min", text, inputs, over, keepdim, dtypes.INT64, type)
    return found.view(self.dtype, reduced_shape(self.shape, over, keepdim)), place


def _arg(fold: str, engine: CLEngine, *args: Any, **named: Any) -> Array:
    return _arg_extreme(False, fold, engine, *args, **named)[1]


for _fold in ("max", "min"):
    register(_fold, functools.partial(_extreme, _fold))
    register(f"a{_fold}", functools.partial(_extreme, _fold))
    register(f"arg{_fold}", functools.partial(_arg, _fold))
    register(f"{_fold}.dim", functools.partial(_arg_extreme, True, _fold))


@kernel("value_selecting_reduction_backward")
def value_selecting_reduction_backward(
    engine: CLEngine, grad: Array, dim: int, indices: Array, sizes: Any, keepdim: bool
) -> Array:
    made = engine.alloc(tuple(sizes), grad.dtype)
    type = working(grad.dtype)
    if not made.ndim:
        scalar = grad.view(grad.dtype, (), ())
        return strided_kernels.compute(engine, "$grad", [Input("grad", scalar, type)], [], made)
    axis = normalize_dim(dim, made.ndim)
    shape = (*made.shape[:axis], 1, *made.shape[axis + 1 :])

    def spread(array: Array) -> Array:
        strides = array.strides if keepdim else (*array.strides[:axis], 0, *array.strides[axis:])
        return array.view(array.dtype, shape, strides)

    places = engine.upload(numpy.arange(made.shape[axis]))
    line = places.view(places.dtype, (places.size, *(1,) * (made.ndim - axis - 1)))
    inputs = [Input("grad", spread(grad), type), Input("indices", spread(indices), "long"),
              Input("place", line, "long")]  # fmt: skip
    return strided_kernels.compute(engine, "$indices == $place ? $grad : 0", inputs, [], made)


# ---- booleans and counts


def _reduce_bool(
    fold: str, engine: CLEngine, self: Array, dim: Any = None, keepdim: bool = False
) -> Array:
    kind = self.dtype if self.dtype == numpy.uint8 else dtypes.BOOL
    inputs = [Input("self", self, working(self.dtype))]
    return reduce_one(engine, fold, "$self != 0", inputs, axes(dim, self), keepdim, kind, "uchar")


def _reduce_dims(
    fold: str, engine: CLEngine, self: Array, dim: Any = None, keepdim: bool = False
) -> Array:
    """An empty `dim` reduces nothing here; elsewhere it means all dimensions."""
    if dim is None or len(dim):
        return _reduce_bool(fold, engine, self, dim, keepdim)
    made = engine.alloc(self.shape, self.dtype if self.dtype == numpy.uint8 else dtypes.BOOL)
    inputs = [Input("self", self, working(self.dtype))]
    return strided_kernels.compute(engine, "$self != 0", inputs, [], made)


for _name, _fold in (("all", "and"), ("any", "or")):
    register(_name, functools.partial(_reduce_bool, _fold))
    register(f"{_name}.dim", functools.partial(_reduce_bool, _fold))
    register(f"{_name}.dims", functools.partial(_reduce_dims, _fold))


@kernel("count_nonzero", "count_nonzero.dim_IntList")
def count_nonzero(engine: CLEngine, self: Array, dim: Any = None) -> Array:
    inputs = [Input("self", self, working(self.dtype))]
    return reduce_one(
        engine, "sum", "$self != 0", inputs, axes(dim, self), False, dtypes.INT64, "long"
    )


def _holds(
    engine: CLEngine, condition: str, self: Array, other: Array, numbers: Sequence[Number] = ()
) -> bool:
    """Whether a condition holds for all elements; waits for the device."""
    type = working(dtypes.result_type(self, other))
    inputs = [Input("self", self, type), Input("other", other, type)]
    shape = numpy.broadcast_shapes(self.shape, other.shape)
    over = tuple(range(len(shape)))
    found = reduce_one(engine, "and", condition, inputs, over, False, dtypes.BOOL, "uchar", numbers)
    return bool(engine.download(found))


@kernel("equal")
def equal(engine: CLEngine, self: Array, other: Array) -> bool:
    return self.shape == other.shape and _holds(engine, "$self == $other", self, other)


@kernel("allclose")
def allclose(
    engine: CLEngine, self: Array, other: Array, rtol: float = 1e-5, atol: float = 1e-8,
    equal_nan: bool = False,
) -> bool:  # fmt: skip
    type = working(dtypes.with_fractions(dtypes.result_type(self, other)))
    limits = [scalar(engine, "rtol", rtol, type), scalar(engine, "atol", atol, type)]
    apart = f"fabs(({type})$self - ({type})$other)"
    limit = f"isfinite(({type})$other) && {apart} <= $atol + $rtol * fabs(({type})$other)"
    near = f"$self == $other || ({limit})"
    nan = " || ($self != $self && $other != $other)" if equal_nan else ""
    return _holds(engine, near + nan, self, other, limits)
