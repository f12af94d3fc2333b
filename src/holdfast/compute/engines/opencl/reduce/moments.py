"""Variance, standard deviation and logsumexp.

Elements are read twice, first for the mean, so that a large mean costs no precision.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

from holdfast.compute import dtype as dtypes
from holdfast.compute.engines.numpy.reduce.axes import axes
from holdfast.compute.engines.opencl.elementwise import strided_kernels
from holdfast.compute.engines.opencl.elementwise.strided_kernels import Input, Number
from holdfast.compute.engines.opencl.reduce.reduce import mean_of, reduce_one, reduced_shape, scalar
from holdfast.compute.engines.opencl.runtime.array import Array
from holdfast.compute.engines.opencl.runtime.engine_protocol import CLEngine
from holdfast.compute.engines.opencl.runtime.kernel_table import kernel, register, working

_VARIANCE = "$total / $divisor"


def moments(
    engine: CLEngine, self: Array, over: tuple[int, ...], finish: str, numbers: Sequence[Number],
    kind: Any,
) -> tuple[Array, Array]:  # fmt: skip
    """The mean, in the working dtype, and `finish` of the sum of squared deviations.

    Both keep the reduced dimensions with size 1.
    """
    wide = dtypes.working(self.dtype)
    mean, type = mean_of(engine, self, over, True, wide), working(wide)
    inputs = [Input("self", self, type), Input("mean", mean, type)]
    value = "($self - $mean) * ($self - $mean)"
    return mean, reduce_one(engine, "sum", value, inputs, over, True, kind, type, numbers, finish)


def _variance_and_mean(
    finish: str, engine: CLEngine, self: Array, dim: Any = None, *, correction: Any = None,
    keepdim: bool = False,
) -> Any:  # fmt: skip
    over = axes(dim, self)
    count = math.prod(self.shape[axis] for axis in over)
    divisor = max(count - (1 if correction is None else correction), 0)
    numbers = [scalar(engine, "divisor", divisor, working(self.dtype))]
    mean, found = moments(engine, self, over, finish, numbers, self.dtype)
    shape = reduced_shape(self.shape, over, keepdim)
    mean = mean if mean.dtype == self.dtype else engine.cast(mean, self.dtype)
    return found.view(self.dtype, shape), mean.view(self.dtype, shape)


def _variance(finish: str, engine: CLEngine, self: Array, dim: Any = None, **named: Any) -> Array:
    return _variance_and_mean(finish, engine, self, dim, **named)[0]


@kernel("var.dim")
def var_dim(
    engine: CLEngine, self: Array, dim: Any = None, unbiased: bool = True, keepdim: bool = False
) -> Array:
    return _variance(_VARIANCE, engine, self, dim, correction=int(unbiased), keepdim=keepdim)


for _name, _finish in (("var", _VARIANCE), ("std", f"sqrt({_VARIANCE})")):
    register(f"{_name}.correction", functools.partial(_variance, _finish))
    register(f"{_name}_mean.correction", functools.partial(_variance_and_mean, _finish))


@kernel("logsumexp")
def logsumexp(engine: CLEngine, self: Array, dim: Any, keepdim: bool = False) -> Array:
    over, kind = axes(dim, self), dtypes.with_fractions(self.dtype)
    wide = dtypes.working(kind)
    type = working(wide)
    start = [Input("self", self, type)]
    finite = "isfinite($total) ? $total : 0"
    top = reduce_one(engine, "max", "$self", start, over, True, wide, type, finish=finite)
    inputs = [Input("self", self, type), Input("top", top, type)]
    added = reduce_one(engine, "sum", "exp($self - $top)", inputs, over, True, wide, type)
    made = engine.alloc(added.shape, kind)
    inputs = [Input("added", added, type), Input("top", top, type)]
    strided_kernels.compute(engine, "log($added) + $top", inputs, [], made)
    return made.view(kind, reduced_shape(self.shape, over, keepdim))
