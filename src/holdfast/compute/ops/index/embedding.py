"""Embedding: rows of a table, alone or in bags; one_hot."""

from __future__ import annotations

from typing import Any

from holdfast.compute import dtype as dtypes
from holdfast.compute import functional as F
from holdfast.compute.ops.rules import LIKE_SELF, Meta, rule
from holdfast.compute.ops.table import Op, composite, op


def _infer_embedding(op: Op, bound: dict[str, Any]) -> Meta:
    weight, indices = bound["weight"], bound["indices"]
    return Meta((*indices.shape, *weight.shape[1:]), weight.dtype)


def _infer_table(op: Op, bound: dict[str, Any]) -> Meta:
    grad = bound["grad_output"] if "grad_output" in bound else bound["grad"]
    return Meta((bound["num_weights"], grad.shape[-1]), grad.dtype)


op("embedding(Tensor weight, Tensor indices, int padding_idx=-1, bool scale_grad_by_freq=False,"
   " bool sparse=False) -> Tensor", rule(_infer_embedding),
   {"weight": "embedding_dense_backward(grad, indices, weight.shape[0], padding_idx,"
              " scale_grad_by_freq)"})  # fmt: skip
op("embedding_dense_backward(Tensor grad_output, Tensor indices, int num_weights,"
   " int padding_idx, bool scale_grad_by_freq) -> Tensor", rule(_infer_table),
   {"grad_output": "embedding_double_backward(grad, indices, padding_idx, scale_grad_by_freq)"
    })  # fmt: skip
op("embedding_renorm(Tensor self, Tensor indices, float max_norm, float norm_type) -> Tensor",
   LIKE_SELF)  # fmt: skip


@composite("embedding_backward(Tensor grad, Tensor indices, int num_weights, int padding_idx,"
           " bool scale_grad_by_freq, bool sparse) -> Tensor")  # fmt: skip
def embedding_backward(
    grad: Any, indices: Any, num_weights: int, padding_idx: int, scale_grad_by_freq: bool,
    sparse: bool,
) -> Any:  # fmt: skip
    return F.embedding_dense_backward(
        grad, indices, num_weights, padding_idx, scale_grad_by_freq
    )  # fmt: skip


# ---- bags

_BAG = (
    "(Tensor weight, Tensor indices, Tensor offsets, bool scale_grad_by_freq=False, int mode=0,"
    " bool sparse=False, Tensor? per_sample_weights=None, bool include_last_offset=False"
)
_OUT = " -> (Tensor, Tensor, Tensor, Tensor)"
_MODE_MAX = 2


def _infer_embedding_bag(op: Op, bound: dict[str, Any]) -> tuple[Meta, ...]:
    weight, indices = bound["weight"], bound["indices"]
    bags = bound["offsets"].shape[0] - bool(bound["include_last_offset"])
    width, kind = weight.shape[1], indices.dtype
    chosen = (bags, width) if bound["mode"] == _MODE_MAX else (bags,)
    return (
        Meta((bags, width), weight.dtype), Meta(tuple(indices.shape), kind), Meta((bags,), kind),
        Meta(chosen, kind),
    )  # fmt: skip


def _infer_like_indices(op: Op, bound: dict[str, Any]) -> Meta:
    return Meta(tuple(bound["indices"].shape), bound["grad"].dtype)


for _name in ("_embedding_bag", "_embedding_bag_forward_only"):
    op(f"{_name}{_BAG}, int padding_idx=-1){_OUT}", rule(_infer_embedding_bag),
       {"weight": "_embedding_bag_backward(grad, indices, offsets, result1, result2, result3,"
                  " weight.shape[0], scale_grad_by_freq, mode, sparse, per_sample_weights,"
                  " padding_idx)",
        "per_sample_weights": "_embedding_bag_per_sample_weights_backward(grad, weight, indices,"
                              " offsets, result1, mode, padding_idx)"})  # fmt: skip
op("_embedding_bag_backward(Tensor grad, Tensor indices, Tensor offsets, Tensor offset2bag,"
   " Tensor bag_size, Tensor maximum_indices, int num_weights, bool scale_grad_by_freq, int mode,"
   " bool sparse, Tensor? per_sample_weights, int padding_idx=-1) -> Tensor",
   rule(_infer_table))  # fmt: skip
op("_embedding_bag_dense_backward(Tensor grad, Tensor indices, Tensor offset2bag,"
   " Tensor bag_size, Tensor maximum_indices, int num_weights, bool scale_grad_by_freq, int mode,"
   " Tensor? per_sample_weights, int padding_idx=-1) -> Tensor", rule(_infer_table))  # fmt: skip
op("_embedding_bag_per_sample_weights_backward(Tensor grad, Tensor weight, Tensor indices,"
   " Tensor offsets, Tensor offset2bag, int mode, int padding_idx=-1) -> Tensor",
   rule(_infer_like_indices))  # fmt: skip


@composite(f"embedding_bag{_BAG}){_OUT}")
def embedding_bag(*args: Any, **kwargs: Any) -> Any:
    return F._embedding_bag(*args, **kwargs)


@composite("embedding_bag.padding_idx(Tensor weight, Tensor indices, Tensor offsets,"
           " bool scale_grad_by_freq, int mode, bool sparse, Tensor? per_sample_weights,"
           f" bool include_last_offset, int? padding_idx){_OUT}")  # fmt: skip
def embedding_bag_padding(*args: Any) -> Any:
    weight, padding_idx = args[0], args[-1]
    if padding_idx is None:
        return F._embedding_bag(*args[:-1], -1)
    rows = weight.shape[0]
    if not -rows <= padding_idx < rows:
        raise IndexError(f"padding_idx {padding_idx} is outside of a table of {rows} rows")
    return F._embedding_bag(*args[:-1], padding_idx % rows)


@composite("one_hot(Tensor self, int num_classes=-1) -> Tensor")
def one_hot(self: Any, num_classes: int = -1) -> Any:
    if dtypes.category(self.dtype) != dtypes.INTEGER:
        raise TypeError(f"classes are integers, not {self.dtype}")
    if not self.numel() and num_classes < 1:
        raise ValueError("num_classes is needed for an empty tensor")
    largest = int(F.max(self).data) if self.numel() else -1
    count = largest + 1 if num_classes < 0 else num_classes
    if largest >= count or (self.numel() and int(F.min(self).data) < 0):
        raise IndexError(f"a class is not among {count}")
    made = F.new_zeros(self, [*self.shape, count], dtype=dtypes.INT64)
    places = F.unsqueeze(self.to(dtypes.INT64), -1)
    return F.scatter(made, -1, places, 1)
