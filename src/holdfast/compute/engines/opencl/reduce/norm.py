"""Vector norms, distances and renorm. Elements are read once, whatever p is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy

from holdfast.compute import dtype as dtypes
from holdfast.compute.engines.numpy.reduce.axes import axes
from holdfast.compute.engines.opencl.elementwise import strided_kernels
from holdfast.compute.engines.opencl.elementwise.strided_kernels import Input, Number
from holdfast.compute.engines.opencl.reduce.reduce import reduce_one, scalar
from holdfast.compute.engines.opencl.runtime.array import Array
from holdfast.compute.engines.opencl.runtime.engine_protocol import CLEngine
from holdfast.compute.engines.opencl.runtime.kernel_table import kernel, working


def p_norm(
    engine: CLEngine,
    value: str,
    inputs: Sequence[Input],
    p: float,
    over: Any,
    keepdim: bool,
    kind: Any,
) -> Array:
    """The p-norm of an expression over dimensions, in a dtype."""
    type = inputs[0].type
    fold, each, finish, numbers = _norm(engine, p, type, value)
    return reduce_one(engine, fold, each, inputs, over, keepdim, kind, type, numbers, finish)


def _norm(engine: CLEngine, p: float, type: str, value: str) -> tuple[str, str, str, list[Number]]:
    """Reduction op, per-element expression, final expression, and the scalars they use."""
    if p == 0:
        return "sum", f"({value}) != 0", "$total", []
    if p == 1:
        return "sum", f"fabs({value})", "$total", []
    if p == 2:
        return "sum", f"({value}) * ({value})", "sqrt($total)", []
    if p == math.inf:
        return "max", f"fabs({value})", "$total == -INFINITY ? 0 : $total", []
    if p == -math.inf:
        return "min", f"fabs({value})", "$total", []
    numbers = [Number("p", p, type), scalar(engine, "inverse", 1 / p, type)]
    return "sum", f"pow(fabs({value}), $p)", "pow($total, $inverse)", numbers


def _needs_fractions(kind: Any) -> None:
    if dtypes.category(kind) < dtypes.FLOATING:
        raise TypeError(f"a norm of {kind} needs floating-point or complex numbers")


def _over(engine: CLEngine, self: Array, p: Any, dim: Any, keepdim: bool, kind: Any) -> Array:
    _needs_fractions(kind)
    order = 2.0 if p is None else float(p)
    inputs = [Input("self", self, working(kind))]
    return p_norm(engine, "$self", inputs, order, axes(dim, self), keepdim, kind)


@kernel("linalg_vector_norm")
def vector_norm(
    engine: CLEngine,
    self: Array,
    ord: Any = 2,
    dim: Any = None,
    keepdim: bool = False,
    dtype: Any = None,
) -> Array:
    over = axes(dim, self)
    if (ord < 0 or ord == math.inf) and not all(self.shape[axis] for axis in over):
        raise ValueError(f"the norm of order {ord} of no elements is not defined")
    return _over(engine, self, ord, dim, keepdim, dtypes.dtype_or(dtype, self.dtype))


@kernel("norm.ScalarOpt_dim")
def norm_dim(engine: CLEngine, self: Array, p: Any, dim: Any, keepdim: bool = False) -> Array:
    return _over(engine, self, p, dim, keepdim, self.dtype)


@kernel("norm.Scalar")
def norm(engine: CLEngine, self: Array, p: Any = 2) -> Array:
    return _over(engine, self, p, None, False, self.dtype)


@kernel("norm.ScalarOpt_dim_dtype")
def norm_dim_dtype(
    engine: CLEngine, self: Array, p: Any, dim: Any, keepdim: bool, *, dtype: Any
) -> Array:
    return _over(engine, self, p, dim, keepdim, dtypes.dtype(dtype))


@kernel("norm.ScalarOpt_dtype")
def norm_dtype(engine: CLEngine, self: Array, p: Any, *, dtype: Any) -> Array:
    return _over(engine, self, p, None, False, dtypes.dtype(dtype))


@kernel("dist")
def dist(engine: CLEngine, self: Array, other: Array, p: Any = 2) -> Array:
    kind = dtypes.result_type(self, other)
    _needs_fractions(kind)
    inputs = [Input("self", self, working(kind)), Input("other", other, working(kind))]
    shape = numpy.broadcast_shapes(self.shape, other.shape)
    return p_norm(engine, "$self - $other", inputs, float(p), tuple(range(len(shape))), False, kind)


@kernel("renorm")
def renorm(engine: CLEngine, self: Array, p: Any, dim: int, maxnorm: Any) -> Array:
    if self.ndim < 2:
        raise ValueError("renorm takes at least 2 dimensions")
    if p <= 0 or maxnorm < 0:
        raise ValueError(f"p is positive and maxnorm not negative; they are {p} and {maxnorm}")
    axis = axes([dim], self)[0]
    type, wide = working(self.dtype), dtypes.working(self.dtype)
    over = tuple(d for d in range(self.ndim) if d != axis)
    sizes = p_norm(engine, "$self", [Input("self", self, type)], float(p), over, True, wide)
    limit = Number("limit", maxnorm, type)
    text = f"$size > $limit ? $self * ($limit / ($size + ({type})1e-7)) : $self"
    inputs = [Input("self", self, type), Input("size", sizes, type)]
    return strided_kernels.compute(
        engine, text, inputs, [limit], engine.alloc_like(self, self.dtype)
    )
