"""Splitting and joining by torch's other names: chunk, narrow, hstack …; made of split, cat,
stack.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from typing import Any

from holdfast.compute import functional as F
from holdfast.compute.ops.layout import shapes
from holdfast.compute.ops.layout.reshape import atleast_1d, atleast_2d, atleast_3d
from holdfast.compute.ops.table import composite, composites

# ---- split


@composite("narrow(Tensor(a) self, int dim, int start, int length) -> Tensor(a)")
def narrow(self: Any, dim: int, start: int, length: int) -> Any:
    shapes.narrow(tuple(self.shape), dim, start, length)
    begin = start + self.shape[dim] if start < 0 else start
    return F.slice(self, dim, begin, begin + length)


@composite("narrow.Tensor(Tensor(a) self, int dim, Tensor start, int length) -> Tensor(a)")
def narrow_tensor(self: Any, dim: int, start: Any, length: int) -> Any:
    return narrow(self, dim, int(start), length)


def _chunk(unsafe: str, self: Any, chunks: int, dim: int = 0) -> Any:
    if chunks <= 0:
        raise ValueError(f"a tensor cannot be taken apart into {chunks} chunks")
    size = -(-self.shape[shapes.existing_dim(tuple(self.shape), dim)] // chunks)
    if not size:  # an empty dimension splits into empty parts
        return F.packet(f"{unsafe}split_with_sizes")(self, [0] * chunks, dim)
    return F.packet(f"{unsafe}split")(self, size, dim)


composites(
    {
        "chunk(Tensor(a -> *) self, int chunks, int dim=0) -> Tensor(a)[]": partial(_chunk, ""),
        "unsafe_chunk(Tensor self, int chunks, int dim=0) -> Tensor[]": partial(_chunk, "unsafe_"),
    }
)


@composite("tensor_split.sections(Tensor(a -> *) self, int sections, int dim=0) -> Tensor(a)[]")
def tensor_split_sections(self: Any, sections: int, dim: int = 0) -> Any:
    size = self.shape[shapes.existing_dim(tuple(self.shape), dim)]
    if sections <= 0:
        raise ValueError(f"a tensor cannot be taken apart into {sections} sections")
    each, more = divmod(size, sections)
    sizes = [each + 1] * more + [each] * (sections - more)
    return F.split_with_sizes(self, sizes, dim)


@composite("tensor_split.indices(Tensor(a -> *) self, int[] indices, int dim=0) -> Tensor(a)[]")
def tensor_split_indices(self: Any, indices: Any, dim: int = 0) -> Any:
    cuts = [0, *shapes.as_list(indices), None]
    return [F.slice(self, dim, *ends) for ends in itertools.pairwise(cuts)]


@composite(
    "tensor_split.tensor_indices_or_sections(Tensor(a -> *) self, Tensor "
    "tensor_indices_or_sections, int dim=0) -> Tensor(a)[]"
)
def tensor_split_tensor(self: Any, tensor_indices_or_sections: Any, dim: int = 0) -> Any:
    given = tensor_indices_or_sections
    if given.ndim:
        return tensor_split_indices(self, given.tolist(), dim)
    return tensor_split_sections(self, int(given), dim)


def _splits(name: str, least: int, place: Callable[[Any], int]) -> None:
    """Both overloads of `hsplit` and its kin, along the dimension from `place`."""

    def check(self: Any) -> int:
        if self.ndim < least:
            raise ValueError(f"{name} takes {least} dimensions or more, not {self.ndim}")
        return place(self)

    def by_sections(self: Any, sections: int) -> Any:
        dim = check(self)
        if sections <= 0 or self.shape[dim] % sections:
            raise ValueError(f"a size of {self.shape[dim]} has no {sections} equal parts")
        return tensor_split_sections(self, sections, dim)

    def by_indices(self: Any, indices: Any) -> Any:
        return tensor_split_indices(self, indices, check(self))

    composite(f"{name}.int(Tensor(a -> *) self, int sections) -> Tensor(a)[]")(by_sections)
    composite(f"{name}.array(Tensor(a -> *) self, int[] indices) -> Tensor(a)[]")(by_indices)


_splits("hsplit", 1, lambda self: 0 if self.ndim == 1 else 1)
_splits("vsplit", 2, lambda self: 0)
_splits("dsplit", 3, lambda self: 2)

# ---- join


@composite("hstack(Tensor[] tensors) -> Tensor")
def hstack(tensors: Any) -> Any:
    lifted = [atleast_1d(one) for one in tensors]
    return F.cat(lifted, 0 if lifted and lifted[0].ndim == 1 else 1)


composites(
    {
        "vstack(Tensor[] tensors) -> Tensor": (
            lambda tensors: F.cat([atleast_2d(one) for one in tensors], 0)
        ),
        "dstack(Tensor[] tensors) -> Tensor": (
            lambda tensors: F.cat([atleast_3d(one) for one in tensors], 2)
        ),
    }
)


@composite("column_stack(Tensor[] tensors) -> Tensor")
def column_stack(tensors: Any) -> Any:
    lifted = [one if one.ndim > 1 else F.reshape(one, [one.numel(), 1]) for one in tensors]
    return F.cat(lifted, 1)
