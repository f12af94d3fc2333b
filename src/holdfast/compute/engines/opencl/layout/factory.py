"""Kernels that create, copy and fill arrays.

A scalar is cast on the host, so that values out of range raise as in the NumPy engine. Float ranges
are computed on the host, bit for bit as the NumPy engine does.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy

from holdfast.compute import dtype as dtypes
from holdfast.compute.engine import ENGINES
from holdfast.compute.engines.layout.factories import factory_kernels
from holdfast.compute.engines.numpy.layout import factory as host
from holdfast.compute.engines.opencl.elementwise.strided_kernels import Input, Number, compute
from holdfast.compute.engines.opencl.layout.views import bit_arrays, bits_type, make_copy, make_full
from holdfast.compute.engines.opencl.runtime.array import Array
from holdfast.compute.engines.opencl.runtime.engine_protocol import CLEngine
from holdfast.compute.engines.opencl.runtime.kernel_table import kernel, register
from holdfast.compute.ops.layout.factory import range_dtype, range_length


def _full(engine: CLEngine, shape: Any, value: Any, kind: numpy.dtype[Any]) -> Array:
    """A new array filled with one value. Raises what the NumPy engine raises."""
    return make_full(engine, shape, kind, ENGINES["numpy"].call(host.full, ((), value, kind), {}))


def _arange(engine: CLEngine, start: Any, end: Any, step: Any, dtype: Any) -> Array:
    kind = dtypes.dtype_or(dtype, range_dtype(start, end, step))
    if dtypes.category(kind) != dtypes.INTEGER:
        return engine.upload(ENGINES["numpy"].call(host.arange, (start, end, step, kind), {}))
    made = engine.alloc((range_length(start, end, step, kind),), kind)
    numbers = [Number("start", int(start), "long"), Number("step", int(step), "long")]
    return compute(engine, "j * $step + $start", [], numbers, made)


def _eye(engine: CLEngine, n: int, m: int, kind: numpy.dtype[Any]) -> Array:
    made = make_full(engine, (n, m), kind)
    made.view(kind, (min(n, m),), ((m + 1) * kind.itemsize,)).fill(1)
    return made


def _factories(engine: CLEngine) -> dict[str, Any]:
    if not engine.factories:
        full, arange, eye = (functools.partial(f, engine) for f in (_full, _arange, _eye))
        zeros, ones = (lambda shape, kind, v=v: full(shape, v, kind) for v in (0, 1))
        engine.factories |= factory_kernels(zeros, ones, engine.alloc, full, arange, eye)
    return engine.factories


def _register(name: str) -> None:
    register(name, lambda engine, *args, **named: _factories(engine)[name](*args, **named))


for _name in host.FACTORIES:
    _register(_name)

# ---- copies


@kernel("clone", "_to_copy")
def to_copy(engine: CLEngine, self: Array, dtype: Any = None) -> Array:
    return make_copy(engine, self, dtypes.dtype_or(dtype, self.dtype))


@kernel("copy", "fill.Tensor")
def copy(engine: CLEngine, self: Array, value: Array) -> Array:
    made = engine.alloc(self.shape, self.dtype)
    engine.write(made, value)
    return made


# ---- ranges


def _compute_on_host(function: Any) -> Any:
    """Compute a range in float64 on the host, rounded as torch rounds it, and upload it."""

    def make(engine: CLEngine, *args: Any, **kwargs: Any) -> Array:
        given = [engine.download(a) if type(a) is Array else a for a in args]
        return engine.upload(ENGINES["numpy"].call(function, given, kwargs))

    return make


for _overload in ("", ".Scalar_Tensor", ".Tensor_Scalar", ".Tensor_Tensor"):
    register(f"linspace{_overload}", _compute_on_host(host.linspace))
    register(f"logspace{_overload}", _compute_on_host(host.logspace))


def _triangle(sign: str, engine: CLEngine, self: Array, diagonal: int = 0) -> Array:
    """A triangular part, zero elsewhere; moved as bits, so for any dtype."""
    if self.ndim < 2:
        raise ValueError(f"{self.ndim} dimensions are fewer than 2")
    text = f"$column {sign} $row + $diagonal ? $self : (T)0"
    made = engine.alloc(self.shape, self.dtype)
    rows = _arange(engine, 0, self.shape[-2], 1, None)
    columns = _arange(engine, 0, self.shape[-1], 1, None)
    down = rows.view(rows.dtype, (self.shape[-2], 1), (8, 8))
    for one, other in zip(bit_arrays(made), bit_arrays(self), strict=True):
        inputs = [
            Input("self", other, bits_type(one)),
            Input("row", down, "long"),
            Input("column", columns, "long"),
        ]
        compute(engine, text, inputs, [Number("diagonal", diagonal, "long")], one)
    return made


register("tril", functools.partial(_triangle, "<="))
register("triu", functools.partial(_triangle, ">="))
