"""Softmax, log-softmax and their gradients.

Packed rows have kernels of their own (`row_kernels`); other layouts use reductions and elementwise
passes. Narrow floats are computed in float32 and rounded once.
"""

from __future__ import annotations

import functools
from typing import Any

from holdfast.compute import dtype as dtypes
from holdfast.compute.engines.opencl.elementwise import strided_kernels
from holdfast.compute.engines.opencl.elementwise.strided_kernels import Input
from holdfast.compute.engines.opencl.reduce import row_kernels
from holdfast.compute.engines.opencl.reduce.reduce import reduce_one
from holdfast.compute.engines.opencl.runtime.array import Array
from holdfast.compute.engines.opencl.runtime.engine_protocol import CLEngine
from holdfast.compute.engines.opencl.runtime.kernel_table import kernel, register, working
from holdfast.compute.ops.rules import normalize_dim


def _forward(
    logarithm: bool, engine: CLEngine, self: Array, dim: int, half_to_float: bool = False
) -> Array:
    axis, kind = normalize_dim(dim, self.ndim), dtypes.FLOAT32 if half_to_float else self.dtype
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


register("_softmax", functools.partial(_forward, False))
register("_log_softmax", functools.partial(_forward, True))


@kernel("_safe_softmax")
def safe_softmax(engine: CLEngine, self: Array, dim: int, dtype: Any = None) -> Array:
    """As softmax, with zeros where all elements are minus infinity."""
    self = engine.cast(self, dtypes.dtype_or(dtype, self.dtype))
    made = _forward(False, engine, self, dim)
    type = working(made.dtype)
    over = (normalize_dim(dim, self.ndim),) if self.ndim else ()
    inputs = [Input("self", self, type)]
    hidden = reduce_one(
        engine, "and", "$self == -INFINITY", inputs, over, True, dtypes.BOOL, "uchar"
    )
    inputs = [Input("made", made, type), Input("hidden", hidden, "uchar")]
    return strided_kernels.compute(engine, "$hidden ? 0 : $made", inputs, [], made)


def _backward(
    summed: str, text: str, engine: CLEngine, grad_output: Array, output: Array, dim: int,
    input_dtype: Any,
) -> Array:  # fmt: skip
    grad, made = grad_output, engine.alloc_like(grad_output, dtypes.dtype(input_dtype))
    over = (normalize_dim(dim, grad.ndim),) if grad.ndim else ()
    type, wide = working(grad.dtype), dtypes.working(grad.dtype)
    inputs = [Input("grad", grad, type), Input("out", output, type)]
    added = reduce_one(engine, "sum", summed, inputs, over, True, wide, type)
    return strided_kernels.compute(engine, text, [*inputs, Input("added", added, type)], [], made)


for _name, _summed, _text in (
    ("_softmax", "$grad * $out", "$out * ($grad - $added)"),
    ("_log_softmax", "$grad", "$grad - exp($out) * $added"),
):
    register(f"{_name}_backward_data", functools.partial(_backward, _summed, _text))
