"""Kernels that go number by number, but whose arguments do not all meet in one format.

Covers: division that rounds, filling where a mask says so, replacing what is not finite,
activations with two results.
Leaves to others: ops whose formats meet (`expressions`), two results of `frexp` (the host).
Promise: formats of results are those of the NumPy engine; narrow floats are computed in float32.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy

from holdfast.compute import dtype as formats
from holdfast.compute.engines.opencl.array import Array, NotHere, joint
from holdfast.compute.engines.opencl.elementwise import Input, Number, compute, result
from holdfast.compute.engines.opencl.kernels import KERNELS, kernel, working
from holdfast.compute.engines.opencl.texts import TRUTH

if TYPE_CHECKING:
    from holdfast.compute.engines.opencl.engine import OpenCLEngine


def expressed(
    engine: OpenCLEngine,
    text: str,
    kind: numpy.dtype[Any],
    given: dict[str, Any],
    wanted: numpy.dtype[Any] | None = None,
) -> Array:
    """A fresh array by an expression of arrays and numbers, which is computed in `kind`.

    Masks of truth values are read as such. Raises NotHere for formats the device has not.
    """
    if kind.kind == "c" or (kind == formats.FLOAT64 and not engine.has_double):
        raise NotHere(f"{kind} on this device")
    word = working(kind)
    arrays = {name: value for name, value in given.items() if type(value) is Array}
    inputs = [
        Input(name, a, TRUTH if a.dtype.kind == "b" and kind.kind != "b" else word)
        for name, a in arrays.items()
    ]
    numbers = [Number(n, value, word) for n, value in given.items() if n not in arrays]
    shape = joint([a.shape for a in arrays.values()])
    out = result(engine, list(arrays.values()), shape, wanted or kind)
    return compute(engine, text, inputs, numbers, out, wide=word in ("float", "double"))


# ---- division that rounds


@kernel("div.Tensor_mode", "div.Scalar_mode")
def divide(engine: OpenCLEngine, self: Array, other: Any, rounding_mode: str | None) -> Array:
    if rounding_mode not in (None, "floor", "trunc"):
        raise ValueError(f"rounding_mode {rounding_mode!r} is none of None, 'trunc', 'floor'")
    name = "floor_divide" if rounding_mode == "floor" else "div"
    suffix = {"floor_divide": ("", ".Scalar"), "div": (".Tensor", ".Scalar")}[name]
    kind = formats.result_type(self, other)
    if rounding_mode != "trunc":
        return KERNELS[name + suffix[type(other) is not Array]].function(engine, self, other)
    if kind.kind == "b":
        raise NotHere("a division of truth values")
    if kind.kind in "iu":
        if type(other) is not Array and not other:
            raise ZeroDivisionError("division of whole numbers by zero")
        return _over(engine, "f_divide($self, $other)", kind, self, other)
    if kind in formats.NARROW:  # the quotient is rounded to its own format first, as torch has it
        return KERNELS["trunc"].function(engine, _over(engine, "$self / $other", kind, self, other))
    return _over(engine, "trunc($self / $other)", kind, self, other)


def _over(engine: OpenCLEngine, text: str, kind: Any, self: Array, other: Any) -> Array:
    work = formats.working(kind)
    one, by = (
        engine.cast(a, work) if type(a) is Array and a.dtype.kind == "b" else a
        for a in (self, other)
    )
    return expressed(engine, text, work, {"self": one, "other": by}, kind)


# ---- what is not finite, what a mask says


@kernel("nan_to_num")
def nan_to_num(
    engine: OpenCLEngine, self: Array, nan: Any = None, posinf: Any = None, neginf: Any = None
) -> Array:
    if self.dtype.kind == "c":
        raise NotHere("complex numbers")
    if self.dtype.kind in "biu":
        return engine.copied(self)
    limit = formats.ml_dtypes.finfo(self.dtype) if formats.ml_dtypes else numpy.finfo(self.dtype)
    large = "$self == (T)INFINITY ? $high : ($self == -(T)INFINITY ? $low : $self)"
    text = f"$self != $self ? $nan : ({large})"
    numbers = {
        "nan": 0.0 if nan is None else nan,
        "high": float(limit.max) if posinf is None else posinf,
        "low": float(limit.min) if neginf is None else neginf,
    }
    work = formats.working(self.dtype)
    return expressed(engine, text, work, {"self": self, **numbers}, self.dtype)


@kernel("masked_fill.Scalar", "masked_fill.Tensor")
def masked_fill(engine: OpenCLEngine, self: Array, mask: Array, value: Any) -> Array:
    if getattr(value, "ndim", 0):
        raise ValueError(f"the value has {value.ndim} dimensions, none is expected")
    if mask.dtype != numpy.bool_:
        raise TypeError(f"the mask has the format {mask.dtype}, bool is expected")
    kind = self.dtype
    if formats.result_type(value).kind == "c" and kind.kind != "c":
        raise TypeError(f"the complex number {value} does not fit into {kind}")
    if kind.kind == "b":
        made = engine.cast(value, kind) if type(value) is Array else bool(value)
        text = "$mask ? $value : $self"
        return expressed(engine, text, kind, {"self": self, "mask": mask, "value": made})
    if type(value) is Array:
        value = engine.cast(value, kind)
    elif kind.kind in "iu":
        value = int(value)
    parts = {"self": self, "mask": mask, "value": value}
    text = "$mask != 0 ? $value : $self"
    return expressed(engine, text, formats.working(kind), parts, kind)


@kernel("positive")
def positive(engine: OpenCLEngine, self: Array) -> Array:
    if self.dtype.kind == "b":
        raise TypeError("truth values have no sign")
    return self.viewed(self.dtype, self.shape, self.strides)


# ---- activations with two results


@kernel("log_sigmoid_forward")
def log_sigmoid(engine: OpenCLEngine, self: Array) -> tuple[Array, Array]:
    kind = formats.working(self.dtype)
    if not formats.is_floating(kind):
        raise NotHere(f"log_sigmoid of {kind}")
    given = {"self": self}
    small = "f_minimum($self, K(0.0)) - log1p(exp(-fabs($self)))"
    return (
        expressed(engine, small, kind, given, self.dtype),
        expressed(engine, "exp(-fabs($self))", kind, given, self.dtype),
    )


@kernel("_prelu_kernel_backward")
def prelu_backward(
    engine: OpenCLEngine, grad_output: Array, self: Array, weight: Array
) -> tuple[Array, Array]:
    kind = formats.working(self.dtype)
    if not formats.is_floating(kind):
        raise NotHere(f"prelu of {kind}")
    given = {"grad": grad_output, "self": self}
    through = "$self > K(0.0) ? $grad : $grad * $weight"
    back = "$self > K(0.0) ? K(0.0) : $self * $grad"
    return (
        expressed(engine, through, kind, {**given, "weight": weight}, self.dtype),
        expressed(engine, back, kind, given, self.dtype),
    )


@kernel("native_dropout_backward")
def native_dropout_backward(
    engine: OpenCLEngine, grad_output: Array, mask: Array, scale: float
) -> Array:
    wanted = formats.with_fractions(grad_output.dtype)
    given = {"grad": engine.cast(grad_output, wanted), "mask": mask, "scale": scale}
    text = "$grad * $mask * $scale"
    if mask.dtype.kind == "b":
        text = "($mask != 0 ? $grad : $grad * K(0.0)) * $scale"
    return expressed(engine, text, formats.working(wanted), given, wanted)
