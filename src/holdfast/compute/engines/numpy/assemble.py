"""Kernels that put arrays together or turn them round."""

from __future__ import annotations

from typing import Any

import numpy

from holdfast.compute.engines.numpy.kernels import kernel
from holdfast.compute.engines.numpy.views import diagonal
from holdfast.compute.ops import shapes
from holdfast.compute.ops.assemble import joined_format
from holdfast.compute.ops.rules import normalized_dim


@kernel("cat")
def cat(tensors: Any, dim: int = 0) -> Any:
    shape = shapes.joined([t.shape for t in tensors], dim)
    kind, place = joined_format(tensors), normalized_dim(dim, len(shape))
    real = [t for t in tensors if t.ndim == len(shape)]
    if all(t.dtype == kind for t in real):
        return numpy.concatenate(real, place)
    return numpy.concatenate([t.astype(kind, copy=False) for t in real], place)


@kernel("stack")
def stack(tensors: Any, dim: int = 0) -> Any:
    shape = shapes.stacked([t.shape for t in tensors], dim)
    made = numpy.empty(shape, joined_format(tensors))
    lines = numpy.moveaxis(made, shapes.new_dim(dim, len(shape) - 1), 0)
    for place, one in enumerate(tensors):
        lines[place] = one
    return made


@kernel("_chunk_cat")
def chunk_cat(tensors: Any, dim: int, num_chunks: int) -> Any:
    """Every tensor in `num_chunks` flat parts, filled up with zeros; the parts side by side."""
    if num_chunks < 1 or not tensors or not all(one.size for one in tensors):
        raise ValueError("tensors with numbers in them, and one chunk or more, are needed")
    parts = []
    for one in tensors:
        place = normalized_dim(dim, one.ndim)
        lead = one.shape[:place]
        length = -(-one.shape[place] // num_chunks)
        made = numpy.zeros((*lead, num_chunks * length, *one.shape[place + 1 :]), one.dtype)
        made[(*(slice(None),) * place, slice(0, one.shape[place]))] = one
        parts.append(made.reshape(*lead, num_chunks, -1))
    return numpy.concatenate(parts, -1)


@kernel("repeat")
def repeat(self: Any, repeats: Any) -> Any:
    shapes.repeated(self.shape, repeats)
    return numpy.tile(self, shapes.listed(repeats))


@kernel("flip")
def flip(self: Any, dims: Any) -> Any:
    places = [normalized_dim(d, self.ndim) for d in shapes.listed(dims)]
    if len(set(places)) != len(places):
        raise ValueError(f"{dims} names a dimension twice")
    turned = [slice(None, None, -1) if d in places else slice(None) for d in range(self.ndim)]
    return self[(*turned, ...)].copy(order="C")


@kernel("roll")
def roll(self: Any, shifts: Any, dims: Any = ()) -> Any:
    by, places = shapes.listed(shifts), shapes.listed(dims)
    if not places and len(by) == 1:
        return numpy.roll(self, by[0])
    if len(by) != len(places) or not by:
        raise ValueError(f"{len(by)} shifts for {len(places)} dimensions")
    places = [shapes.existing(self.shape, d) for d in places]
    return numpy.roll(self, by, places) if self.size else self.copy()


@kernel("rot90")
def rot90(self: Any, k: int = 1, dims: Any = (0, 1)) -> Any:
    if len(dims) != 2:
        raise ValueError(f"a turn has two dimensions, not {len(dims)}")
    one, other = shapes.two_dims(self.shape, *dims)
    return numpy.rot90(self, k, (one, other)).copy(order="C")


@kernel("diag_embed")
def diag_embed(self: Any, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Any:
    made = numpy.zeros(shapes.embedded(self.shape, offset, dim1, dim2), self.dtype)
    diagonal(made, offset, dim1, dim2)[...] = self
    return made
