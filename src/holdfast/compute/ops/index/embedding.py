"""Embedding: rows of a table, alone or in bags; one_hot."""

from __future__ import annotations

from typing import Any

import numpy

from holdfast.compute import dtype as dtypes
from holdfast.compute import functional as F
from holdfast.compute.ops.rules import LIKE_SELF, Meta, rule
from holdfast.compute.ops.table import Op, composite, op


def _infer_table(op: Op, bound: dict[str, Any]) -> Meta:
    grad = bound["grad_output"] if "grad_output" in bound else bound["grad"]
    return Meta((bound["num_weights"], grad.shape[-1]), grad.dtype)


SUM, MEAN, MAX = range(3)


def _check_embedding(weight: Any, indices: Any, *_: Any, **named: Any) -> None:
    if weight.ndim != 2:
        raise ValueError(f"a table of rows has 2 dimensions, not {weight.ndim}")


def _check_bag(
    weight: Any, indices: Any, offsets: Any, scale_grad_by_freq: bool = False, mode: int = SUM,
    sparse: bool = False, per_sample_weights: Any = None, *_: Any, **named: Any,
) -> None:  # fmt: skip
    if mode not in (SUM, MEAN, MAX):
        raise ValueError(f"mode {mode} is unknown; 0 is sum, 1 is mean, 2 is max")
    if per_sample_weights is not None and mode != SUM:
        raise ValueError("per_sample_weights are for the sum only")
    if indices.ndim != 1 or offsets.ndim != 1:
        raise ValueError("indices and offsets of bags must have one dimension")


def bags_of(count: int, offsets: Any, include_last: bool) -> tuple[Any, int]:
    """The bag of each of `count` indices, and how many bags there are. Raises ValueError."""
    starts = offsets[:-1] if include_last else offsets
    if starts.size and (starts[0] != 0 or starts.max() > count):
        raise ValueError(
            f"offsets must begin with 0 and not exceed {count}; they are {starts[:8]} …"
        )
    ends = numpy.append(starts[1:], count)
    lengths = numpy.maximum(ends - starts, 0)
    return numpy.repeat(numpy.arange(starts.size), lengths), int(starts.size)


op("embedding(Tensor weight, Tensor indices, int padding_idx=-1, bool scale_grad_by_freq=False,"
   " bool sparse=False) -> Tensor",
   rule(lambda _, bound: Meta((*bound["indices"].shape, *bound["weight"].shape[1:]),
                              bound["weight"].dtype), check=_check_embedding),
   {"weight": "embedding_dense_backward(grad, indices, weight.shape[0], padding_idx,"
              " scale_grad_by_freq)"})  # fmt: skip
op("embedding_dense_backward(Tensor grad_output, Tensor indices, int num_weights,"
   " int padding_idx, bool scale_grad_by_freq) -> Tensor", rule(_infer_table),
   {"grad_output": "embedding_double_backward(grad, indices, padding_idx, scale_grad_by_freq)"
    })  # fmt: skip
op("embedding_renorm(Tensor self, Tensor indices, float max_norm, float norm_type) -> Tensor",
   LIKE_SELF)  # fmt: skip


composite("embedding_backward(Tensor grad, Tensor indices, int num_weights, int padding_idx,"
          " bool scale_grad_by_freq, bool sparse) -> Tensor")(
    lambda grad, indices, num_weights, padding_idx, scale_grad_by_freq, sparse:
    F.embedding_dense_backward(grad, indices, num_weights, padding_idx, scale_grad_by_freq)
)  # fmt: skip


# ---- bags

_BAG = (
    "(Tensor weight, Tensor indices, Tensor offsets, bool scale_grad_by_freq=False, int mode=0,"
    " bool sparse=False, Tensor? per_sample_weights=None, bool include_last_offset=False"
)
_OUT = " -> (Tensor, Tensor, Tensor, Tensor)"


def _infer_embedding_bag(op: Op, bound: dict[str, Any]) -> tuple[Meta, ...]:
    weight, indices = bound["weight"], bound["indices"]
    bags = bound["offsets"].shape[0] - bool(bound["include_last_offset"])
    width, kind = weight.shape[1], indices.dtype
    chosen = (bags, width) if bound["mode"] == MAX else (bags,)
    return (
        Meta((bags, width), weight.dtype), Meta(tuple(indices.shape), kind), Meta((bags,), kind),
        Meta(chosen, kind),
    )  # fmt: skip


