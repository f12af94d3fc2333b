"""Kernels that create, copy and fill arrays.

A scalar is cast on the host, so that values out of range raise as in the NumPy engine. Float ranges
are computed on the host, bit for bit as the NumPy engine does.
"""

from __future__ import annotations

from typing import Any

import numpy

from holdfast.compute import dtype as dtypes
from holdfast.compute.engine import ENGINES
from holdfast.compute.engines.numpy.layout import factory as host
from holdfast.compute.engines.opencl.elementwise.strided_kernels import Input, Number, compute
from holdfast.compute.engines.opencl.layout.views import (
    bit_arrays,
    bits_type,
    fill,
    make_copy,
    make_full,
)
from holdfast.compute.engines.opencl.runtime.array import Array
from holdfast.compute.engines.opencl.runtime.engine_protocol import CLEngine
from holdfast.compute.engines.opencl.runtime.kernel_table import kernel, register
from holdfast.compute.ops.layout import shapes
from holdfast.compute.ops.layout.factory import range_dtype, range_length

_F32 = dtypes.FLOAT32

# ---- constant arrays


def _full(engine: CLEngine, shape: Any, value: Any, kind: numpy.dtype[Any]) -> Array:
    """A new array filled with one value. Raises what the NumPy engine raises."""
    return make_full(engine, shape, kind, ENGINES["numpy"].call(host.full, ((), value, kind), {}))


@kernel("zeros")
def zeros(engine: CLEngine, size: Any, dtype: Any = None) -> Array:
    return _full(engine, shapes.sizes(size), 0, dtypes.dtype_or(dtype, _F32))


@kernel("ones")
def ones(engine: CLEngine, size: Any, dtype: Any = None) -> Array:
    return _full(engine, shapes.sizes(size), 1, dtypes.dtype_or(dtype, _F32))


@kernel("full")
def full(engine: CLEngine, size: Any, fill_value: Any, dtype: Any = None) -> Array:
    kind = dtypes.dtype_or(dtype, dtypes.of_scalar(fill_value))
    return _full(engine, shapes.sizes(size), fill_value, kind)


@kernel("zeros_like")
def zeros_like(engine: CLEngine, self: Array, dtype: Any = None) -> Array:
    return _full(engine, self.shape, 0, dtypes.dtype_or(dtype, self.dtype))


@kernel("ones_like")
def ones_like(engine: CLEngine, self: Array, dtype: Any = None) -> Array:
    return _full(engine, self.shape, 1, dtypes.dtype_or(dtype, self.dtype))


@kernel("full_like")
def full_like(engine: CLEngine, self: Array, fill_value: Any, dtype: Any = None) -> Array:
    return _full(engine, self.shape, fill_value, dtypes.dtype_or(dtype, self.dtype))


@kernel("new_zeros")
def new_zeros(engine: CLEngine, self: Array, size: Any, dtype: Any = None) -> Array:
    return _full(engine, shapes.sizes(size), 0, dtypes.dtype_or(dtype, self.dtype))


@kernel("new_ones")
def new_ones(engine: CLEngine, self: Array, size: Any, dtype: Any = None) -> Array:
    return _full(engine, shapes.sizes(size), 1, dtypes.dtype_or(dtype, self.dtype))


@kernel("new_full")
def new_full(engine: CLEngine, self: Array, size: Any, fill_value: Any, dtype: Any = None) -> Array:
    return _full(engine, shapes.sizes(size), fill_value, dtypes.dtype_or(dtype, self.dtype))


@kernel("scalar_tensor")
def scalar_tensor(engine: CLEngine, s: Any, dtype: Any = None) -> Array:
    return _full(engine, (), s, dtypes.dtype_or(dtype, _F32))


@kernel("fill.Scalar")
def fill_scalar(engine: CLEngine, self: Array, value: Any) -> Array:
    return _full(engine, self.shape, value, self.dtype)


@kernel("fill.Tensor")
def fill_tensor(engine: CLEngine, self: Array, value: Array) -> Array:
    if value.ndim:
        raise ValueError(f"fill takes a number or a tensor without dimensions, not {value.ndim}")
    return copy(engine, self, value)


@kernel("zero")
def zero(engine: CLEngine, self: Array) -> Array:
    return _full(engine, self.shape, 0, self.dtype)


# ---- uninitialized arrays


@kernel("empty.memory_format")
def empty(engine: CLEngine, size: Any, dtype: Any = None) -> Array:
    return engine.alloc(shapes.sizes(size), dtypes.dtype_or(dtype, _F32))


@kernel("empty_like")
def empty_like(engine: CLEngine, self: Array, dtype: Any = None) -> Array:
    return engine.alloc(self.shape, dtypes.dtype_or(dtype, self.dtype))


@kernel("new_empty")
def new_empty(engine: CLEngine, self: Array, size: Any, dtype: Any = None) -> Array:
    return engine.alloc(shapes.sizes(size), dtypes.dtype_or(dtype, self.dtype))


@kernel("empty_strided")
def empty_strided(engine: CLEngine, size: Any, stride: Any, dtype: Any = None) -> Array:
    sizes, steps, kind = (shapes.sizes(size), shapes.as_list(stride), dtypes.dtype_or(dtype, _F32))
    count = 1 + sum((n - 1) * s for n, s in zip(sizes, steps, strict=True))
    made = engine.alloc((max(count, 1),), kind)
    return made.view(kind, tuple(sizes), tuple(s * kind.itemsize for s in steps))


