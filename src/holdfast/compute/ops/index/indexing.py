"""Reading at indices, along one dimension or by masks; nonzero, repeat_interleave."""

from __future__ import annotations

import math
from typing import Any

import numpy

from holdfast.compute import dtype as dtypes
from holdfast.compute import functional as F
from holdfast.compute.ops.index.resolve import (
    check_flat,
    check_gather,
    check_rows,
    indexed_shape,
)
from holdfast.compute.ops.rules import LIKE_SELF, Meta, checked, normalize_dim, rule, sized
from holdfast.compute.ops.table import Op, composite, op

# ---- lists of indices


def _infer_index(_: Op, bound: dict[str, Any]) -> Meta | None:
    """None for masks, whose result depends on their elements."""
    of, indices = bound["self"], bound["indices"]
    given = [i for i in indices if i is not None]
    if any(i.dtype == dtypes.BOOL or i.dtype == numpy.uint8 for i in given):
        return None
    if not given:
        return Meta(tuple(of.shape), of.dtype)
    dims = [d for d, i in enumerate(indices) if i is not None]
    chosen = numpy.broadcast_shapes(*(i.shape for i in given))
    return Meta(indexed_shape(of.shape, dims, chosen)[0], of.dtype)


_INDEX = rule(_infer_index, "an index that is in range for each dimension, or a mask of its shape")
_BACK = {"self": "index_put(new_zeros(grad, self.shape), indices, grad, True)"}
op("index.Tensor(Tensor self, Tensor?[] indices) -> Tensor", _INDEX, _BACK)
op("_unsafe_index.Tensor(Tensor self, Tensor?[] indices) -> Tensor", _INDEX, _BACK)


@composite(
    "_unsafe_masked_index(Tensor self, Tensor mask, Tensor?[] indices, Scalar fill) -> Tensor",
    {"self": "_unsafe_masked_index_put_accumulate("
             "new_zeros(grad, self.shape), mask, indices, grad)"})  # fmt: skip
def _unsafe_masked_index(self: Any, mask: Any, indices: Any, fill: Any) -> Any:
    if not math.prod(self.shape):
        shape = numpy.broadcast_shapes(mask.shape, *(i.shape for i in indices if i is not None))
        return F.new_full(self, list(shape), fill)
    found = F.index(self, _within(self, indices))
    return F.masked_fill(found, F.logical_not(mask), fill)


@composite(
    "_unsafe_masked_index_put_accumulate(Tensor self, Tensor mask, Tensor?[] indices, "
    "Tensor values) -> Tensor",
    {"self": "grad", "values": "_unsafe_masked_index(grad, mask, indices, 0)"},
)
def _unsafe_masked_index_put(self: Any, mask: Any, indices: Any, values: Any) -> Any:
    if not math.prod(self.shape):
        return F.clone(self)
    kept = F.masked_fill(values, F.logical_not(mask), 0)
    return F.index_put(self, _within(self, indices), kept, True)


def _within(self: Any, indices: Any) -> list[Any]:
    """Clamp indices into range; those outside of the mask may be anything."""
    return [
        None if index is None else F.clamp(index, -size, size - 1)
        for index, size in zip(indices, self.shape, strict=False)
    ]


# ---- along one dimension


def _infer_index_select(_: Op, bound: dict[str, Any]) -> Meta:
    of, count = bound["self"], math.prod(bound["index"].shape)
    dim = normalize_dim(bound["dim"], len(of.shape))
    shape = tuple(count if d == dim else size for d, size in enumerate(of.shape))
    return Meta(shape, of.dtype)


def _infer_like_index(_: Op, bound: dict[str, Any]) -> Meta:
    return Meta(tuple(bound["index"].shape), bound["self"].dtype)


op("index_select(Tensor self, int dim, Tensor index) -> Tensor",
   rule(_infer_index_select, "an index of one dimension, from 0 to the size of `dim` less 1",
        check_flat),
   {"self": "index_add(new_zeros(grad, self.shape), dim, index, grad)"})  # fmt: skip
op("gather(Tensor self, int dim, Tensor index, *, bool sparse_grad=False) -> Tensor",
   rule(_infer_like_index, "an index as long as the tensor or shorter in every dimension but "
                           "`dim`, from 0 to the size of `dim` less 1", check_gather),
   {"self": "scatter_add(new_zeros(grad, self.shape), dim, index, grad)"})  # fmt: skip
op("take(Tensor self, Tensor index) -> Tensor", rule(_infer_like_index),
   {"self": "put(new_zeros(grad, self.shape), index, grad, True)"})  # fmt: skip
op("index_fill.int_Scalar(Tensor self, int dim, Tensor index, Scalar value) -> Tensor",
   checked(LIKE_SELF, check_flat), {"self": "index_fill(grad, dim, index, 0)"})  # fmt: skip
op("index_fill.int_Tensor(Tensor self, int dim, Tensor index, Tensor value) -> Tensor",
   checked(LIKE_SELF, check_flat),
   {"self": "index_fill(grad, dim, index, 0)",
    "value": "sum(grad - index_fill(grad, dim, index, 0))"})  # fmt: skip
op("index_copy(Tensor self, int dim, Tensor index, Tensor source) -> Tensor",
   checked(LIKE_SELF, check_rows),
   {"self": "index_fill(grad, dim, index, 0)",
    "source": "index_select(grad, dim, index)"})  # fmt: skip


