"""Kernels that run along a dimension: running sums, products and extremes.

Covers: the ops, their formats, how lines are shared out.
Leaves to others: the loops (kernels/cumulate.cl), segments and complex numbers (the host).
Promise: float32 runs are added and multiplied in float64 where the device has it, as torch does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy

from holdfast.compute import dtype as formats
from holdfast.compute.engines.opencl.array import Array, NotHere
from holdfast.compute.engines.opencl.kernels import kernel, storage, working
from holdfast.compute.engines.opencl.placing import as_one
from holdfast.compute.engines.opencl.reduce import accumulator
from holdfast.compute.ops.rules import normalized_dim

if TYPE_CHECKING:
    from holdfast.compute.engines.opencl.engine import OpenCLEngine

_FEW = 4096  # lines for which a group each is worth it there
_LEAST = 4096  # numbers that are worth a work-item on CPUs


def _run(
    engine: OpenCLEngine, run: str, self: Array, dim: int, out: Array, type: str, place: Any = None
) -> None:
    """Launch a run along a dimension into `out`, which is contiguous, and `place`."""
    if type == "double" and not engine.has_double:
        raise NotHere("no float64 on this device")
    axis = normalized_dim(dim, self.ndim)
    if not self.size:
        return
    values = self if self.ndim else self.viewed(self.dtype, (1,))
    before, after = _around(values, axis)
    if before is None or after is None:
        values = engine.contiguous(values)
        before, after = _around(values, axis)
    (outer, outer_step), (inner, inner_step) = before, after
    length, strides = values.shape[axis], (outer_step, values.steps[axis], inner_step)
    defines = {"IN": storage(self.dtype), "OUT": storage(out.dtype), "KIND": type, f"RUN_{run}": 1}
    if place is not None:
        defines["PLACED"] = 1
    size, group, each, way = _share(engine, outer * inner, length)
    call = engine.kernel("cumulate", "cumulate", GROUP=group[0], **{way: 1}, **defines)
    arrays = (values, out) if place is None else (values, out, place)
    engine.launch(call, size, group, *arrays, outer, length, inner, *strides, each)


def _around(array: Array, axis: int) -> Any:
    """The dimensions before `axis`, and those after it, as one each."""
    before, after = slice(0, axis), slice(axis + 1, None)
    return [as_one(array.shape[part], array.steps[part]) for part in (before, after)]


def _share(engine: OpenCLEngine, lines: int, length: int) -> tuple[Any, Any, int, str]:
    """Global size, group, lines for a work-item, and the way."""
    if engine.mapping == "cpu":
        each = max(-(-lines // (engine.units * 4)), min(-(-_LEAST // length), lines))
        return (-(-lines // each),), (1,), each, "LINES"
    group = engine.group
    if lines < _FEW and length > 32:
        return (lines * group,), (group,), 1, "GROUPS"
    return (-(-lines // group) * group,), (group,), 1, "LINES"


def _wide(engine: OpenCLEngine, kind: numpy.dtype[Any]) -> str:
    """The C type that runs are computed in."""
    if formats.is_floating(kind):
        return "double" if engine.has_double else working(kind)
    return accumulator(kind)


def _added(engine: OpenCLEngine, run: str, self: Array, dim: int, dtype: Any) -> Array:
    kind = formats.asked(dtype, formats.of_sums(self.dtype))
    if kind == formats.BOOL:
        raise NotHere("runs of truth values")
    if self.dtype.kind == "c" or kind.kind == "c":
        raise NotHere("complex numbers")
    if not formats.is_floating(kind) and formats.is_floating(self.dtype):
        self = engine.cast(self, kind)
    made = engine.alloc(self.shape, kind)
    _run(engine, run, self, dim, made, _wide(engine, kind))
    return made


@kernel("cumsum")
def cumsum(engine: OpenCLEngine, self: Array, dim: int, *, dtype: Any = None) -> Array:
    return _added(engine, "sum", self, dim, dtype)


@kernel("cumprod")
def cumprod(engine: OpenCLEngine, self: Array, dim: int, *, dtype: Any = None) -> Array:
    return _added(engine, "prod", self, dim, dtype)


def _extreme(engine: OpenCLEngine, run: str, self: Array, dim: int) -> tuple[Array, Array]:
    """The extreme up to here, and the last place of it, or of a NaN."""
    if self.dtype.kind == "c":
        raise TypeError("complex numbers have no order")
    made, place = engine.alloc(self.shape, self.dtype), engine.alloc(self.shape, formats.INT64)
    _run(engine, run, self, dim, made, accumulator(self.dtype), place)
    return made, place


@kernel("cummax")
def cummax(engine: OpenCLEngine, self: Array, dim: int) -> Any:
    return _extreme(engine, "max", self, dim)


@kernel("cummin")
def cummin(engine: OpenCLEngine, self: Array, dim: int) -> Any:
    return _extreme(engine, "min", self, dim)


@kernel("logcumsumexp")
def logcumsumexp(engine: OpenCLEngine, self: Array, dim: int) -> Array:
    if formats.category(self.dtype) != formats.FLOATING:
        raise NotHere(f"logcumsumexp of {self.dtype}")
    made = engine.alloc(self.shape, self.dtype)
    _run(
        engine, "logaddexp", self, dim, made, "double" if engine.has_double else working(self.dtype)
    )
    return made
