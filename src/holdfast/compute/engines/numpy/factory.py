"""Kernels that make arrays, copy them and fill them."""

from __future__ import annotations

from typing import Any

import numpy

from holdfast.compute import dtype as formats
from holdfast.compute.engines.numpy.kernels import kernel
from holdfast.compute.ops import shapes
from holdfast.compute.ops.factory import (
    range_format,
    range_length,
    spaced_format,
)

_F32 = formats.FLOAT32


def _filled(shape: tuple[int, ...], value: Any, kind: Any) -> Any:
    if kind.kind in "biuf" and isinstance(value, complex):
        raise TypeError(f"{value} is complex, {kind} is not")
    if kind.kind in "iu" and isinstance(value, float):
        value = int(value)
    if kind.kind in "iu" and not isinstance(value, bool):
        # Below 0 an unsigned format wraps around, as in C.
        span = 1 << (8 * kind.itemsize)
        low, end = (-(span >> 1), span >> 1) if kind.kind == "i" else (0, span)
        if not (low or 1 - span) <= value < end:
            raise OverflowError(f"{value} does not fit into {kind}")
        value = (int(value) - low) % span + low
    made = numpy.empty(shape, kind)
    made.fill(value)
    return made


# ---- one number everywhere


@kernel("zeros")
def zeros(size: Any, dtype: Any = None) -> Any:
    return numpy.zeros(shapes.sizes(size), formats.asked(dtype, _F32))


@kernel("ones")
def ones(size: Any, dtype: Any = None) -> Any:
    return numpy.ones(shapes.sizes(size), formats.asked(dtype, _F32))


@kernel("full")
def full(size: Any, fill_value: Any, dtype: Any = None) -> Any:
    kind = formats.asked(dtype, formats.of_scalar(fill_value))
    return _filled(shapes.sizes(size), fill_value, kind)


@kernel("zeros_like")
def zeros_like(self: Any, dtype: Any = None) -> Any:
    return numpy.zeros(self.shape, formats.asked(dtype, self.dtype))


@kernel("ones_like")
def ones_like(self: Any, dtype: Any = None) -> Any:
    return numpy.ones(self.shape, formats.asked(dtype, self.dtype))


@kernel("full_like")
def full_like(self: Any, fill_value: Any, dtype: Any = None) -> Any:
    return _filled(self.shape, fill_value, formats.asked(dtype, self.dtype))


@kernel("new_zeros")
def new_zeros(self: Any, size: Any, dtype: Any = None) -> Any:
    return numpy.zeros(shapes.sizes(size), formats.asked(dtype, self.dtype))


@kernel("new_ones")
def new_ones(self: Any, size: Any, dtype: Any = None) -> Any:
    return numpy.ones(shapes.sizes(size), formats.asked(dtype, self.dtype))


@kernel("new_full")
def new_full(self: Any, size: Any, fill_value: Any, dtype: Any = None) -> Any:
    return _filled(shapes.sizes(size), fill_value, formats.asked(dtype, self.dtype))


@kernel("scalar_tensor")
def scalar_tensor(s: Any, dtype: Any = None) -> Any:
    return _filled((), s, formats.asked(dtype, _F32))


@kernel("fill.Scalar")
def fill(self: Any, value: Any) -> Any:
    return _filled(self.shape, value, self.dtype)


@kernel("fill.Tensor")
def fill_tensor(self: Any, value: Any) -> Any:
    if value.ndim:
        raise ValueError(f"fill takes a number or a tensor without dimensions, not {value.ndim}")
    return copy(self, value)


@kernel("zero")
def zero(self: Any) -> Any:
    return numpy.zeros(self.shape, self.dtype)


# ---- no numbers in particular


@kernel("empty.memory_format")
def empty(size: Any, dtype: Any = None) -> Any:
    return numpy.empty(shapes.sizes(size), formats.asked(dtype, _F32))


@kernel("empty_like")
def empty_like(self: Any, dtype: Any = None) -> Any:
    return numpy.empty(self.shape, formats.asked(dtype, self.dtype))


@kernel("new_empty")
def new_empty(self: Any, size: Any, dtype: Any = None) -> Any:
    return numpy.empty(shapes.sizes(size), formats.asked(dtype, self.dtype))


@kernel("empty_strided")
def empty_strided(size: Any, stride: Any, dtype: Any = None) -> Any:
    sizes, steps, kind = shapes.sizes(size), shapes.listed(stride), formats.asked(dtype, _F32)
    count = 1 + sum((n - 1) * s for n, s in zip(sizes, steps, strict=True))
    made = numpy.empty(max(count, 1), kind)
    strides = [s * kind.itemsize for s in steps]
    return numpy.lib.stride_tricks.as_strided(made, sizes, strides)


@kernel("new_empty_strided")
def new_empty_strided(self: Any, size: Any, stride: Any, dtype: Any = None) -> Any:
    return empty_strided(size, stride, formats.asked(dtype, self.dtype))


