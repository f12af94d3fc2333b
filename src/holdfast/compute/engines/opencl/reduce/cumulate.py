"""Cumulative sums, products and extremes.

float32 is accumulated in float64 if the device has it, as torch does.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy

from holdfast.compute import dtype as dtypes
from holdfast.compute.engines.opencl.index.gather_scatter import merge_dims
from holdfast.compute.engines.opencl.reduce.reduce import accumulator
from holdfast.compute.engines.opencl.runtime.array import Array, NotHere
from holdfast.compute.engines.opencl.runtime.engine_protocol import CLEngine
from holdfast.compute.engines.opencl.runtime.kernel_table import (
    check_double,
    kernel,
    register,
    storage,
    working,
)
from holdfast.compute.ops.rules import normalize_dim

_FEW = 4096  # rows, up to which a work-group each pays
_LEAST = 4096  # elements that make a work-item worthwhile on CPUs


def _run(
    engine: CLEngine, run: str, self: Array, dim: int, out: Array, type: str, place: Any = None
) -> None:
    """Launch a scan along a dimension into `out`, which is contiguous, and indices into `place`."""
    check_double(engine, type)
    axis = normalize_dim(dim, self.ndim)
    if not self.size:
        return
    values = self if self.ndim else self.view(self.dtype, (1,))
    before, after = _merge_around(values, axis)
    if before is None or after is None:
        values = engine.contiguous(values)
        before, after = _merge_around(values, axis)
    (outer, outer_step), (inner, inner_step) = before, after
    length, strides = values.shape[axis], (outer_step, values.steps[axis], inner_step)
    defines = {"IN": storage(self.dtype), "OUT": storage(out.dtype), "KIND": type, f"RUN_{run}": 1}
    if place is not None:
        defines["PLACED"] = 1
    size, group, each, way = _split_work(engine, outer * inner, length)
    call = engine.kernel("cumulate", "cumulate", GROUP=group[0], **{way: 1}, **defines)
    arrays = (values, out) if place is None else (values, out, place)
    engine.launch(call, size, group, *arrays, outer, length, inner, *strides, each)


def _merge_around(array: Array, axis: int) -> Any:
    """The dimensions before `axis`, and those after it, merged into one each."""
    before, after = slice(0, axis), slice(axis + 1, None)
    return [merge_dims(array.shape[part], array.steps[part]) for part in (before, after)]


def _split_work(engine: CLEngine, lines: int, length: int) -> tuple[Any, Any, int, str]:
    """Global size, group, rows per work-item, and the kernel variant."""
    if engine.mapping == "cpu":
        each = max(-(-lines // (engine.units * 4)), min(-(-_LEAST // length), lines))
        return (-(-lines // each),), (1,), each, "LINES"
    group = engine.group
    if lines < _FEW and length > 32:
        return (lines * group,), (group,), 1, "GROUPS"
    return (-(-lines // group) * group,), (group,), 1, "LINES"


def _wide(engine: CLEngine, kind: numpy.dtype[Any]) -> str:
    """The C type to accumulate in."""
    if dtypes.is_floating(kind):
        return "double" if engine.has_double else working(kind)
    return accumulator(kind)


def _accumulate(run: str, engine: CLEngine, self: Array, dim: int, *, dtype: Any = None) -> Array:
    kind = dtypes.dtype_or(dtype, dtypes.of_sums(self.dtype))
    if kind == dtypes.BOOL:
        raise NotHere("cumulative ops of booleans")
    if self.dtype.kind == "c" or kind.kind == "c":
        raise NotHere("complex numbers")
    if not dtypes.is_floating(kind) and dtypes.is_floating(self.dtype):
        self = engine.cast(self, kind)
    made = engine.alloc(self.shape, kind)
    _run(engine, run, self, dim, made, _wide(engine, kind))
    return made


def _extreme(run: str, engine: CLEngine, self: Array, dim: int) -> tuple[Array, Array]:
    """The running extreme, and the last index of it, or of a NaN."""
    made, place = engine.alloc(self.shape, self.dtype), engine.alloc(self.shape, dtypes.INT64)
    _run(engine, run, self, dim, made, accumulator(self.dtype), place)
    return made, place


for _run_name, _function in (
    *(("sum", _accumulate), ("prod", _accumulate)),
    *(("max", _extreme), ("min", _extreme)),
):
    register(f"cum{_run_name}", functools.partial(_function, _run_name))


@kernel("logcumsumexp")
def logcumsumexp(engine: CLEngine, self: Array, dim: int) -> Array:
    if dtypes.category(self.dtype) != dtypes.FLOATING:
        raise NotHere(f"logcumsumexp of {self.dtype}")
    made = engine.alloc(self.shape, self.dtype)
    _run(
        engine, "logaddexp", self, dim, made, "double" if engine.has_double else working(self.dtype)
    )
    return made
