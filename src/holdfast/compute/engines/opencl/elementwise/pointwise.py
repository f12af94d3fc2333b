"""Elementwise kernels whose arguments are not all promoted to one dtype.

Result dtypes are those of the NumPy engine; narrow floats are computed in float32.
"""

from __future__ import annotations

from typing import Any

import numpy

from holdfast.compute import dtype as dtypes
from holdfast.compute.engines.opencl.elementwise.codegen import TRUTH
from holdfast.compute.engines.opencl.elementwise.strided_kernels import (
    Input,
    Number,
    alloc_result,
    compute,
)
from holdfast.compute.engines.opencl.runtime.array import Array, NotHere, broadcast_shape
from holdfast.compute.engines.opencl.runtime.engine_protocol import CLEngine
from holdfast.compute.engines.opencl.runtime.kernel_table import KERNELS, kernel, working


def evaluate(
    engine: CLEngine, text: str, kind: numpy.dtype[Any], given: dict[str, Any],
    wanted: numpy.dtype[Any] | None = None,
) -> Array:  # fmt: skip
    """A new array from an expression of arrays and scalars, computed in `kind`.

    Boolean masks are read as booleans. Raises NotHere for dtypes the device lacks.
    """
    if kind.kind == "c" or (kind == dtypes.FLOAT64 and not engine.has_double):
        raise NotHere(f"{kind} on this device")
    word = working(kind)
    arrays = {name: value for name, value in given.items() if type(value) is Array}
    inputs = [
        Input(name, a, TRUTH if a.dtype.kind == "b" and kind.kind != "b" else word)
        for name, a in arrays.items()
    ]
    numbers = [Number(n, value, word) for n, value in given.items() if n not in arrays]
    shape = broadcast_shape([a.shape for a in arrays.values()])
    out = alloc_result(engine, list(arrays.values()), shape, wanted or kind)
    return compute(engine, text, inputs, numbers, out, wide=word in ("float", "double"))


# ---- division with a rounding mode


@kernel("div.Tensor_mode", "div.Scalar_mode")
def divide(engine: CLEngine, self: Array, other: Any, rounding_mode: str | None) -> Array:
    name = "floor_divide" if rounding_mode == "floor" else "div"
    suffix = {"floor_divide": ("", ".Scalar"), "div": (".Tensor", ".Scalar")}[name]
    kind = dtypes.result_type(self, other)
    if rounding_mode != "trunc":
        return KERNELS[name + suffix[type(other) is not Array]].function(engine, self, other)
    if kind.kind == "b":
        raise NotHere("a division of booleans")
    if kind.kind in "iu":
        if type(other) is not Array and not other:
            raise ZeroDivisionError("integer division by zero")
        return _divide(engine, "f_divide($self, $other)", kind, self, other)
    if kind in dtypes.NARROW:  # the quotient is rounded to its own dtype first, as in torch
        return KERNELS["trunc"].function(
            engine, _divide(engine, "$self / $other", kind, self, other)
        )
    return _divide(engine, "trunc($self / $other)", kind, self, other)


def _divide(engine: CLEngine, text: str, kind: Any, self: Array, other: Any) -> Array:
    work = dtypes.working(kind)
    one, by = (
        engine.cast(a, work) if type(a) is Array and a.dtype.kind == "b" else a
        for a in (self, other)
    )
    return evaluate(engine, text, work, {"self": one, "other": by}, kind)


# ---- non-finite values and masks


@kernel("nan_to_num")
def nan_to_num(
    engine: CLEngine, self: Array, nan: Any = None, posinf: Any = None, neginf: Any = None
) -> Array:
    if self.dtype.kind == "c":
        raise NotHere("complex numbers")
    if self.dtype.kind in "biu":
        return engine.copy(self)
    limit = dtypes.ml_dtypes.finfo(self.dtype) if dtypes.ml_dtypes else numpy.finfo(self.dtype)
    large = "$self == (T)INFINITY ? $high : ($self == -(T)INFINITY ? $low : $self)"
    text = f"$self != $self ? $nan : ({large})"
    numbers = {
        "nan": 0.0 if nan is None else nan,
        "high": float(limit.max) if posinf is None else posinf,
        "low": float(limit.min) if neginf is None else neginf,
    }
    work = dtypes.working(self.dtype)
    return evaluate(engine, text, work, {"self": self, **numbers}, self.dtype)


@kernel("masked_fill.Scalar", "masked_fill.Tensor")
def masked_fill(engine: CLEngine, self: Array, mask: Array, value: Any) -> Array:
    kind = self.dtype
    if dtypes.result_type(value).kind == "c" and kind.kind != "c":
        raise TypeError(f"the complex number {value} does not fit into {kind}")
    if kind.kind == "b":
        made = engine.cast(value, kind) if type(value) is Array else bool(value)
        text = "$mask ? $value : $self"
        return evaluate(engine, text, kind, {"self": self, "mask": mask, "value": made})
    if type(value) is Array:
        value = engine.cast(value, kind)
    elif kind.kind in "iu":
        value = int(value)
    parts = {"self": self, "mask": mask, "value": value}
    text = "$mask != 0 ? $value : $self"
    return evaluate(engine, text, dtypes.working(kind), parts, kind)


# ---- activations with two results


@kernel("log_sigmoid_forward")
def log_sigmoid(engine: CLEngine, self: Array) -> tuple[Array, Array]:
    kind = dtypes.working(self.dtype)
    if not dtypes.is_floating(kind):
        raise NotHere(f"log_sigmoid of {kind}")
    given = {"self": self}
    small = "f_minimum($self, K(0.0)) - log1p(exp(-fabs($self)))"
    return (
        evaluate(engine, small, kind, given, self.dtype),
        evaluate(engine, "exp(-fabs($self))", kind, given, self.dtype),
    )


@kernel("_prelu_kernel_backward")
def prelu_backward(
    engine: CLEngine, grad_output: Array, self: Array, weight: Array
) -> tuple[Array, Array]:
    kind = dtypes.working(self.dtype)
    if not dtypes.is_floating(kind):
        raise NotHere(f"prelu of {kind}")
    given = {"grad": grad_output, "self": self}
    through = "$self > K(0.0) ? $grad : $grad * $weight"
    back = "$self > K(0.0) ? K(0.0) : $self * $grad"
    return (
        evaluate(engine, through, kind, {**given, "weight": weight}, self.dtype),
        evaluate(engine, back, kind, given, self.dtype),
    )


@kernel("native_dropout_backward")
def native_dropout_backward(
    engine: CLEngine, grad_output: Array, mask: Array, scale: float
) -> Array:
    wanted = dtypes.with_fractions(grad_output.dtype)
    given = {"grad": engine.cast(grad_output, wanted), "mask": mask, "scale": scale}
    text = "$grad * $mask * $scale"
    if mask.dtype.kind == "b":
        text = "($mask != 0 ? $grad : $grad * K(0.0)) * $scale"
    return evaluate(engine, text, dtypes.working(wanted), given, wanted)