@kernel("empty_permuted")
def empty_permuted(size: Any, physical_layout: Any, dtype: Any = None) -> Any:
    sizes = shapes.sizes(size)
    order = shapes.order(len(sizes), physical_layout)
    made = numpy.empty([sizes[d] for d in order], formats.asked(dtype, _F32))
    return made.transpose(numpy.argsort(order)) if order else made


# ---- copies


def copied(array: Any, kind: Any) -> Any:
    """A copy in another format: complex numbers lose their imaginary part, as in torch."""
    if array.dtype.kind == "c" and kind.kind not in "cb":
        array = array.real
    if kind.kind not in "iu" or array.dtype.kind in "biu":
        return array.astype(kind, order="C")
    # What whole numbers cannot hold is unspecified, and no reason to warn.
    with numpy.errstate(invalid="ignore"):
        return array.astype(kind, order="C")


@kernel("clone")
def clone(self: Any) -> Any:
    return self.copy(order="C")  # whoever asks for a copy may view it in any shape


@kernel("_to_copy")
def to_copy(self: Any, dtype: Any = None) -> Any:
    return copied(self, formats.asked(dtype, self.dtype))


@kernel("copy")
def copy(self: Any, src: Any) -> Any:
    made = numpy.empty(self.shape, self.dtype)
    made[...] = src if src.dtype == made.dtype else copied(src, made.dtype)
    return made


# ---- in steps


def _range(start: Any, end: Any, step: Any, dtype: Any) -> Any:
    kind = formats.asked(dtype, range_format(start, end, step))
    count = range_length(start, end, step, kind)
    if formats.category(kind) == formats.INTEGER:
        return (numpy.arange(count) * int(step) + int(start)).astype(kind, copy=False)
    return (numpy.arange(count, dtype=numpy.float64) * step + start).astype(kind)


@kernel("arange")
def arange(end: Any, dtype: Any = None) -> Any:
    return _range(0, end, 1, dtype)


@kernel("arange.start")
def arange_start(start: Any, end: Any, dtype: Any = None) -> Any:
    return _range(start, end, 1, dtype)


@kernel("arange.start_step")
def arange_start_step(start: Any, end: Any, step: Any = 1, dtype: Any = None) -> Any:
    return _range(start, end, step, dtype)


def _number(value: Any) -> Any:
    if not hasattr(value, "ndim"):
        return value
    if value.ndim:
        raise ValueError("the ends of a range are numbers, or tensors without dimensions")
    return value.item()


def _spaced(start: Any, end: Any, steps: int, kind: Any) -> Any:
    """Counted from both ends, so that each end is met exactly.

    Whole numbers are computed in float64 and cut, and narrow formats round every intermediate
    result, as torch does.
    """
    if steps < 0:
        raise ValueError(f"{steps} numbers cannot be made")
    if kind.kind in "iu":
        start, end = int(start), int(end)
    if steps == 1:
        return numpy.full(1, start, kind)
    work = formats.FLOAT64 if kind.kind in "iu" else kind
    first, last = numpy.array(start).astype(work), numpy.array(end).astype(work)
    span = (last - first).astype(work)
    step = (span / formats.real_of(work).type(max(steps - 1, 1))).astype(work)
    away = (numpy.arange(steps).astype(formats.real_of(work)) * step).astype(work)
    half = steps // 2
    made = numpy.empty(steps, work)
    made[:half] = first + away[:half]
    made[half:] = last - away[: steps - half][::-1]
    return made.astype(kind, copy=False)


@kernel("linspace", "linspace.Scalar_Tensor", "linspace.Tensor_Scalar", "linspace.Tensor_Tensor")
def linspace(start: Any, end: Any, steps: int, dtype: Any = None) -> Any:
    kind = formats.asked(dtype, spaced_format(start, end))
    return _spaced(_number(start), _number(end), steps, kind)


@kernel("logspace", "logspace.Scalar_Tensor", "logspace.Tensor_Scalar", "logspace.Tensor_Tensor")
def logspace(start: Any, end: Any, steps: int, base: float = 10.0, dtype: Any = None) -> Any:
    kind = formats.asked(dtype, spaced_format(start, end))
    first, last = _number(start), _number(end)
    if kind.kind in "iu":
        first, last = int(first), int(last)
    elif kind in formats.NARROW:  # the ends are rounded, what lies between is not
        first, last = float(kind.type(first)), float(kind.type(last))
    work = formats.FLOAT32 if kind.kind in "iu" else formats.working(kind)
    exponents = _spaced(first, last, steps, work)
    with numpy.errstate(over="ignore"):
        return copied(numpy.power(work.type(base), exponents), kind)


@kernel("eye")
def eye(n: int, dtype: Any = None) -> Any:
    return eye_m(n, n, dtype)


@kernel("eye.m")
def eye_m(n: int, m: int, dtype: Any = None) -> Any:
    if n < 0 or m < 0:
        raise ValueError(f"a matrix of {n} by {m} cannot be made")
    return numpy.eye(n, m, dtype=formats.asked(dtype, _F32))
