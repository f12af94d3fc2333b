"""Distances between all pairs of rows.

The square of a difference is expanded only where torch does it too.
"""

from __future__ import annotations

import math
from typing import Any

import numpy

from holdfast.compute.engines.numpy.kernels import cast, kernel, to_floating, widen
from holdfast.compute.engines.numpy.reduce.axes import spans
from holdfast.compute.engines.numpy.reduce.norm import p_norm

_MANY = 25  # rows; for more, torch expands the square


def _euclidean(x1: Any, x2: Any) -> Any:
    one = numpy.add.reduce(x1 * x1, axis=-1)[..., :, None]
    other = numpy.add.reduce(x2 * x2, axis=-1)[..., None, :]
    found = numpy.matmul(x1 * x1.dtype.type(-2), numpy.swapaxes(x2, -1, -2))
    found = found + one + other
    return numpy.sqrt(numpy.maximum(found, 0, out=found), out=found)


def _pairs(x1: Any, x2: Any) -> tuple[Any, Any, tuple[int, ...]]:
    """Both arrays with one flat batch dimension, and the shape of the batch."""
    batch = numpy.broadcast_shapes(x1.shape[:-2], x2.shape[:-2])
    one, other = (numpy.broadcast_to(x, batch + x.shape[-2:]) for x in (x1, x2))
    count = math.prod(batch)
    return one.reshape(count, *x1.shape[-2:]), other.reshape(count, *x2.shape[-2:]), batch


@kernel("_cdist_forward")
def cdist(x1: Any, x2: Any, p: float, compute_mode: Any) -> Any:
    one, other, batch = _pairs(to_floating(x1), to_floating(x2))
    rows, columns, width = one.shape[1], other.shape[1], one.shape[2]
    many = rows > _MANY or columns > _MANY
    if p == 2 and (compute_mode == 1 or (compute_mode in (None, 0) and many)) and width:
        made = _euclidean(one, other)
    else:
        made = numpy.zeros((one.shape[0], rows, columns), one.dtype)
        for sheet in range(one.shape[0]):
            for part in spans(rows, columns * width) if width and columns else ():
                apart = one[sheet, part, None, :] - other[sheet, None]
                made[sheet, part] = p_norm(apart, p, (2,))
    return cast(made.reshape(*batch, rows, columns), x1.dtype)


def _distance_gradient(apart: Any, size: Any, grad: Any, p: float) -> Any:
    """Gradients for the differences `apart`, [..., pair, width]."""
    if p == 0:
        return numpy.zeros_like(apart)
    if p == 1:
        return numpy.sign(apart) * grad
    if math.isinf(p):
        return numpy.sign(apart) * (numpy.abs(apart) == size) * grad
    with numpy.errstate(divide="ignore", invalid="ignore", over="ignore"):
        if p == 2:
            return apart * numpy.where(size == 0, 0, grad / size)
        scale = numpy.where(size == 0, 0, grad / numpy.power(size, size.dtype.type(p - 1)))
        inner = numpy.sign(apart) * numpy.power(numpy.abs(apart), apart.dtype.type(p - 1))
        return numpy.where(apart == 0, apart.dtype.type(0), inner) * scale


@kernel("_cdist_backward")
def cdist_backward(grad: Any, x1: Any, x2: Any, p: float, cdist: Any) -> Any:
    one, other, batch = _pairs(to_floating(x1), to_floating(x2))
    rows, columns, width = one.shape[1], other.shape[1], one.shape[2]
    grads = numpy.broadcast_to(widen(grad), (*batch, rows, columns))
    grads = grads.reshape(one.shape[0], rows, columns, 1)
    sizes = numpy.broadcast_to(widen(cdist), (*batch, rows, columns)).reshape(grads.shape)
    made = numpy.zeros(one.shape, one.dtype)
    for sheet in range(one.shape[0]):
        for part in spans(rows, columns * width) if width and columns else ():
            apart = one[sheet, part, None, :] - other[sheet, None]
            slopes = _distance_gradient(apart, sizes[sheet, part], grads[sheet, part], p)
            made[sheet, part] = numpy.add.reduce(slopes, axis=1)
    return cast(made.reshape(*batch, rows, width), x1.dtype)


@kernel("_pdist_forward")
def pdist(self: Any, p: float = 2.0) -> Any:
    one, other = numpy.triu_indices(self.shape[0], 1)
    values = to_floating(self)
    made = numpy.zeros(one.size, values.dtype)
    for part in spans(one.size, self.shape[1]) if self.shape[1] else ():
        made[part] = p_norm(values[one[part]] - values[other[part]], p, (1,))
    return cast(made, self.dtype)


@kernel("_pdist_backward")
def pdist_backward(grad: Any, self: Any, p: float, pdist: Any) -> Any:
    values = to_floating(self)
    one, other = numpy.triu_indices(self.shape[0], 1)
    apart = values[one] - values[other]
    slopes = _distance_gradient(apart, widen(pdist)[:, None], widen(grad)[:, None], p)
    square = numpy.zeros((self.shape[0], self.shape[0], self.shape[1]), values.dtype)
    square[one, other] = slopes
    square[other, one] = -slopes
    return cast(numpy.add.reduce(square, axis=1), self.dtype)