@kernel("new_empty_strided")
def new_empty_strided(
    engine: CLEngine, self: Array, size: Any, stride: Any, dtype: Any = None
) -> Array:
    return empty_strided(engine, size, stride, dtypes.dtype_or(dtype, self.dtype))


@kernel("empty_permuted")
def empty_permuted(engine: CLEngine, size: Any, physical_layout: Any, dtype: Any = None) -> Array:
    sizes = shapes.sizes(size)
    order = shapes.order(len(sizes), physical_layout)
    made = engine.alloc(tuple(sizes[d] for d in order), dtypes.dtype_or(dtype, _F32))
    return made.transpose([order.index(d) for d in range(len(order))])


# ---- copies


@kernel("clone")
def clone(engine: CLEngine, self: Array) -> Array:
    return make_copy(engine, self)  # callers may view the copy in any shape


@kernel("_to_copy")
def to_copy(engine: CLEngine, self: Array, dtype: Any = None) -> Array:
    return make_copy(engine, self, dtypes.dtype_or(dtype, self.dtype))


@kernel("copy")
def copy(engine: CLEngine, self: Array, src: Array) -> Array:
    made = engine.alloc(self.shape, self.dtype)
    engine.write(made, src)
    return made


# ---- ranges


def _range(engine: CLEngine, start: Any, end: Any, step: Any, dtype: Any) -> Array:
    kind = dtypes.dtype_or(dtype, range_dtype(start, end, step))
    if dtypes.category(kind) != dtypes.INTEGER:
        given = (start, end, step, kind)
        return engine.upload(ENGINES["numpy"].call(host.arange_start_step, given, {}))
    made = engine.alloc((range_length(start, end, step, kind),), kind)
    numbers = [Number("start", int(start), "long"), Number("step", int(step), "long")]
    return compute(engine, "j * $step + $start", [], numbers, made)


@kernel("arange")
def arange(engine: CLEngine, end: Any, dtype: Any = None) -> Array:
    return _range(engine, 0, end, 1, dtype)


@kernel("arange.start")
def arange_start(engine: CLEngine, start: Any, end: Any, dtype: Any = None) -> Array:
    return _range(engine, start, end, 1, dtype)


@kernel("arange.start_step")
def arange_step(engine: CLEngine, start: Any, end: Any, step: Any = 1, dtype: Any = None) -> Array:
    return _range(engine, start, end, step, dtype)


def _compute_on_host(function: Any) -> Any:
    """Compute a range in float64 on the host, rounded as torch rounds it, and upload it."""

    def make(engine: CLEngine, *args: Any, **kwargs: Any) -> Array:
        given = [engine.download(a) if type(a) is Array else a for a in args]
        return engine.upload(ENGINES["numpy"].call(function, given, kwargs))

    return make


for _overload in ("", ".Scalar_Tensor", ".Tensor_Scalar", ".Tensor_Tensor"):
    register(f"linspace{_overload}", _compute_on_host(host.linspace))
    register(f"logspace{_overload}", _compute_on_host(host.logspace))

# ---- matrices


@kernel("eye")
def eye(engine: CLEngine, n: int, dtype: Any = None) -> Array:
    return eye_m(engine, n, n, dtype)


@kernel("eye.m")
def eye_m(engine: CLEngine, n: int, m: int, dtype: Any = None) -> Array:
    if n < 0 or m < 0:
        raise ValueError(f"a matrix of {n} by {m} cannot be made")
    kind = dtypes.dtype_or(dtype, _F32)
    made = make_full(engine, (n, m), kind)
    diagonal = made.view(kind, (min(n, m),), ((m + 1) * kind.itemsize,))
    fill(engine, diagonal, 1)
    return made


@kernel("tril")
def tril(engine: CLEngine, self: Array, diagonal: int = 0) -> Array:
    return _triangle(engine, self, "$column <= $row + $diagonal ? $self : (T)0", diagonal)


@kernel("triu")
def triu(engine: CLEngine, self: Array, diagonal: int = 0) -> Array:
    return _triangle(engine, self, "$column >= $row + $diagonal ? $self : (T)0", diagonal)


def _triangle(engine: CLEngine, array: Array, text: str, diagonal: int) -> Array:
    """A triangular part, zero elsewhere; moved as bits, so for any dtype."""
    if array.ndim < 2:
        raise ValueError(f"{array.ndim} dimensions are fewer than 2")
    made = engine.alloc(array.shape, array.dtype)
    rows = _range(engine, 0, array.shape[-2], 1, None)
    columns = _range(engine, 0, array.shape[-1], 1, None)
    down = rows.view(rows.dtype, (array.shape[-2], 1), (8, 8))
    for one, other in zip(bit_arrays(made), bit_arrays(array), strict=True):
        inputs = [
            Input("self", other, bits_type(one)),
            Input("row", down, "long"),
            Input("column", columns, "long"),
        ]
        compute(engine, text, inputs, [Number("diagonal", diagonal, "long")], one)
    return made
