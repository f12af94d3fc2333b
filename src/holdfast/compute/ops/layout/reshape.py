"""Shape functions made of views and copies: reshape, flatten, movedim, tile, diag …

What is a view in torch is a view here.
"""

from __future__ import annotations

import math
from typing import Any

import numpy

from holdfast.compute import functional as F
from holdfast.compute.ops.elementwise.complex_numbers import conjugate
from holdfast.compute.ops.layout import shapes
from holdfast.compute.ops.rules import LIKE_SELF, normalize_dim, reshaped
from holdfast.compute.ops.table import composite, composites, op

op("reshape(Tensor(a) self, int[] shape) -> Tensor(a)", reshaped(shapes.view, "shape"),
   {"self": "reshape(grad, self.shape)"})  # fmt: skip
op("contiguous(Tensor(a) self) -> Tensor(a)", LIKE_SELF, {"self": "grad"})


# ---- reshape


composites(
    {
        "reshape_as(Tensor(a) self, Tensor other) -> Tensor(a)": (
            lambda self, other: F.reshape(self, other.shape)
        ),
        "view_as(Tensor(a) self, Tensor other) -> Tensor(a)": (
            lambda self, other: F.view(self, other.shape)
        ),
        "ravel(Tensor(a) self) -> Tensor(a)": lambda self: F.reshape(self, [-1]),
        "broadcast_to(Tensor(a) self, int[] size) -> Tensor(a)": (
            lambda self, size: F.expand(self, size)
        ),
        "expand_as(Tensor(a) self, Tensor other) -> Tensor(a)": (
            lambda self, other: F.expand(self, other.shape)
        ),
        "swapaxes(Tensor(a) self, int axis0, int axis1) -> Tensor(a)": (
            lambda self, axis0, axis1: F.transpose(self, axis0, axis1)
        ),
        "swapdims(Tensor(a) self, int dim0, int dim1) -> Tensor(a)": (
            lambda self, dim0, dim1: F.transpose(self, dim0, dim1)
        ),
        "numpy_T(Tensor(a) self) -> Tensor(a)": (
            lambda self: F.permute(self, list(range(self.ndim))[::-1])
        ),
        "diagflat(Tensor self, int offset=0) -> Tensor": (
            lambda self, offset=0: F.diag_embed(F.reshape(self, [-1]), offset)
        ),
        "linalg_diagonal(Tensor(a) A, *, int offset=0, int dim1=-2, int dim2=-1) -> Tensor(a)": (
            lambda A, *, offset=0, dim1=-2, dim2=-1: F.diagonal(A, offset, dim1, dim2)
        ),
        "type_as(Tensor self, Tensor other) -> Tensor": (
            lambda self, other: (
                self if self.dtype == other.dtype else F._to_copy(self, dtype=other.dtype)
            )
        ),
    }
)


@composite("flatten.using_ints(Tensor(a) self, int start_dim=0, int end_dim=-1) -> Tensor(a)")
def flatten(self: Any, start_dim: int = 0, end_dim: int = -1) -> Any:
    first, last = normalize_dim(start_dim, self.ndim), normalize_dim(end_dim, self.ndim)
    if first > last:
        raise ValueError(f"dimension {start_dim} comes behind dimension {end_dim}")
    middle = math.prod(self.shape[first : last + 1])
    return F.reshape(self, [*self.shape[:first], middle, *self.shape[last + 1 :]])


@composite("unflatten.int(Tensor(a) self, int dim, int[] sizes) -> Tensor(a)")
def unflatten(self: Any, dim: int, sizes: Any) -> Any:
    place = shapes.existing_dim(self.shape, dim)
    inner = shapes.view((self.shape[place],), sizes)
    return F.view(self, [*self.shape[:place], *inner, *self.shape[place + 1 :]])


@composite("atleast_1d(Tensor self) -> Tensor")
def atleast_1d(self: Any) -> Any:
    return self if self.ndim else F.reshape(self, [1])


@composite("atleast_2d(Tensor self) -> Tensor")
def atleast_2d(self: Any) -> Any:
    return self if self.ndim > 1 else F.unsqueeze(atleast_1d(self), 0)


@composite("atleast_3d(Tensor self) -> Tensor")
def atleast_3d(self: Any) -> Any:
    return self if self.ndim > 2 else F.unsqueeze(atleast_2d(self), -1)


# ---- repeat


@composite("broadcast_tensors(Tensor[] tensors) -> Tensor[]")
def broadcast_tensors(tensors: Any) -> Any:
    shape = numpy.broadcast_shapes(*(one.shape for one in tensors))
    return [F.expand(one, shape) for one in tensors]


