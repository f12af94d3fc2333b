"""Kernels that reduce: sums, products, extremes, truth values.

Covers: every form of them, over any dimensions.
Leaves to others: how a reduction runs (`reducing`), variances (`moments`), norms (`norm`), complex
numbers (the host).
Promise: NaN is carried as torch carries it; narrow floats are added in float32 or wider; sums of
whole numbers are exact.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy

from holdfast.compute import dtype as formats
from holdfast.compute.engines.numpy.reducing import axes
from holdfast.compute.engines.opencl import elementwise
from holdfast.compute.engines.opencl.array import Array, NotHere, joint
from holdfast.compute.engines.opencl.elementwise import Input, Number
from holdfast.compute.engines.opencl.kernels import kernel, working
from holdfast.compute.engines.opencl.reducing import Part, reduce
from holdfast.compute.ops.rules import normalized_dim

if TYPE_CHECKING:
    from holdfast.compute.engines.opencl.engine import OpenCLEngine

# ---- what they share


def accumulator(kind: numpy.dtype[Any]) -> str:
    """The C type in which numbers of a format are joined: long for whole numbers."""
    if kind.kind in "iu":
        return "ulong" if kind == numpy.uint64 else "long"
    return working(kind)


def number(engine: OpenCLEngine, name: str, value: float, type: str = "float") -> Number:
    """A number for the end of a reduction, as wide as its sums are."""
    return Number(name, value, "double" if type == "double" or engine.has_double else "float")


def kept(shape: Sequence[int], over: tuple[int, ...], keepdim: bool) -> tuple[int, ...]:
    """The shape of results."""
    return tuple(1 if d in over else n for d, n in enumerate(shape) if keepdim or d not in over)


def joined(
    engine: OpenCLEngine,
    fold: str,
    value: str,
    inputs: Sequence[Input],
    over: tuple[int, ...],
    keepdim: bool,
    kind: numpy.dtype[Any],
    type: str,
    numbers: Sequence[Number] = (),
    finish: str = "$total",
) -> Array:
    """One result of a reduction, in new memory."""
    shape = joint([i.array.shape for i in inputs])
    out = engine.alloc(kept(shape, over, False), kind)
    reduce(engine, [Part(fold, value, type, out, finish)], inputs, numbers, shape, over)
    return out.viewed(kind, kept(shape, over, True)) if keepdim else out


def _alone(engine: OpenCLEngine, fold: str, self: Array, over: Any, keepdim: bool, kind: Any,
           type: str, numbers: Sequence[Number] = (), finish: str = "$total") -> Array:  # fmt: skip
    inputs = [Input("self", self, type)]
    return joined(engine, fold, "$self", inputs, over, keepdim, kind, type, numbers, finish)


# ---- sums and products


def _of_sums(self: Array, dtype: Any) -> numpy.dtype[Any]:
    kind = formats.asked(dtype, formats.of_sums(self.dtype))
    if kind == formats.BOOL:
        raise NotHere("sums of truth values")
    return kind


@kernel("sum.dim_IntList")
def sum_dim(
    engine: OpenCLEngine, self: Array, dim: Any, keepdim: bool = False, *, dtype: Any = None
) -> Array:
    kind = _of_sums(self, dtype)
    return _alone(engine, "sum", self, axes(dim, self), keepdim, kind, accumulator(kind))


@kernel("sum")
def sum_all(engine: OpenCLEngine, self: Array, *, dtype: Any = None) -> Array:
    return sum_dim(engine, self, None, dtype=dtype)


@kernel("nansum")
def nansum(
    engine: OpenCLEngine, self: Array, dim: Any = None, keepdim: bool = False, *, dtype: Any = None
) -> Array:
    if self.dtype.kind == "c":
        raise TypeError("nansum does not take complex numbers")
    if not formats.is_floating(self.dtype):
        return sum_dim(engine, self, dim, keepdim, dtype=dtype)
    kind = _of_sums(self, dtype)
    own, type = working(self.dtype), accumulator(kind)
    inputs = [Input("self", self, own)]
    value = f"({type})(isnan($self) ? 0 : $self)"
    return joined(engine, "sum", value, inputs, axes(dim, self), keepdim, kind, type)


@kernel("mean.dim")
def mean_dim(
    engine: OpenCLEngine, self: Array, dim: Any, keepdim: bool = False, *, dtype: Any = None
) -> Array:
    kind = formats.asked(dtype, self.dtype)
    if formats.category(kind) < formats.FLOATING:
        raise TypeError(f"the mean of {kind} is not a whole number; name a dtype, or cast first")
    return mean_of(engine, self, axes(dim, self), keepdim, kind)


def mean_of(
    engine: OpenCLEngine, self: Array, over: tuple[int, ...], keepdim: bool, kind: numpy.dtype[Any]
) -> Array:
    """The mean over dimensions, in a format."""
    count = number(engine, "count", math.prod(self.shape[d] for d in over), working(kind))
    return _alone(
        engine,
        "sum",
        self,
        over,
        keepdim,
        kind,
        working(kind),
        numbers=[count],
        finish="$total / $count",
    )


@kernel("mean")
def mean_all(engine: OpenCLEngine, self: Array, *, dtype: Any = None) -> Array:
    return mean_dim(engine, self, None, dtype=dtype)


def _product(engine: OpenCLEngine, self: Array, dim: Any, keepdim: bool, dtype: Any) -> Array:
    kind = _of_sums(self, dtype)
    return _alone(engine, "prod", self, axes(dim, self), keepdim, kind, accumulator(kind))


@kernel("prod")
def prod_all(engine: OpenCLEngine, self: Array, *, dtype: Any = None) -> Array:
    return _product(engine, self, None, False, dtype)


@kernel("prod.dim_int")
def prod_dim(
    engine: OpenCLEngine, self: Array, dim: int, keepdim: bool = False, *, dtype: Any = None
) -> Array:
    return _product(engine, self, dim, keepdim, dtype)


# ---- extremes


def _filled(self: Array, over: tuple[int, ...]) -> None:
    """Raise TypeError where there is no order, IndexError where there is nothing to choose from."""
    if self.dtype.kind == "c":
        raise TypeError("complex numbers have no order")
    if any(self.shape[axis] == 0 for axis in over):
        raise IndexError("an extreme over a dimension of size 0 does not exist")


def extreme(engine: OpenCLEngine, fold: str, self: Array, dim: Any, keepdim: bool = False) -> Array:
    """The largest ("max") or smallest ("min") numbers over dimensions."""
    over = axes(dim, self)
    _filled(self, over)
    return _alone(engine, fold, self, over, keepdim, self.dtype, accumulator(self.dtype))


@kernel("amax")
def amax(engine: OpenCLEngine, self: Array, dim: Any = (), keepdim: bool = False) -> Array:
    return extreme(engine, "max", self, dim, keepdim)


@kernel("amin")
def amin(engine: OpenCLEngine, self: Array, dim: Any = (), keepdim: bool = False) -> Array:
    return extreme(engine, "min", self, dim, keepdim)


@kernel("max")
def max_all(engine: OpenCLEngine, self: Array) -> Array:
    return extreme(engine, "max", self, None)


@kernel("min")
def min_all(engine: OpenCLEngine, self: Array) -> Array:
    return extreme(engine, "min", self, None)


@kernel("aminmax")
def aminmax(engine: OpenCLEngine, self: Array, *, dim: Any = None, keepdim: bool = False) -> Any:
    over = axes(dim, self)
    _filled(self, over)
    type = accumulator(self.dtype)
    outs = [engine.alloc(kept(self.shape, over, False), self.dtype) for _ in range(2)]
    parts = [Part(fold, "$self", type, out) for fold, out in zip(("min", "max"), outs, strict=True)]
    reduce(engine, parts, [Input("self", self, type)], [], self.shape, over)
    shape = kept(self.shape, over, keepdim)
    return tuple(out.viewed(self.dtype, shape) for out in outs)


def _chosen(
    engine: OpenCLEngine, fold: str, self: Array, dim: Any, keepdim: bool, values: bool
) -> Any:
    """Extremes, if they are wanted, and their places: the first, or that of the first NaN."""
    over = axes(None, self) if dim is None else (normalized_dim(dim, self.ndim),)
    over = over if self.ndim else ()
    _filled(self, over)
    shape, type = kept(self.shape, over, False), accumulator(self.dtype)
    if engine.mapping == "cpu":
        return _looked_up(engine, fold, self, over, keepdim)
    found = engine.alloc(shape, self.dtype) if values else None
    place = engine.alloc(shape, formats.INT64)
    part = Part(fold, "$self", type, found, place=place)
    reduce(engine, [part], [Input("self", self, type)], [], self.shape, over)
    shape = kept(self.shape, over, keepdim)
    return None if found is None else found.viewed(self.dtype, shape), place.viewed(
        formats.INT64, shape
    )


def _looked_up(engine: OpenCLEngine, fold: str, self: Array, over: Any, keepdim: bool) -> Any:
    """Extremes first, then where they are: twice without a branch beats once with one on CPUs."""
    found = _alone(engine, fold, self, over, True, self.dtype, accumulator(self.dtype))
    own = working(self.dtype)
    inputs = [Input("self", self, own), Input("found", found, own)]
    few = math.prod(self.shape[axis] for axis in over) < 2**31
    type, none = ("int", "INT_MAX") if few else ("long", "LONG_MAX")
    text = f"$self == $found || $self != $self ? ({type})$index : {none}"
    place = joined(engine, "min", text, inputs, over, keepdim, formats.INT64, type)
    return found.viewed(self.dtype, kept(self.shape, over, keepdim)), place


@kernel("argmax")
def argmax(engine: OpenCLEngine, self: Array, dim: Any = None, keepdim: bool = False) -> Array:
    return _chosen(engine, "max", self, dim, keepdim, False)[1]


@kernel("argmin")
def argmin(engine: OpenCLEngine, self: Array, dim: Any = None, keepdim: bool = False) -> Array:
    return _chosen(engine, "min", self, dim, keepdim, False)[1]


@kernel("max.dim")
def max_dim(engine: OpenCLEngine, self: Array, dim: int, keepdim: bool = False) -> Any:
    return _chosen(engine, "max", self, dim, keepdim, True)


@kernel("min.dim")
def min_dim(engine: OpenCLEngine, self: Array, dim: int, keepdim: bool = False) -> Any:
    return _chosen(engine, "min", self, dim, keepdim, True)


@kernel("value_selecting_reduction_backward")
def value_selecting_reduction_backward(
    engine: OpenCLEngine, grad: Array, dim: int, indices: Array, sizes: Any, keepdim: bool
) -> Array:
    made = engine.alloc(tuple(sizes), grad.dtype)
    type = working(grad.dtype)
    if not made.ndim:
        scalar = grad.viewed(grad.dtype, (), ())
        return elementwise.compute(engine, "$grad", [Input("grad", scalar, type)], [], made)
    axis = normalized_dim(dim, made.ndim)
    shape = (*made.shape[:axis], 1, *made.shape[axis + 1 :])

    def spread(array: Array) -> Array:
        strides = array.strides if keepdim else (*array.strides[:axis], 0, *array.strides[axis:])
        return array.viewed(array.dtype, shape, strides)

    places = engine.upload(numpy.arange(made.shape[axis]))
    line = places.viewed(places.dtype, (places.size, *(1,) * (made.ndim - axis - 1)))
    inputs = [Input("grad", spread(grad), type), Input("indices", spread(indices), "long"),
              Input("place", line, "long")]  # fmt: skip
    return elementwise.compute(engine, "$indices == $place ? $grad : 0", inputs, [], made)


# ---- truth values and counts


def _truth(engine: OpenCLEngine, fold: str, self: Array, dim: Any, keepdim: bool) -> Array:
    kind = self.dtype if self.dtype == numpy.uint8 else formats.BOOL
    inputs = [Input("self", self, working(self.dtype))]
    return joined(engine, fold, "$self != 0", inputs, axes(dim, self), keepdim, kind, "uchar")


@kernel("all", "all.dim")
def all_of(engine: OpenCLEngine, self: Array, dim: Any = None, keepdim: bool = False) -> Array:
    return _truth(engine, "and", self, dim, keepdim)


@kernel("any", "any.dim")
def any_of(engine: OpenCLEngine, self: Array, dim: Any = None, keepdim: bool = False) -> Array:
    return _truth(engine, "or", self, dim, keepdim)


@kernel("all.dims")
def all_dims(engine: OpenCLEngine, self: Array, dim: Any = None, keepdim: bool = False) -> Array:
    return _over_named(engine, "and", self, dim, keepdim)


@kernel("any.dims")
def any_dims(engine: OpenCLEngine, self: Array, dim: Any = None, keepdim: bool = False) -> Array:
    return _over_named(engine, "or", self, dim, keepdim)


def _over_named(engine: OpenCLEngine, fold: str, self: Array, dim: Any, keepdim: bool) -> Array:
    """No dimensions named means none here, where it means all elsewhere."""
    if dim is None or len(dim):
        return _truth(engine, fold, self, dim, keepdim)
    made = engine.alloc(self.shape, self.dtype if self.dtype == numpy.uint8 else formats.BOOL)
    inputs = [Input("self", self, working(self.dtype))]
    return elementwise.compute(engine, "$self != 0", inputs, [], made)


@kernel("count_nonzero", "count_nonzero.dim_IntList")
def count_nonzero(engine: OpenCLEngine, self: Array, dim: Any = None) -> Array:
    inputs = [Input("self", self, working(self.dtype))]
    return joined(
        engine, "sum", "$self != 0", inputs, axes(dim, self), False, formats.INT64, "long"
    )


def _holds(
    engine: OpenCLEngine, condition: str, self: Array, other: Array, numbers: Sequence[Number] = ()
) -> bool:
    """Whether a condition holds for all numbers; waits for the answer."""
    type = working(formats.result_type(self, other))
    inputs = [Input("self", self, type), Input("other", other, type)]
    shape = numpy.broadcast_shapes(self.shape, other.shape)
    over = tuple(range(len(shape)))
    found = joined(engine, "and", condition, inputs, over, False, formats.BOOL, "uchar", numbers)
    return bool(engine.download(found))


@kernel("equal")
def equal(engine: OpenCLEngine, self: Array, other: Array) -> bool:
    return self.shape == other.shape and _holds(engine, "$self == $other", self, other)


@kernel("allclose")
def allclose(
    engine: OpenCLEngine,
    self: Array,
    other: Array,
    rtol: float = 1e-5,
    atol: float = 1e-8,
    equal_nan: bool = False,
) -> bool:
    type = working(formats.with_fractions(formats.result_type(self, other)))
    limits = [number(engine, "rtol", rtol, type), number(engine, "atol", atol, type)]
    apart = f"fabs(({type})$self - ({type})$other)"
    limit = f"isfinite(({type})$other) && {apart} <= $atol + $rtol * fabs(({type})$other)"
    near = f"$self == $other || ({limit})"
    nan = " || ($self != $self && $other != $other)" if equal_nan else ""
    return _holds(engine, near + nan, self, other, limits)
