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


def _kernel(engine: CLEngine, function: str, work: Any) -> Any:
    return engine.kernel("spans distance", function, WORK=working(work))


def _flatten_batches(
    engine: CLEngine, x1: Array, x2: Array, work: Any
) -> tuple[Array, Array, tuple[int, ...]]:
    """Both with one flat batch dimension, and the batch shape."""
    if x1.ndim < 2 or x2.ndim < 2 or x1.shape[-1] != x2.shape[-1]:
        raise ValueError("distances are between rows of equal length, in at least 2 dimensions")
    batch = numpy.broadcast_shapes(x1.shape[:-2], x2.shape[:-2])
    one, other = (
        to_shape(
            engine,
            engine.contiguous(x.broadcast_to(batch + x.shape[-2:]), work),
            (math.prod(batch), *x.shape[-2:]),
        )
        for x in (x1, x2)
    )
    return one, other, batch


def _compute_distances(engine: CLEngine, one: Array, other: Array, p: float) -> Array:
    sheets, rows, width = one.shape
    made = engine.alloc((sheets, rows, other.shape[1]), one.dtype)
    if made.size:
        launch_over(
            engine, _kernel(engine, "distances", one.dtype), made.size, made, one, other,
            sheets, rows, other.shape[1], width, _KINDS.get(float(p), 4), one.dtype.type(p),
        )  # fmt: skip
    return made


@kernel("_cdist_forward")
def cdist(engine: CLEngine, x1: Array, x2: Array, p: float, compute_mode: Any) -> Array:
    if p < 0:
        raise ValueError(f"p is not negative; it is {p}")
    one, other, batch = _flatten_batches(engine, x1, x2, _working_dtype(engine, x1))
    made = _compute_distances(engine, one, other, p)
    made = made.view(made.dtype, (*batch, *made.shape[1:]))
    return engine.cast(made, x1.dtype)


@kernel("_euclidean_dist")
def euclidean_dist(engine: CLEngine, x1: Array, x2: Array) -> Array:
    kind = dtypes.result_type(x1, x2)
    return engine.cast(cdist(engine, engine.cast(x1, kind), engine.cast(x2, kind), 2.0, 2), kind)


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
    launch_over(
        engine, _kernel(engine, "distances_back", work), made.size, made, given[0], one, other,
        given[1], sheets, rows, columns, width, _KINDS.get(float(p), 4), work.type(p),
    )  # fmt: skip
    return engine.cast(made.view(work, (*batch, rows, width)), x1.dtype)


@kernel("_pdist_forward")
def pdist(engine: CLEngine, self: Array, p: float = 2.0) -> Array:
    if self.ndim != 2:
        raise ValueError(f"pdist takes a matrix, not {self.ndim} dimensions")
    if p < 0:
        raise ValueError(f"p is not negative; it is {p}")
    one, _, _ = _flatten_batches(engine, self, self, _working_dtype(engine, self))
    if self.shape[0] < 2:
        return make_full(engine, (0,), self.dtype)
    square = _compute_distances(engine, one, one, p)
    first, second = numpy.triu_indices(self.shape[0], 1)
    places = engine.upload(first * self.shape[0] + second)
    flat = square.view(square.dtype, (square.size,))
    return engine.cast(take_at(engine, flat, 0, [places]), self.dtype)
