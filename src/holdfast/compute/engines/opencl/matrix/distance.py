"""Pairwise distances of rows, and the gradient of cdist.

Differences are taken before they are squared, which is more precise than torch's way.
"""

from __future__ import annotations

import math
from typing import Any

import numpy

from holdfast.compute import dtype as dtypes
from holdfast.compute.engines.opencl.index.gather_scatter import launch_over, take_at
from holdfast.compute.engines.opencl.layout.views import make_full, to_shape
from holdfast.compute.engines.opencl.runtime.array import Array, NotHere
from holdfast.compute.engines.opencl.runtime.engine_protocol import CLEngine
from holdfast.compute.engines.opencl.runtime.kernel_table import kernel, working

_KINDS = {0.0: 0, 1.0: 1, 2.0: 2, math.inf: 3}


def _working_dtype(engine: CLEngine, array: Array) -> Any:
    kind = dtypes.working(dtypes.with_fractions(array.dtype))
    if kind.kind == "c" or (kind == dtypes.FLOAT64 and not engine.has_double):
        raise NotHere(f"distances in {kind}")
    return kind


def _launch(
    engine: CLEngine, function: str, made: Array, p: float, arrays: list[Array], *sizes: int
) -> None:
    kernel = engine.kernel("spans distance", function, WORK=working(made.dtype))
    power = _KINDS.get(float(p), 4), made.dtype.type(p)
    launch_over(engine, kernel, made.size, made, *arrays, *sizes, *power)


def _flatten_batches(
    engine: CLEngine, x1: Array, x2: Array, work: Any
) -> tuple[Array, Array, tuple[int, ...]]:
    """Both with one flat batch dimension, and the batch shape."""
    batch = numpy.broadcast_shapes(x1.shape[:-2], x2.shape[:-2])
    whole = [engine.contiguous(x.broadcast_to(batch + x.shape[-2:]), work) for x in (x1, x2)]
    one, other = (to_shape(engine, x, (math.prod(batch), *x.shape[-2:])) for x in whole)
    return one, other, batch


def _compute_distances(engine: CLEngine, one: Array, other: Array, p: float) -> Array:
    sheets, rows, width = one.shape
    made = engine.alloc((sheets, rows, other.shape[1]), one.dtype)
    if made.size:
        sizes = sheets, rows, other.shape[1], width
        _launch(engine, "distances", made, p, [one, other], *sizes)
    return made


@kernel("_cdist_forward")
def cdist(engine: CLEngine, x1: Array, x2: Array, p: float, compute_mode: Any) -> Array:
    one, other, batch = _flatten_batches(engine, x1, x2, _working_dtype(engine, x1))
    made = _compute_distances(engine, one, other, p)
    made = made.view(made.dtype, (*batch, *made.shape[1:]))
    return engine.cast(made, x1.dtype)


@kernel("_cdist_backward")
def cdist_backward(
    engine: CLEngine, grad: Array, x1: Array, x2: Array, p: float, cdist: Array
) -> Array:
    work = _working_dtype(engine, x1)
    one, other, batch = _flatten_batches(engine, x1, x2, work)
    sheets, rows, width = one.shape
    columns = other.shape[1]
    made = engine.alloc(one.shape, work)
    if not made.size:
        return engine.cast(made, x1.dtype).view(x1.dtype, (*batch, rows, width))
    pairs = (*batch, rows, columns)
    given = [engine.contiguous(a.broadcast_to(pairs), work) for a in (grad, cdist)]
    arrays = [given[0], one, other, given[1]]
    _launch(engine, "distances_back", made, p, arrays, sheets, rows, columns, width)
    return engine.cast(made.view(work, (*batch, rows, width)), x1.dtype)


@kernel("_pdist_forward")
def pdist(engine: CLEngine, self: Array, p: float = 2.0) -> Array:
    one, _, _ = _flatten_batches(engine, self, self, _working_dtype(engine, self))
    if self.shape[0] < 2:
        return make_full(engine, (0,), self.dtype)
    square = _compute_distances(engine, one, one, p)
    first, second = numpy.triu_indices(self.shape[0], 1)
    places = engine.upload(first * self.shape[0] + second)
    flat = square.view(square.dtype, (square.size,))
    return engine.cast(take_at(engine, flat, 0, [places]), self.dtype)
