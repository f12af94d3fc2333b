"""Ops that join, repeat or rearrange tensors: cat, stack, repeat, flip, roll, rot90, diag_embed."""

from __future__ import annotations

from typing import Any

from holdfast.compute import dtype as dtypes
from holdfast.compute import functional as F
from holdfast.compute.ops.layout import shapes
from holdfast.compute.ops.rules import (
    COMPUTED,
    LIKE_SELF,
    Meta,
    Rule,
    normalize_dim,
    reshaped,
    rule,
)
from holdfast.compute.ops.table import Op, op


def joined_dtype(tensors: Any) -> Any:
    """The dtype that all tensors promote to."""
    first = tensors[0].dtype if tensors else dtypes.FLOAT32
    if all(one.dtype == first for one in tensors):
        return first
    return dtypes.result_type(*tensors)


def _make_join_rule(shape_of: Any) -> Rule:
    def infer(op: Op, bound: dict[str, Any]) -> Meta:
        tensors = bound["tensors"]
        shape = shape_of([tuple(t.shape) for t in tensors], bound["dim"])
        return Meta(shape, joined_dtype(tensors))

    return rule(infer)


def _rotate(shape: tuple[int, ...], k: int, dims: Any) -> tuple[int, ...]:
    return shapes.transpose(shape, *dims) if k % 2 else shape


op("cat(Tensor[] tensors, int dim=0) -> Tensor", _make_join_rule(shapes.cat),
   {"tensors": "cat_backward(grad, [t.shape for t in tensors], dim)"})  # fmt: skip
op("stack(Tensor[] tensors, int dim=0) -> Tensor", _make_join_rule(shapes.stack),
   {"tensors": "unbind(grad, dim)"})  # fmt: skip


def _chunk_cat(tensors: Any, dim: int, num_chunks: int) -> Any:
    """Split each tensor into `num_chunks` flat chunks, padded with zeros; concatenate them."""
    if num_chunks < 1 or not tensors or not all(one.numel() for one in tensors):
        raise ValueError("non-empty tensors and at least one chunk are needed")
    parts = []
    for one in tensors:
        axis = normalize_dim(dim, one.ndim)
        more = -one.shape[axis] % num_chunks
        whole = F.constant_pad_nd(one, [0, 0] * (one.ndim - axis - 1) + [0, more])
        parts.append(F.reshape(whole, [*one.shape[:axis], num_chunks, -1]))
    return F.cat(parts, -1)


op("_chunk_cat(Tensor[] tensors, int dim, int num_chunks) -> Tensor", COMPUTED,
   {"tensors": "chunk_cat_backward(grad, [t.shape for t in tensors], dim, num_chunks)"},
   _chunk_cat)  # fmt: skip
op("repeat(Tensor self, int[] repeats) -> Tensor", reshaped(shapes.repeat, "repeats"),
   {"self": "repeat_backward(grad, self.shape, repeats)"})  # fmt: skip
op("flip(Tensor self, int[] dims) -> Tensor", LIKE_SELF, {"self": "flip(grad, dims)"})
op("roll(Tensor self, int[1] shifts, int[1] dims=[]) -> Tensor", LIKE_SELF,
   {"self": "roll(grad, negate(shifts), dims)"})  # fmt: skip
op("rot90(Tensor self, int k=1, int[] dims=[0, 1]) -> Tensor", reshaped(_rotate, "k", "dims"),
   {"self": "rot90(grad, -k, dims)"})  # fmt: skip
op("diag_embed(Tensor self, int offset=0, int dim1=-2, int dim2=-1) -> Tensor",
   reshaped(shapes.diag_embed, "offset", "dim1", "dim2"),
   {"self": "diagonal(grad, offset, dim1, dim2)"})  # fmt: skip