@composite("sum_to_size(Tensor self, int[] size) -> Tensor")
def sum_to_size(self: Any, size: Any) -> Any:
    wanted, extra = shapes.as_list(size), self.ndim - len(shapes.as_list(size))
    if extra < 0 or numpy.broadcast_shapes(tuple(wanted), self.shape) != tuple(self.shape):
        raise ValueError(f"{wanted} cannot be expanded to {list(self.shape)}")
    spread = [d for d in range(extra, self.ndim) if wanted[d - extra] == 1 != self.shape[d]]
    dims = [*range(extra), *spread]
    return F.reshape(F.sum(self, dims), wanted) if dims else self


@composite("tile(Tensor self, int[] dims) -> Tensor")
def tile(self: Any, dims: Any) -> Any:
    times = shapes.as_list(dims)
    return F.repeat(self, [1] * (self.ndim - len(times)) + times)


@composite("meshgrid.indexing(Tensor[] tensors, *, str indexing) -> Tensor[]")
@composite("meshgrid(Tensor[] tensors) -> Tensor[]")
def meshgrid(tensors: Any, *, indexing: str = "ij") -> Any:
    if indexing not in ("ij", "xy"):
        raise ValueError(f"indexing is 'ij' or 'xy', not {indexing!r}")
    lines = list(tensors)
    if any(one.ndim > 1 for one in lines):
        raise ValueError("meshgrid takes vectors and scalars")
    swap = slice(1, None, -1) if indexing == "xy" and len(lines) > 1 else slice(0, 2)
    lines[:2] = lines[swap]
    shape = [one.numel() for one in lines]
    grids = [
        F.expand(F.view(one, [-1 if d == place else 1 for d in range(len(lines))]), shape)
        for place, one in enumerate(lines)
    ]
    grids[:2] = grids[swap]
    return grids


# ---- permute


def _move(self: Any, source: Any, destination: Any) -> Any:
    begin = [normalize_dim(d, self.ndim) for d in shapes.as_list(source)]
    end = [normalize_dim(d, self.ndim) for d in shapes.as_list(destination)]
    if len(begin) != len(end) or len(set(begin)) < len(begin) or len(set(end)) < len(end):
        raise ValueError(f"{source} cannot be moved to {destination}: each dimension once")
    if not self.ndim:
        return F.alias(self)
    rest = iter(d for d in range(self.ndim) if d not in begin)
    places = dict(zip(end, begin, strict=True))
    return F.permute(self, [places[d] if d in places else next(rest) for d in range(self.ndim)])


for _name in ("movedim", "moveaxis"):
    _many = f"{_name}.intlist(Tensor(a) self, int[] source, int[] destination) -> Tensor(a)"
    composite(f"{_name}.int(Tensor(a) self, int source, int destination) -> Tensor(a)")(_move)
    composite(_many)(_move)


@composite("mT(Tensor(a) self) -> Tensor(a)")
def matrix_t(self: Any) -> Any:
    if self.ndim < 2:
        raise ValueError(f"matrices have 2 dimensions or more, not {self.ndim}")
    return F.transpose(self, -2, -1)


@composite("mH(Tensor(a) self) -> Tensor(a)")
@composite("adjoint(Tensor(a) self) -> Tensor(a)")
def matrix_h(self: Any) -> Any:
    return conjugate(matrix_t(self))


@composite("matrix_H(Tensor(a) self) -> Tensor(a)")
def matrix_h_flat(self: Any) -> Any:
    if self.ndim not in (0, 2):
        raise ValueError(f"a matrix has 2 dimensions, not {self.ndim}")
    return conjugate(F.t(self))


@composite("fliplr(Tensor self) -> Tensor")
def fliplr(self: Any) -> Any:
    if self.ndim < 2:
        raise ValueError(f"fliplr takes 2 dimensions or more, not {self.ndim}")
    return F.flip(self, [1])


@composite("flipud(Tensor self) -> Tensor")
def flipud(self: Any) -> Any:
    if self.ndim < 1:
        raise ValueError("flipud takes a dimension or more")
    return F.flip(self, [0])


# ---- diagonals


@composite("diag(Tensor self, int diagonal=0) -> Tensor")
def diag(self: Any, diagonal: int = 0) -> Any:
    if self.ndim == 1:
        return F.diag_embed(self, diagonal)
    if self.ndim == 2:
        return F.diagonal_copy(self, diagonal)
    raise ValueError(f"diag takes a vector or a matrix, not {self.ndim} dimensions")
