"""Kernels that make arrays, copy them and fill them.

Covers: one number everywhere, numbers in steps, copies, parts of matrices.
Leaves to others: filling itself (`views`), random numbers (`random`).
Promise: a number is put into its format on the host, so that what does not fit is refused as the
NumPy engine refuses it; numbers in steps are the NumPy engine's to the last bit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy

from holdfast.compute import dtype as formats
from holdfast.compute.engine import ENGINES
from holdfast.compute.engines.numpy import factory as host
from holdfast.compute.engines.opencl.array import Array
from holdfast.compute.engines.opencl.elementwise import Input, Number, compute
from holdfast.compute.engines.opencl.kernels import kernel, register
from holdfast.compute.engines.opencl.views import fill, filled, fresh, parts_of, word
from holdfast.compute.ops import shapes
from holdfast.compute.ops.factory import range_format, range_length

if TYPE_CHECKING:
    from holdfast.compute.engines.opencl.engine import OpenCLEngine

_F32 = formats.FLOAT32

# ---- one number everywhere


def _full(engine: OpenCLEngine, shape: Any, value: Any, kind: numpy.dtype[Any]) -> Array:
    """A fresh array with one number everywhere. Raises what the NumPy engine raises."""
    return filled(engine, shape, kind, ENGINES["numpy"].call(host.full, ((), value, kind), {}))


@kernel("zeros")
def zeros(engine: OpenCLEngine, size: Any, dtype: Any = None) -> Array:
    return _full(engine, shapes.sizes(size), 0, formats.asked(dtype, _F32))


@kernel("ones")
def ones(engine: OpenCLEngine, size: Any, dtype: Any = None) -> Array:
    return _full(engine, shapes.sizes(size), 1, formats.asked(dtype, _F32))


@kernel("full")
def full(engine: OpenCLEngine, size: Any, fill_value: Any, dtype: Any = None) -> Array:
    kind = formats.asked(dtype, formats.of_scalar(fill_value))
    return _full(engine, shapes.sizes(size), fill_value, kind)


@kernel("zeros_like")
def zeros_like(engine: OpenCLEngine, self: Array, dtype: Any = None) -> Array:
    return _full(engine, self.shape, 0, formats.asked(dtype, self.dtype))


@kernel("ones_like")
def ones_like(engine: OpenCLEngine, self: Array, dtype: Any = None) -> Array:
    return _full(engine, self.shape, 1, formats.asked(dtype, self.dtype))


@kernel("full_like")
def full_like(engine: OpenCLEngine, self: Array, fill_value: Any, dtype: Any = None) -> Array:
    return _full(engine, self.shape, fill_value, formats.asked(dtype, self.dtype))


@kernel("new_zeros")
def new_zeros(engine: OpenCLEngine, self: Array, size: Any, dtype: Any = None) -> Array:
    return _full(engine, shapes.sizes(size), 0, formats.asked(dtype, self.dtype))


@kernel("new_ones")
def new_ones(engine: OpenCLEngine, self: Array, size: Any, dtype: Any = None) -> Array:
    return _full(engine, shapes.sizes(size), 1, formats.asked(dtype, self.dtype))


@kernel("new_full")
def new_full(
    engine: OpenCLEngine, self: Array, size: Any, fill_value: Any, dtype: Any = None
) -> Array:
    return _full(engine, shapes.sizes(size), fill_value, formats.asked(dtype, self.dtype))


@kernel("scalar_tensor")
def scalar_tensor(engine: OpenCLEngine, s: Any, dtype: Any = None) -> Array:
    return _full(engine, (), s, formats.asked(dtype, _F32))


@kernel("fill.Scalar")
def fill_scalar(engine: OpenCLEngine, self: Array, value: Any) -> Array:
    return _full(engine, self.shape, value, self.dtype)


@kernel("fill.Tensor")
def fill_tensor(engine: OpenCLEngine, self: Array, value: Array) -> Array:
    if value.ndim:
        raise ValueError(f"fill takes a number or a tensor without dimensions, not {value.ndim}")
    return copy(engine, self, value)


@kernel("zero")
def zero(engine: OpenCLEngine, self: Array) -> Array:
    return _full(engine, self.shape, 0, self.dtype)


# ---- no numbers in particular


@kernel("empty.memory_format")
def empty(engine: OpenCLEngine, size: Any, dtype: Any = None) -> Array:
    return engine.alloc(shapes.sizes(size), formats.asked(dtype, _F32))


@kernel("empty_like")
def empty_like(engine: OpenCLEngine, self: Array, dtype: Any = None) -> Array:
    return engine.alloc(self.shape, formats.asked(dtype, self.dtype))


@kernel("new_empty")
def new_empty(engine: OpenCLEngine, self: Array, size: Any, dtype: Any = None) -> Array:
    return engine.alloc(shapes.sizes(size), formats.asked(dtype, self.dtype))


@kernel("empty_strided")
def empty_strided(engine: OpenCLEngine, size: Any, stride: Any, dtype: Any = None) -> Array:
    sizes, steps, kind = shapes.sizes(size), shapes.listed(stride), formats.asked(dtype, _F32)
    count = 1 + sum((n - 1) * s for n, s in zip(sizes, steps, strict=True))
    made = engine.alloc((max(count, 1),), kind)
    return made.viewed(kind, tuple(sizes), tuple(s * kind.itemsize for s in steps))


@kernel("new_empty_strided")
def new_empty_strided(
    engine: OpenCLEngine, self: Array, size: Any, stride: Any, dtype: Any = None
) -> Array:
    return empty_strided(engine, size, stride, formats.asked(dtype, self.dtype))


@kernel("empty_permuted")
def empty_permuted(
    engine: OpenCLEngine, size: Any, physical_layout: Any, dtype: Any = None
) -> Array:
    sizes = shapes.sizes(size)
    order = shapes.order(len(sizes), physical_layout)
    made = engine.alloc(tuple(sizes[d] for d in order), formats.asked(dtype, _F32))
    return made.transpose([order.index(d) for d in range(len(order))])


# ---- copies


@kernel("clone")
def clone(engine: OpenCLEngine, self: Array) -> Array:
    return fresh(engine, self)  # whoever asks for a copy may view it in any shape


@kernel("_to_copy")
def to_copy(engine: OpenCLEngine, self: Array, dtype: Any = None) -> Array:
    return fresh(engine, self, formats.asked(dtype, self.dtype))


@kernel("copy")
def copy(engine: OpenCLEngine, self: Array, src: Array) -> Array:
    made = engine.alloc(self.shape, self.dtype)
    engine.write(made, src)
    return made


# ---- in steps


def _range(engine: OpenCLEngine, start: Any, end: Any, step: Any, dtype: Any) -> Array:
    kind = formats.asked(dtype, range_format(start, end, step))
    if formats.category(kind) != formats.INTEGER:
        given = (start, end, step, kind)
        return engine.upload(ENGINES["numpy"].call(host.arange_start_step, given, {}))
    made = engine.alloc((range_length(start, end, step, kind),), kind)
    numbers = [Number("start", int(start), "long"), Number("step", int(step), "long")]
    return compute(engine, "j * $step + $start", [], numbers, made)


@kernel("arange")
def arange(engine: OpenCLEngine, end: Any, dtype: Any = None) -> Array:
    return _range(engine, 0, end, 1, dtype)


@kernel("arange.start")
def arange_start(engine: OpenCLEngine, start: Any, end: Any, dtype: Any = None) -> Array:
    return _range(engine, start, end, 1, dtype)


@kernel("arange.start_step")
def arange_step(
    engine: OpenCLEngine, start: Any, end: Any, step: Any = 1, dtype: Any = None
) -> Array:
    return _range(engine, start, end, step, dtype)


def _made_by_host(function: Any) -> Any:
    """A few numbers in float64, rounded as torch rounds them: made on the host and sent."""

    def make(engine: OpenCLEngine, *args: Any, **kwargs: Any) -> Array:
        given = [engine.download(a) if type(a) is Array else a for a in args]
        return engine.upload(ENGINES["numpy"].call(function, given, kwargs))

    return make


for _overload in ("", ".Scalar_Tensor", ".Tensor_Scalar", ".Tensor_Tensor"):
    register(f"linspace{_overload}", _made_by_host(host.linspace))
    register(f"logspace{_overload}", _made_by_host(host.logspace))

# ---- matrices


@kernel("eye")
def eye(engine: OpenCLEngine, n: int, dtype: Any = None) -> Array:
    return eye_m(engine, n, n, dtype)


@kernel("eye.m")
def eye_m(engine: OpenCLEngine, n: int, m: int, dtype: Any = None) -> Array:
    if n < 0 or m < 0:
        raise ValueError(f"a matrix of {n} by {m} cannot be made")
    kind = formats.asked(dtype, _F32)
    made = filled(engine, (n, m), kind)
    diagonal = made.viewed(kind, (min(n, m),), ((m + 1) * kind.itemsize,))
    fill(engine, diagonal, 1)
    return made


@kernel("tril")
def tril(engine: OpenCLEngine, self: Array, diagonal: int = 0) -> Array:
    return _part(engine, self, "$column <= $row + $diagonal ? $self : (T)0", diagonal)


@kernel("triu")
def triu(engine: OpenCLEngine, self: Array, diagonal: int = 0) -> Array:
    return _part(engine, self, "$column >= $row + $diagonal ? $self : (T)0", diagonal)


def _part(engine: OpenCLEngine, array: Array, text: str, diagonal: int) -> Array:
    """A part of matrices, and zero elsewhere: as words, whatever they mean."""
    if array.ndim < 2:
        raise ValueError(f"{array.ndim} dimensions are fewer than 2")
    made = engine.alloc(array.shape, array.dtype)
    rows = _range(engine, 0, array.shape[-2], 1, None)
    columns = _range(engine, 0, array.shape[-1], 1, None)
    down = rows.viewed(rows.dtype, (array.shape[-2], 1), (8, 8))
    for one, other in zip(parts_of(made), parts_of(array), strict=True):
        inputs = [
            Input("self", other, word(one)),
            Input("row", down, "long"),
            Input("column", columns, "long"),
        ]
        compute(engine, text, inputs, [Number("diagonal", diagonal, "long")], one)
    return made