def _bag_backward(
    grad: Any, indices: Any, offset2bag: Any, bag_size: Any, maximum_indices: Any,
    num_weights: int, scale_grad_by_freq: bool, mode: int, per_sample_weights: Any,
    padding_idx: int = -1,
) -> Any:  # fmt: skip
    wide = grad.to(dtypes.working(grad.dtype))
    if mode == MAX:
        filled = F.masked_fill(wide, F.unsqueeze(F.eq(bag_size, 0), 1), 0)
        zeros = F.new_zeros(wide, [num_weights, grad.shape[1]])
        return F.scatter_add(zeros, 0, maximum_indices, filled).to(grad.dtype)
    if mode == MEAN:
        wide = wide / F.unsqueeze(F.clamp_min(bag_size, 1), 1)
    values = F.index_select(wide, 0, offset2bag)
    if per_sample_weights is not None:
        values = values * F.unsqueeze(per_sample_weights, 1)
    settings = num_weights, padding_idx, scale_grad_by_freq
    return F.embedding_dense_backward(values, indices, *settings).to(grad.dtype)


def _sample_weights_backward(
    grad: Any, weight: Any, indices: Any, offsets: Any, offset2bag: Any, mode: int,
    padding_idx: int = -1,
) -> Any:  # fmt: skip
    if mode != SUM:
        raise ValueError("per_sample_weights are for the sum only")
    work = dtypes.working(grad.dtype)
    pairs = ((grad, offset2bag), (weight, indices))
    bags, rows = (F.index_select(table, 0, index).to(work) for table, index in pairs)
    found = F.sum(bags * rows, [1]).to(grad.dtype)
    return found if padding_idx < 0 else F.masked_fill(found, F.eq(indices, padding_idx), 0)


for _name in ("_embedding_bag", "_embedding_bag_forward_only"):
    op(f"{_name}{_BAG}, int padding_idx=-1){_OUT}", rule(_infer_embedding_bag, check=_check_bag),
       {"weight": "_embedding_bag_backward(grad, indices, offsets, result1, result2, result3,"
                  " weight.shape[0], scale_grad_by_freq, mode, sparse, per_sample_weights,"
                  " padding_idx)",
        "per_sample_weights": "_embedding_bag_per_sample_weights_backward(grad, weight, indices,"
                              " offsets, result1, mode, padding_idx)"})  # fmt: skip
op("_embedding_bag_backward(Tensor grad, Tensor indices, Tensor offsets, Tensor offset2bag,"
   " Tensor bag_size, Tensor maximum_indices, int num_weights, bool scale_grad_by_freq, int mode,"
   " bool sparse, Tensor? per_sample_weights, int padding_idx=-1) -> Tensor",
   rule(_infer_table), None,
   lambda grad, indices, offsets, offset2bag, bag_size, maximum_indices, num_weights,
   scale_grad_by_freq, mode, sparse, per_sample_weights, padding_idx=-1: _bag_backward(
       grad, indices, offset2bag, bag_size, maximum_indices, num_weights, scale_grad_by_freq,
       mode, per_sample_weights, padding_idx))  # fmt: skip
op("_embedding_bag_dense_backward(Tensor grad, Tensor indices, Tensor offset2bag,"
   " Tensor bag_size, Tensor maximum_indices, int num_weights, bool scale_grad_by_freq, int mode,"
   " Tensor? per_sample_weights, int padding_idx=-1) -> Tensor", rule(_infer_table), None,
   _bag_backward)  # fmt: skip
op("_embedding_bag_per_sample_weights_backward(Tensor grad, Tensor weight, Tensor indices,"
   " Tensor offsets, Tensor offset2bag, int mode, int padding_idx=-1) -> Tensor",
   rule(lambda _, bound: Meta(tuple(bound["indices"].shape), bound["grad"].dtype)), None,
   _sample_weights_backward)  # fmt: skip


@composite(f"embedding_bag{_BAG}){_OUT}")
def embedding_bag(*args: Any, **kwargs: Any) -> Any:
    return F._embedding_bag(*args, **kwargs)


@composite("embedding_bag.padding_idx(Tensor weight, Tensor indices, Tensor offsets,"
           " bool scale_grad_by_freq, int mode, bool sparse, Tensor? per_sample_weights,"
           f" bool include_last_offset, int? padding_idx){_OUT}")  # fmt: skip
def embedding_bag_padding(*args: Any) -> Any:
    rows, padding_idx = args[0].shape[0], args[-1]
    if padding_idx is None:
        return F._embedding_bag(*args[:-1], -1)
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
