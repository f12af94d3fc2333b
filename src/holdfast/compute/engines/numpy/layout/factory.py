"""Making, filling, copying and casting arrays."""

from __future__ import annotations

from typing import Any

import numpy

from holdfast.compute import dtype as dtypes
from holdfast.compute.engines.layout.factories import factory_kernels
from holdfast.compute.engines.numpy.kernels import kernel, register
from holdfast.compute.ops.layout.factory import range_dtype, range_length, spaced_dtype


def full(shape: tuple[int, ...], value: Any, kind: Any) -> Any:
    if kind.kind in "biuf" and isinstance(value, complex):
        raise TypeError(f"{value} is complex, {kind} is not")
    if kind.kind in "iu" and isinstance(value, float):
        value = int(value)
    if kind.kind in "iu" and not isinstance(value, bool):
        # Negative values of an unsigned dtype wrap around, as in C.
        span = 1 << (8 * kind.itemsize)
        low, end = (-(span >> 1), span >> 1) if kind.kind == "i" else (0, span)
        if not (low or 1 - span) <= value < end:
            raise OverflowError(f"{value} does not fit into {kind}")
        value = (int(value) - low) % span + low
    made = numpy.empty(shape, kind)
    made.fill(value)
    return made


# ---- copies


def copy_to(array: Any, kind: Any) -> Any:
    """A copy in another dtype; complex to real drops the imaginary part, as in torch."""
    if array.dtype.kind == "c" and kind.kind not in "cb":
        array = array.real
    if kind.kind not in "iu" or array.dtype.kind in "biu":
        return array.astype(kind, order="C")
    # Values that do not fit into an integer are unspecified; NumPy would warn.
    with numpy.errstate(invalid="ignore"):
        return array.astype(kind, order="C")


@kernel("clone")
def clone(self: Any) -> Any:
    return self.copy(order="C")  # callers may view a clone in any shape


@kernel("_to_copy")
def to_copy(self: Any, dtype: Any = None) -> Any:
    return copy_to(self, dtypes.dtype_or(dtype, self.dtype))


@kernel("copy", "fill.Tensor")
def copy(self: Any, value: Any) -> Any:
    made = numpy.empty(self.shape, self.dtype)
    made[...] = value if value.dtype == made.dtype else copy_to(value, made.dtype)
    return made


# ---- ranges


def arange(start: Any, end: Any, step: Any, dtype: Any) -> Any:
    kind = dtypes.dtype_or(dtype, range_dtype(start, end, step))
    count = range_length(start, end, step, kind)
    if dtypes.category(kind) == dtypes.INTEGER:
        return (numpy.arange(count) * int(step) + int(start)).astype(kind, copy=False)
    return (numpy.arange(count, dtype=numpy.float64) * step + start).astype(kind)


def _to_scalar(value: Any) -> Any:
    if not hasattr(value, "ndim"):
        return value
    if value.ndim:
        raise ValueError("start and end must be numbers or tensors without dimensions")
    return value.item()


def _linspace(start: Any, end: Any, steps: int, kind: Any) -> Any:
    """Computed from both ends, so that both are exact.

    As in torch, integers are computed in float64 and truncated, and narrow dtypes round every
    intermediate result.
    """
    if steps < 0:
        raise ValueError(f"steps must be 0 or more, not {steps}")
    if kind.kind in "iu":
        start, end = int(start), int(end)
    if steps == 1:
        return numpy.full(1, start, kind)
    work = dtypes.FLOAT64 if kind.kind in "iu" else kind
    first, last = numpy.array(start).astype(work), numpy.array(end).astype(work)
    span = (last - first).astype(work)
    step = (span / dtypes.real_of(work).type(max(steps - 1, 1))).astype(work)
    away = (numpy.arange(steps).astype(dtypes.real_of(work)) * step).astype(work)
    half = steps // 2
    made = numpy.empty(steps, work)
    made[:half] = first + away[:half]
    made[half:] = last - away[: steps - half][::-1]
    return made.astype(kind, copy=False)


@kernel("linspace", "linspace.Scalar_Tensor", "linspace.Tensor_Scalar", "linspace.Tensor_Tensor")
def linspace(start: Any, end: Any, steps: int, dtype: Any = None) -> Any:
    kind = dtypes.dtype_or(dtype, spaced_dtype(start, end))
    return _linspace(_to_scalar(start), _to_scalar(end), steps, kind)


@kernel("logspace", "logspace.Scalar_Tensor", "logspace.Tensor_Scalar", "logspace.Tensor_Tensor")
def logspace(start: Any, end: Any, steps: int, base: float = 10.0, dtype: Any = None) -> Any:
    kind = dtypes.dtype_or(dtype, spaced_dtype(start, end))
    first, last = _to_scalar(start), _to_scalar(end)
    if kind.kind in "iu":
        first, last = int(first), int(last)
    elif kind in dtypes.NARROW:  # only the ends are rounded
        first, last = float(kind.type(first)), float(kind.type(last))
    work = dtypes.FLOAT32 if kind.kind in "iu" else dtypes.working(kind)
    exponents = _linspace(first, last, steps, work)
    with numpy.errstate(over="ignore"):
        return copy_to(numpy.power(work.type(base), exponents), kind)


FACTORIES = factory_kernels(
    numpy.zeros,
    numpy.ones,
    numpy.empty,
    full,
    arange,
    lambda n, m, kind: numpy.eye(n, m, dtype=kind),
)
for _name, _function in FACTORIES.items():
    register(_name, _function)
