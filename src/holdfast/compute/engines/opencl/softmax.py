"""Softmax, its logarithm, and their gradients.

Covers: any dimension and format. Rows of numbers side by side have kernels of their own (`rows`);
the rest is made of reductions and element-wise passes.
Leaves to others: how sums run (`reducing`), softmax inside of attention (`attention`).
Promise: narrow floats are computed in float32 and rounded once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy

from holdfast.compute import dtype as formats
from holdfast.compute.engines.opencl import elementwise, rows
from holdfast.compute.engines.opencl.array import Array
from holdfast.compute.engines.opencl.elementwise import Input
from holdfast.compute.engines.opencl.kernels import kernel, working
from holdfast.compute.engines.opencl.reduce import joined
from holdfast.compute.ops.rules import normalized_dim

if TYPE_CHECKING:
    from holdfast.compute.engines.opencl.engine import OpenCLEngine


def _kind(self: Array, half_to_float: bool) -> numpy.dtype[Any]:
    if half_to_float and self.dtype != formats.FLOAT16:
        raise TypeError(f"half_to_float is for float16, not {self.dtype}")
    if formats.category(self.dtype) != formats.FLOATING:
        raise TypeError(f"softmax takes floating-point numbers, not {self.dtype}; name a dtype")
    return formats.FLOAT32 if half_to_float else self.dtype


def _forward(
    engine: OpenCLEngine, self: Array, dim: int, kind: numpy.dtype[Any], logarithm: bool
) -> Array:
    axis = normalized_dim(dim, self.ndim)
    if kind == self.dtype and self.size:
        quick = rows.softmax(engine, self, axis, logarithm)
        if quick is not None:
            return quick
    made = engine.like(self, kind)
    if not made.size:
        return made
    over = (axis,) if self.ndim else ()
    type, wide = working(self.dtype), formats.working(self.dtype)
    inputs = [Input("self", self, type)]
    top = joined(engine, "max", "$self", inputs, over, True, wide, type)
    inputs.append(Input("top", top, type))
    added = joined(engine, "sum", "exp($self - $top)", inputs, over, True, wide, type)
    inputs.append(Input("added", added, type))
    text = "$self - $top - log($added)" if logarithm else "exp($self - $top) / $added"
    return elementwise.compute(engine, text, inputs, [], made)


@kernel("_softmax")
def softmax(engine: OpenCLEngine, self: Array, dim: int, half_to_float: bool = False) -> Array:
    return _forward(engine, self, dim, _kind(self, half_to_float), False)


@kernel("_log_softmax")
def log_softmax(engine: OpenCLEngine, self: Array, dim: int, half_to_float: bool = False) -> Array:
    return _forward(engine, self, dim, _kind(self, half_to_float), True)


@kernel("_safe_softmax")
def safe_softmax(engine: OpenCLEngine, self: Array, dim: int, dtype: Any = None) -> Array:
    """As softmax, with zeros where everything is minus infinity."""
    self = engine.cast(self, formats.asked(dtype, self.dtype))
    made = softmax(engine, self, dim)
    type = working(made.dtype)
    over = (normalized_dim(dim, self.ndim),) if self.ndim else ()
    inputs = [Input("self", self, type)]
    hidden = joined(engine, "and", "$self == -INFINITY", inputs, over, True, formats.BOOL, "uchar")
    inputs = [Input("made", made, type), Input("hidden", hidden, "uchar")]
    return elementwise.compute(engine, "$hidden ? 0 : $made", inputs, [], made)


def _backward(
    engine: OpenCLEngine, grad: Array, output: Array, dim: int, kind: Any, summed: str, text: str
) -> Array:
    made = engine.like(grad, kind)
    over = (normalized_dim(dim, grad.ndim),) if grad.ndim else ()
    type, wide = working(grad.dtype), formats.working(grad.dtype)
    inputs = [Input("grad", grad, type), Input("out", output, type)]
    added = joined(engine, "sum", summed, inputs, over, True, wide, type)
    return elementwise.compute(engine, text, [*inputs, Input("added", added, type)], [], made)


@kernel("_softmax_backward_data")
def softmax_backward(
    engine: OpenCLEngine, grad_output: Array, output: Array, dim: int, input_dtype: Any
) -> Array:
    kind, text = formats.dtype(input_dtype), "$out * ($grad - $added)"
    return _backward(engine, grad_output, output, dim, kind, "$grad * $out", text)


@kernel("_log_softmax_backward_data")
def log_softmax_backward(
    engine: OpenCLEngine, grad_output: Array, output: Array, dim: int, input_dtype: Any
) -> Array:
    kind, text = formats.dtype(input_dtype), "$grad - exp($out) * $added"
    return _backward(engine, grad_output, output, dim, kind, "$grad", text)
