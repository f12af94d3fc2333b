"""Vector norms, distances and renorm. Elements are read once, whatever p is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy

from holdfast.compute import dtype as dtypes
from holdfast.compute.engines.numpy.reduce.axes import axes
from holdfast.compute.engines.opencl.elementwise.strided_kernels import Input, Number, compute
from holdfast.compute.engines.opencl.reduce.reduce import reduce_one, scalar
from holdfast.compute.engines.opencl.runtime.array import Array
from holdfast.compute.engines.opencl.runtime.engine_protocol import CLEngine
from holdfast.compute.engines.opencl.runtime.kernel_table import kernel, working


def p_norm(
    engine: CLEngine, value: str, inputs: Sequence[Input], p: float, over: Any, keepdim: bool,
    kind: Any,
) -> Array:  # fmt: skip
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


@kernel(
    *("linalg_vector_norm", "norm.Scalar", "norm.ScalarOpt_dim", "norm.ScalarOpt_dim_dtype"),
    "norm.ScalarOpt_dtype",
)
def norm(
    engine: CLEngine, self: Array, p: Any = 2, dim: Any = None, keepdim: bool = False, *,
    dtype: Any = None,
) -> Array:  # fmt: skip
    kind, order = dtypes.dtype_or(dtype, self.dtype), 2.0 if p is None else float(p)
    inputs = [Input("self", self, working(kind))]
    return p_norm(engine, "$self", inputs, order, axes(dim, self), keepdim, kind)


@kernel("dist")
def dist(engine: CLEngine, self: Array, other: Array, p: Any = 2) -> Array:
    kind = dtypes.result_type(self, other)
    inputs = [Input("self", self, working(kind)), Input("other", other, working(kind))]
    shape = numpy.broadcast_shapes(self.shape, other.shape)
    return p_norm(engine, "$self - $other", inputs, float(p), tuple(range(len(shape))), False, kind)


@kernel("renorm")
def renorm(engine: CLEngine, self: Array, p: Any, dim: int, maxnorm: Any) -> Array:
    axis, type = axes([dim], self)[0], working(self.dtype)
    inputs, over = [Input("self", self, type)], tuple(d for d in range(self.ndim) if d != axis)
    wide = dtypes.working(self.dtype)
    inputs.append(Input("size", p_norm(engine, "$self", inputs, float(p), over, True, wide), type))
    limit = Number("limit", maxnorm, type)
    text = f"$size > $limit ? $self * ($limit / ($size + ({type})1e-7)) : $self"
    return compute(engine, text, inputs, [limit], engine.alloc_like(self, self.dtype))
