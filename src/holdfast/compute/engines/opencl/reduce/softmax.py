"""Softmax, log-softmax and their gradients.

Packed rows have kernels of their own (`row_kernels`); other layouts use reductions and elementwise
passes. Narrow floats are computed in float32 and rounded once.
"""

from __future__ import annotations

from typing import Any

import numpy

from holdfast.compute import dtype as dtypes
from holdfast.compute.engines.opencl.elementwise import strided_kernels
from holdfast.compute.engines.opencl.elementwise.strided_kernels import Input
from holdfast.compute.engines.opencl.reduce import row_kernels
from holdfast.compute.engines.opencl.reduce.reduce import reduce_one
from holdfast.compute.engines.opencl.runtime.array import Array
from holdfast.compute.engines.opencl.runtime.engine_protocol import CLEngine
from holdfast.compute.engines.opencl.runtime.kernel_table import kernel, working
from holdfast.compute.ops.rules import normalize_dim


def _kind(self: Array, half_to_float: bool) -> numpy.dtype[Any]:
    if half_to_float and self.dtype != dtypes.FLOAT16:
        raise TypeError(f"half_to_float is for float16, not {self.dtype}")
    if dtypes.category(self.dtype) != dtypes.FLOATING:
        raise TypeError(f"softmax takes floating-point numbers, not {self.dtype}; name a dtype")
    return dtypes.FLOAT32 if half_to_float else self.dtype


def _forward(
    engine: CLEngine, self: Array, dim: int, kind: numpy.dtype[Any], logarithm: bool
) -> Array:
    axis = normalize_dim(dim, self.ndim)
    if kind == self.dtype and self.size:
        quick = row_kernels.softmax(engine, self, axis, logarithm)
        if quick is not None:
            return quick
    made = engine.alloc_like(self, kind)
    if not made.size:
        return made
    over = (axis,) if self.ndim else ()
    type, wide = working(self.dtype), dtypes.working(self.dtype)
    inputs = [Input("self", self, type)]
    top = reduce_one(engine, "max", "$self", inputs, over, True, wide, type)
    inputs.append(Input("top", top, type))
    added = reduce_one(engine, "sum", "exp($self - $top)", inputs, over, True, wide, type)
    inputs.append(Input("added", added, type))
    text = "$self - $top - log($added)" if logarithm else "exp($self - $top) / $added"
    return strided_kernels.compute(engine, text, inputs, [], made)


@kernel("_softmax")
def softmax(engine: CLEngine, self: Array, dim: int, half_to_float: bool = False) -> Array:
    return _forward(engine, self, dim, _kind(self, half_to_float), False)


@kernel("_log_softmax")
def log_softmax(engine: CLEngine, self: Array, dim: int, half_to_float: bool = False) -> Array:
    return _forward(engine, self, dim, _kind(self, half_to_float), True)


@kernel("_safe_softmax")
def safe_softmax(engine: CLEngine, self: Array, dim: int, dtype: Any = None) -> Array:
    """As softmax, with zeros where all elements are minus infinity."""
    self = engine.cast(self, dtypes.dtype_or(dtype, self.dtype))
    made = softmax(engine, self, dim)
    type = working(made.dtype)
    over = (normalize_dim(dim, self.ndim),) if self.ndim else ()
    inputs = [Input("self", self, type)]
    hidden = reduce_one(
        engine, "and", "$self == -INFINITY", inputs, over, True, dtypes.BOOL, "uchar"
    )
    inputs = [Input("made", made, type), Input("hidden", hidden, "uchar")]
    return strided_kernels.compute(engine, "$hidden ? 0 : $made", inputs, [], made)


def _backward(
    engine: CLEngine, grad: Array, output: Array, dim: int, kind: Any, summed: str, text: str
) -> Array:
    made = engine.alloc_like(grad, kind)
    over = (normalize_dim(dim, grad.ndim),) if grad.ndim else ()
    type, wide = working(grad.dtype), dtypes.working(grad.dtype)
    inputs = [Input("grad", grad, type), Input("out", output, type)]
    added = reduce_one(engine, "sum", summed, inputs, over, True, wide, type)
    return strided_kernels.compute(engine, text, [*inputs, Input("added", added, type)], [], made)


@kernel("_softmax_backward_data")
def softmax_backward(
    engine: CLEngine, grad_output: Array, output: Array, dim: int, input_dtype: Any
) -> Array:
    kind, text = dtypes.dtype(input_dtype), "$out * ($grad - $added)"
    return _backward(engine, grad_output, output, dim, kind, "$grad * $out", text)


@kernel("_log_softmax_backward_data")
def log_softmax_backward(
    engine: CLEngine, grad_output: Array, output: Array, dim: int, input_dtype: Any
) -> Array:
    kind, text = dtypes.dtype(input_dtype), "$grad - exp($out) * $added"
    return _backward(engine, grad_output, output, dim, kind, "$grad", text)
