"""Kernels: variances and deviations, with their means, and logarithms of summed exponentials.

Covers: any dimensions and float formats.
Leaves to others: how a reduction runs (`reducing`), complex numbers (the host).
Promise: numbers are read twice, first for the mean, so that large means cost no digits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from holdfast.compute import dtype as formats
from holdfast.compute.engines.numpy.reducing import axes
from holdfast.compute.engines.opencl import elementwise
from holdfast.compute.engines.opencl.array import Array
from holdfast.compute.engines.opencl.elementwise import Input, Number
from holdfast.compute.engines.opencl.kernels import kernel, working
from holdfast.compute.engines.opencl.reduce import joined, kept, mean_of, number

if TYPE_CHECKING:
    from holdfast.compute.engines.opencl.engine import OpenCLEngine


def moments(
    engine: OpenCLEngine,
    self: Array,
    over: tuple[int, ...],
    finish: str,
    numbers: Sequence[Number],
    kind: Any,
) -> tuple[Array, Array]:
    """The mean, in what is computed in, and `finish` of the summed squared distances from it.

    Both have the reduced dimensions with size 1.
    """
    wide = formats.working(self.dtype)
    mean, type = mean_of(engine, self, over, True, wide), working(wide)
    inputs = [Input("self", self, type), Input("mean", mean, type)]
    value = "($self - $mean) * ($self - $mean)"
    return mean, joined(engine, "sum", value, inputs, over, True, kind, type, numbers, finish)


def _variance(
    engine: OpenCLEngine, self: Array, dim: Any, correction: Any, keepdim: bool, finish: str
) -> Any:
    if formats.category(self.dtype) < formats.FLOATING:
        raise TypeError(f"a variance of {self.dtype} needs floating-point or complex numbers")
    over = axes(dim, self)
    count = math.prod(self.shape[axis] for axis in over)
    divisor = max(count - (1 if correction is None else correction), 0)
    numbers = [number(engine, "divisor", divisor, working(self.dtype))]
    mean, found = moments(engine, self, over, finish, numbers, self.dtype)
    shape = kept(self.shape, over, keepdim)
    mean = mean if mean.dtype == self.dtype else engine.cast(mean, self.dtype)
    return found.viewed(self.dtype, shape), mean.viewed(self.dtype, shape)


@kernel("var_mean.correction")
def var_mean(
    engine: OpenCLEngine,
    self: Array,
    dim: Any = None,
    *,
    correction: Any = None,
    keepdim: bool = False,
) -> Any:
    return _variance(engine, self, dim, correction, keepdim, "$total / $divisor")


@kernel("var.correction")
def var(
    engine: OpenCLEngine,
    self: Array,
    dim: Any = None,
    *,
    correction: Any = None,
    keepdim: bool = False,
) -> Array:
    return _variance(engine, self, dim, correction, keepdim, "$total / $divisor")[0]


@kernel("var.dim")
def var_dim(
    engine: OpenCLEngine, self: Array, dim: Any = None, unbiased: bool = True, keepdim: bool = False
) -> Array:
    return _variance(engine, self, dim, int(unbiased), keepdim, "$total / $divisor")[0]


@kernel("std_mean.correction")
def std_mean(
    engine: OpenCLEngine,
    self: Array,
    dim: Any = None,
    *,
    correction: Any = None,
    keepdim: bool = False,
) -> Any:
    return _variance(engine, self, dim, correction, keepdim, "sqrt($total / $divisor)")


@kernel("std.correction")
def std(
    engine: OpenCLEngine,
    self: Array,
    dim: Any = None,
    *,
    correction: Any = None,
    keepdim: bool = False,
) -> Array:
    return _variance(engine, self, dim, correction, keepdim, "sqrt($total / $divisor)")[0]


@kernel("logsumexp")
def logsumexp(engine: OpenCLEngine, self: Array, dim: Any, keepdim: bool = False) -> Array:
    over, kind = axes(dim, self), formats.with_fractions(self.dtype)
    wide = formats.working(kind)
    type = working(wide)
    start = [Input("self", self, type)]
    finite = "isfinite($total) ? $total : 0"
    top = joined(engine, "max", "$self", start, over, True, wide, type, finish=finite)
    inputs = [Input("self", self, type), Input("top", top, type)]
    added = joined(engine, "sum", "exp($self - $top)", inputs, over, True, wide, type)
    made = engine.alloc(added.shape, kind)
    inputs = [Input("added", added, type), Input("top", top, type)]
    elementwise.compute(engine, "log($added) + $top", inputs, [], made)
    return made.viewed(kind, kept(self.shape, over, keepdim))
