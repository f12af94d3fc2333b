"""Kernels: norms of vectors."""

from __future__ import annotations

import math
from typing import Any

import numpy

from holdfast.compute import dtype as formats
from holdfast.compute.engines.numpy.kernels import kernel
from holdfast.compute.ops.rules import normalized_dims


@kernel("linalg_vector_norm")
def vector_norm(
    self: Any, ord: Any = 2, dim: Any = None, keepdim: bool = False, dtype: Any = None
) -> Any:
    kind = self.dtype if dtype is None else formats.dtype(dtype)
    if formats.category(kind) < formats.FLOATING:
        raise TypeError(f"{kind} has no fractions")
    array = self.astype(formats.working(kind), copy=False)
    axis = normalized_dims(dim, array.ndim) if array.ndim else ()
    if not array.size and (ord < 0 or ord == math.inf):
        _refuse_nothing(array, axis, ord)
    found = _norm(array, float(ord), axis, keepdim)
    return numpy.asarray(found).astype(formats.real_of(kind), copy=False)


def _norm(array: Any, order: float, axis: Any, keepdim: bool) -> Any:
    if order == 2:
        flat = array.dtype.kind == "f" and len(axis) == array.ndim and not keepdim
        if flat and array.flags.c_contiguous:
            line = array.reshape(-1)
            return numpy.sqrt(numpy.dot(line, line))
        square = array * array if array.dtype.kind == "f" else _square(array)
        return numpy.sqrt(square.sum(axis, keepdims=keepdim))
    if order == 0:
        return numpy.count_nonzero(array, axis, keepdims=keepdim) if array.ndim else array != 0
    size = numpy.abs(array)
    if order == 1:
        return size.sum(axis, keepdims=keepdim)
    if math.isinf(order):
        return (size.max if order > 0 else size.min)(axis, keepdims=keepdim)
    with numpy.errstate(divide="ignore"):
        total = numpy.power(size, size.dtype.type(order)).sum(axis, keepdims=keepdim)
        return numpy.power(total, total.dtype.type(1 / order))


def _square(array: Any) -> Any:
    return array.real * array.real + array.imag * array.imag


def _refuse_nothing(array: Any, axis: Any, order: Any) -> None:
    if not all(array.shape[d] for d in axis):
        raise ValueError(f"the norm of order {order} of no numbers is not defined")
