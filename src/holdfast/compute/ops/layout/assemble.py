"""Ops that join, repeat or rearrange tensors: cat, stack, repeat, flip, roll, rot90, diag_embed."""

from __future__ import annotations

from typing import Any

from holdfast.compute import dtype as dtypes
from holdfast.compute.ops.layout import shapes
from holdfast.compute.ops.rules import LIKE_SELF, Meta, rule
from holdfast.compute.ops.table import Op, op


def joined_dtype(tensors: Any) -> Any:
    """The dtype that all tensors promote to."""
    first = tensors[0].dtype if tensors else dtypes.FLOAT32
    if all(one.dtype == first for one in tensors):
        return first
    return dtypes.result_type(*tensors)


def _infer_cat(op: Op, bound: dict[str, Any]) -> Meta:
    found = [tuple(t.shape) for t in bound["tensors"]]
    shape = shapes.cat(found, bound["dim"])
    return Meta(shape, joined_dtype(bound["tensors"]))


def _infer_stack(op: Op, bound: dict[str, Any]) -> Meta:
    tensors = bound["tensors"]
    shape = shapes.stack([tuple(t.shape) for t in tensors], bound["dim"])
    return Meta(shape, joined_dtype(tensors))


def _infer_repeat(op: Op, bound: dict[str, Any]) -> Meta:
    of = bound["self"]
    return Meta(shapes.repeat(tuple(of.shape), bound["repeats"]), of.dtype)


def _infer_rot90(op: Op, bound: dict[str, Any]) -> Meta:
    of, dims = bound["self"], bound["dims"]
    shape = tuple(of.shape)
    return Meta(shapes.transpose(shape, *dims) if bound["k"] % 2 else shape, of.dtype)


def _infer_diag_embed(op: Op, bound: dict[str, Any]) -> Meta:
    of = bound["self"]
    shape = shapes.diag_embed(tuple(of.shape), bound["offset"], bound["dim1"], bound["dim2"])
    return Meta(shape, of.dtype)


op("cat(Tensor[] tensors, int dim=0) -> Tensor", rule(_infer_cat),
   {"tensors": "cat_backward(grad, [t.shape for t in tensors], dim)"})  # fmt: skip
op("stack(Tensor[] tensors, int dim=0) -> Tensor", rule(_infer_stack),
   {"tensors": "unbind(grad, dim)"})  # fmt: skip
op("_chunk_cat(Tensor[] tensors, int dim, int num_chunks) -> Tensor", rule(),
   {"tensors": "chunk_cat_backward(grad, [t.shape for t in tensors], dim, "
               "num_chunks)"})  # fmt: skip
op("repeat(Tensor self, int[] repeats) -> Tensor", rule(_infer_repeat),
   {"self": "repeat_backward(grad, self.shape, repeats)"})  # fmt: skip
op("flip(Tensor self, int[] dims) -> Tensor", LIKE_SELF, {"self": "flip(grad, dims)"})
op("roll(Tensor self, int[1] shifts, int[1] dims=[]) -> Tensor", LIKE_SELF,
   {"self": "roll(grad, negate(shifts), dims)"})  # fmt: skip
op("rot90(Tensor self, int k=1, int[] dims=[0, 1]) -> Tensor", rule(_infer_rot90),
   {"self": "rot90(grad, -k, dims)"})  # fmt: skip
op("diag_embed(Tensor self, int offset=0, int dim1=-2, int dim2=-1) -> Tensor",
   rule(_infer_diag_embed),
   {"self": "diagonal(grad, offset, dim1, dim2)"})  # fmt: skip