@composite("take_along_dim(Tensor self, Tensor indices, int? dim=None) -> Tensor")
def _take_along_dim(self: Any, indices: Any, dim: int | None = None) -> Any:
    if dim is None:
        return F.gather(F.reshape(self, [-1]), 0, F.reshape(indices, [-1]))
    dim = normalize_dim(dim, self.ndim)
    if indices.ndim != self.ndim:
        raise ValueError(f"the indices have {indices.ndim} dimensions, the tensor {self.ndim}")
    pairs = list(zip(self.shape, indices.shape, strict=True))
    both = [numpy.broadcast_shapes((one,), (other,))[0] if d != dim else 0
            for d, (one, other) in enumerate(pairs)]  # fmt: skip
    of = F.expand(self, [pairs[d][0] if d == dim else size for d, size in enumerate(both)])
    at = F.expand(indices, [pairs[d][1] if d == dim else size for d, size in enumerate(both)])
    return F.gather(of, dim, at)


# ---- masks


def _infer_masked_fill(_: Op, bound: dict[str, Any]) -> Meta:
    of = bound["self"]
    return Meta(numpy.broadcast_shapes(of.shape, bound["mask"].shape), of.dtype)


def _check_masked_fill(self: Any, mask: Any, value: Any) -> None:
    if getattr(value, "ndim", 0):
        raise ValueError(f"the value has {value.ndim} dimensions, none is expected")
    if mask.dtype != dtypes.BOOL:
        raise TypeError(f"the mask has the dtype {mask.dtype}, bool is expected")


_MASK = "a boolean mask whose shape broadcasts with the tensor's"
op("masked_fill.Scalar(Tensor self, Tensor mask, Scalar value) -> Tensor",
   rule(_infer_masked_fill, _MASK, _check_masked_fill),
   {"self": "masked_fill(grad, mask, 0)"})  # fmt: skip
op("masked_fill.Tensor(Tensor self, Tensor mask, Tensor value) -> Tensor",
   rule(_infer_masked_fill, _MASK, _check_masked_fill),
   {"self": "masked_fill(grad, mask, 0)",
    "value": "masked_fill(grad, logical_not(mask), 0)"})  # fmt: skip
op("masked_select(Tensor self, Tensor mask) -> Tensor", rule(None, _MASK),
   {"self": "masked_scatter(new_zeros(grad, broadcast_shape(self.shape, mask.shape)), "
            "mask, grad)"})  # fmt: skip
op("masked_scatter(Tensor self, Tensor mask, Tensor source) -> Tensor",
   rule(_infer_masked_fill, _MASK),
   {"self": "masked_fill(grad, mask, 0)",
    "source": "masked_scatter_backward(grad, mask, source.shape)"})  # fmt: skip


def _masked_scatter_backward(grad_output: Any, mask: Any, sizes: Any) -> Any:
    chosen = F.masked_select(grad_output, mask)
    rest = F.new_zeros(grad_output, [math.prod(sizes) - chosen.shape[0]])
    return F.reshape(F.cat([chosen, rest]), list(sizes))


op("masked_scatter_backward(Tensor grad_output, Tensor mask, int[] sizes) -> Tensor",
   sized("sizes", "grad_output"),
   {"grad_output": "masked_scatter(new_zeros(grad, grad_output.shape), mask, grad)"},
   _masked_scatter_backward)  # fmt: skip


# ---- where something is

op("nonzero(Tensor self) -> Tensor")
op("repeat_interleave.Tensor(Tensor repeats, *, int? output_size=None) -> Tensor")


@composite("nonzero_static(Tensor self, *, int size, int fill_value=-1) -> Tensor")
def _nonzero_static(self: Any, size: int, fill_value: int = -1) -> Any:
    found = F.nonzero(self)
    count = min(size, found.shape[0])
    rest = F.new_full(found, [size - count, self.ndim], fill_value)
    return F.cat([F.narrow(found, 0, 0, count), rest])


@composite("nonzero_numpy(Tensor self) -> Tensor[]")
def _nonzero_numpy(self: Any) -> Any:
    found = F.nonzero(self if self.ndim else F.unsqueeze(self, 0))
    return list(F.unbind(found, 1))


@composite("where(Tensor condition) -> Tensor[]")
def _where(condition: Any) -> Any:
    return _nonzero_numpy(condition)


@composite("repeat_interleave.self_Tensor(Tensor self, Tensor repeats, int? dim=None, *, "
           "int? output_size=None) -> Tensor")  # fmt: skip
def _repeat_by_tensor(
    self: Any, repeats: Any, dim: int | None = None, *, output_size: int | None = None
) -> Any:
    of = self if dim is not None else F.reshape(self, [-1])
    along = normalize_dim(dim or 0, of.ndim)
    counts = F.reshape(repeats, [-1])
    if counts.shape[0] == 1:
        counts = F.expand(counts, [of.shape[along] if of.ndim else 1])
    if of.ndim and counts.shape[0] != of.shape[along]:
        raise ValueError(f"{counts.shape[0]} repeats for {of.shape[along]} rows")
    return F.index_select(of, along, F.repeat_interleave(counts, output_size=output_size))


@composite("repeat_interleave.self_int(Tensor self, int repeats, int? dim=None, *, "
           "int? output_size=None) -> Tensor")  # fmt: skip
def _repeat_by_number(
    self: Any, repeats: int, dim: int | None = None, *, output_size: int | None = None
) -> Any:
    of = self if dim is not None else F.reshape(self, [-1])
    along = normalize_dim(dim or 0, of.ndim)
    shape = [*of.shape[: along + 1], repeats, *of.shape[along + 1 :]]
    spread = F.clone(F.expand(F.unsqueeze(of, along + 1), shape))
    return F.reshape(spread, [*of.shape[:along], -1, *of.shape[along + 1 :]])
