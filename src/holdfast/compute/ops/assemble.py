"""Ops that put tensors together or turn them round: cat, stack, repeat, flip, roll, rot90.

Covers: these, diag_embed, and `_chunk_cat`.  Leaves to others: what is made of these (`reshaping`).
"""

from __future__ import annotations

from typing import Any

from holdfast.compute import dtype as formats
from holdfast.compute.ops import shapes
from holdfast.compute.ops.rules import LIKE_SELF, Meta, rule
from holdfast.compute.ops.table import Op, op


def joined_format(tensors: Any) -> Any:
    """The format that holds the numbers of all tensors."""
    first = tensors[0].dtype if tensors else formats.FLOAT32
    if all(one.dtype == first for one in tensors):
        return first
    return formats.result_type(*tensors)


def _cat(op: Op, bound: dict[str, Any]) -> Meta:
    found = [tuple(t.shape) for t in bound["tensors"]]
    shape = shapes.joined(found, bound["dim"])
    return Meta(shape, joined_format(bound["tensors"]))


def _stack(op: Op, bound: dict[str, Any]) -> Meta:
    tensors = bound["tensors"]
    shape = shapes.stacked([tuple(t.shape) for t in tensors], bound["dim"])
    return Meta(shape, joined_format(tensors))


def _repeat(op: Op, bound: dict[str, Any]) -> Meta:
    of = bound["self"]
    return Meta(shapes.repeated(tuple(of.shape), bound["repeats"]), of.dtype)


def _rot90(op: Op, bound: dict[str, Any]) -> Meta:
    of, dims = bound["self"], bound["dims"]
    shape = tuple(of.shape)
    return Meta(shapes.transposed(shape, *dims) if bound["k"] % 2 else shape, of.dtype)


def _diag_embed(op: Op, bound: dict[str, Any]) -> Meta:
    of = bound["self"]
    shape = shapes.embedded(tuple(of.shape), bound["offset"], bound["dim1"], bound["dim2"])
    return Meta(shape, of.dtype)


op("cat(Tensor[] tensors, int dim=0) -> Tensor", rule(_cat),
   {"tensors": "cat_backward(grad, [t.shape for t in tensors], dim)"})  # fmt: skip
op("stack(Tensor[] tensors, int dim=0) -> Tensor", rule(_stack),
   {"tensors": "unbind(grad, dim)"})  # fmt: skip
op("_chunk_cat(Tensor[] tensors, int dim, int num_chunks) -> Tensor", rule(),
   {"tensors": "chunk_cat_backward(grad, [t.shape for t in tensors], dim, "
               "num_chunks)"})  # fmt: skip
op("repeat(Tensor self, int[] repeats) -> Tensor", rule(_repeat),
   {"self": "repeat_backward(grad, self.shape, repeats)"})  # fmt: skip
op("flip(Tensor self, int[] dims) -> Tensor", LIKE_SELF, {"self": "flip(grad, dims)"})
op("roll(Tensor self, int[1] shifts, int[1] dims=[]) -> Tensor", LIKE_SELF,
   {"self": "roll(grad, negated(shifts), dims)"})  # fmt: skip
op("rot90(Tensor self, int k=1, int[] dims=[0, 1]) -> Tensor", rule(_rot90),
   {"self": "rot90(grad, -k, dims)"})  # fmt: skip
op("diag_embed(Tensor self, int offset=0, int dim1=-2, int dim2=-1) -> Tensor", rule(_diag_embed),
   {"self": "diagonal(grad, offset, dim1, dim2)"})  # fmt: skip
