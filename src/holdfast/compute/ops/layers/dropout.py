"""Dropout of elements or features, and alpha dropout, which keeps SELU's mean and variance."""

from __future__ import annotations

import functools
import math
from typing import Any

from holdfast.compute import dtype as dtypes
from holdfast.compute import functional as F
from holdfast.compute.ops.rules import Meta, meta_of, rule
from holdfast.compute.ops.table import composite, op

op("native_dropout(Tensor input, float p, bool? train) -> (Tensor, Tensor)",
   rule(lambda _, bound: (meta_of(bound["input"]), Meta(tuple(bound["input"].shape), dtypes.BOOL))),
   {"input": "native_dropout_backward(grad, result1, dropout_scale(p, train))"},
   effect=True)  # fmt: skip
op("native_dropout_backward(Tensor grad_output, Tensor mask, float scale) -> Tensor",
   rule(lambda _, bound: Meta(tuple(bound["grad_output"].shape),
                              dtypes.with_fractions(bound["grad_output"].dtype))),
   {"grad_output": "native_dropout_backward(grad, mask, scale)"})  # fmt: skip


@composite("dropout(Tensor input, float p, bool train) -> Tensor")
def dropout(input: Any, p: float, train: bool) -> Any:
    return F.native_dropout(input, p, train)[0] if _dropping(input, p, train) else input


# The values that SELU settles at far below 0, which alpha dropout puts in for what it drops.
_ALPHA = 1.7580993408473766


def _noise(input: Any, p: float, per_feature: bool) -> Any:
    """1 where an element (or a whole feature) is kept, else 0."""
    shape = list(input.shape)
    if per_feature:
        if input.ndim < 2:
            raise ValueError("dropping features takes at least 2 dimensions: samples, features")
        shape = [*shape[:2], *[1] * (input.ndim - 2)]
    return F.bernoulli(F.new_empty(input, shape), 1 - p)


def _dropping(input: Any, p: float, train: bool) -> bool:
    if not 0 <= p <= 1:
        raise ValueError(f"the probability of dropping is between 0 and 1, not {p}")
    return train and p != 0 and bool(input.numel())


@composite("feature_dropout(Tensor input, float p, bool train) -> Tensor")
def feature_dropout(input: Any, p: float, train: bool) -> Any:
    if not _dropping(input, p, train):
        return input
    if p == 1:
        return input * F.zeros_like(input)
    return input * (_noise(input, p, True) / (1 - p))


def _alpha(input: Any, p: float, train: bool, per_feature: bool) -> Any:
    if not _dropping(input, p, train):
        return input
    if p == 1:
        return input * F.zeros_like(input)
    kept = _noise(input, p, per_feature)
    scale = 1 / math.sqrt((_ALPHA**2 * p + 1) * (1 - p))
    shift = (kept - 1) * (_ALPHA * scale) + _ALPHA * scale * p
    return input * (kept * scale) + shift


for _name, _per_feature in (("alpha_dropout", False), ("feature_alpha_dropout", True)):
    composite(f"{_name}(Tensor input, float p, bool train) -> Tensor")(
        functools.partial(_alpha, per_feature=_per_feature)
    )
