"""Joining, repeating, flipping and rolling arrays."""

from __future__ import annotations

from typing import Any

import numpy

from holdfast.compute.engines.numpy.kernels import kernel
from holdfast.compute.engines.numpy.layout.views import diagonal
from holdfast.compute.ops.layout import shapes
from holdfast.compute.ops.layout.assemble import joined_dtype
from holdfast.compute.ops.rules import normalize_dim


@kernel("cat")
def cat(tensors: Any, dim: int = 0) -> Any:
    shape = shapes.cat([t.shape for t in tensors], dim)
    kind, axis = joined_dtype(tensors), normalize_dim(dim, len(shape))
    real = [t for t in tensors if t.ndim == len(shape)]
    if all(t.dtype == kind for t in real):
        return numpy.concatenate(real, axis)
    return numpy.concatenate([t.astype(kind, copy=False) for t in real], axis)


@kernel("stack")
def stack(tensors: Any, dim: int = 0) -> Any:
    shape = shapes.stack([t.shape for t in tensors], dim)
    made = numpy.empty(shape, joined_dtype(tensors))
    lines = numpy.moveaxis(made, shapes.new_dim(dim, len(shape) - 1), 0)
    for index, one in enumerate(tensors):
        lines[index] = one
    return made


@kernel("_chunk_cat")
def chunk_cat(tensors: Any, dim: int, num_chunks: int) -> Any:
    """Split each tensor into `num_chunks` flat chunks, padded with zeros; concatenate them."""
    if num_chunks < 1 or not tensors or not all(one.size for one in tensors):
        raise ValueError("non-empty tensors and at least one chunk are needed")
    parts = []
    for one in tensors:
        axis = normalize_dim(dim, one.ndim)
        lead = one.shape[:axis]
        length = -(-one.shape[axis] // num_chunks)
        made = numpy.zeros((*lead, num_chunks * length, *one.shape[axis + 1 :]), one.dtype)
        made[(*(slice(None),) * axis, slice(0, one.shape[axis]))] = one
        parts.append(made.reshape(*lead, num_chunks, -1))
    return numpy.concatenate(parts, -1)


@kernel("repeat")
def repeat(self: Any, repeats: Any) -> Any:
    shapes.repeat(self.shape, repeats)
    return numpy.tile(self, shapes.as_list(repeats))


@kernel("flip")
def flip(self: Any, dims: Any) -> Any:
    axes = [normalize_dim(d, self.ndim) for d in shapes.as_list(dims)]
    if len(set(axes)) != len(axes):
        raise ValueError(f"{dims} names a dimension twice")
    flipped = [slice(None, None, -1) if d in axes else slice(None) for d in range(self.ndim)]
    return self[(*flipped, ...)].copy(order="C")


@kernel("roll")
def roll(self: Any, shifts: Any, dims: Any = ()) -> Any:
    by, axes = shapes.as_list(shifts), shapes.as_list(dims)
    if not axes and len(by) == 1:
        return numpy.roll(self, by[0])
    if len(by) != len(axes) or not by:
        raise ValueError(f"{len(by)} shifts for {len(axes)} dimensions")
    axes = [shapes.existing_dim(self.shape, d) for d in axes]
    return numpy.roll(self, by, axes) if self.size else self.copy()


@kernel("rot90")
def rot90(self: Any, k: int = 1, dims: Any = (0, 1)) -> Any:
    if len(dims) != 2:
        raise ValueError(f"rot90 takes two dimensions, not {len(dims)}")
    one, other = shapes.two_dims(self.shape, *dims)
    return numpy.rot90(self, k, (one, other)).copy(order="C")


@kernel("diag_embed")
def diag_embed(self: Any, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Any:
    made = numpy.zeros(shapes.diag_embed(self.shape, offset, dim1, dim2), self.dtype)
    diagonal(made, offset, dim1, dim2)[...] = self
    return made
