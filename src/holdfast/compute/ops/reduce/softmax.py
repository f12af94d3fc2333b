"""Softmax and log_softmax, with torch's public functions."""

from __future__ import annotations

import math
from typing import Any

from holdfast.compute import dtype as dtypes
from holdfast.compute import functional as F
from holdfast.compute.ops.rules import Meta, rule
from holdfast.compute.ops.table import Op, composite, op

_SQUARE, _PADDING = 0, 1  # ATen's kinds of masks: (query, key), (sample, key)


def _infer_softmax(op: Op, bound: dict[str, Any]) -> Meta:
    of = bound["self"]
    return Meta(tuple(of.shape), dtypes.FLOAT32 if bound["half_to_float"] else of.dtype)


def _infer_backward(op: Op, bound: dict[str, Any]) -> Meta:
    return Meta(tuple(bound["grad_output"].shape), dtypes.dtype(bound["input_dtype"]))


def _infer_safe_softmax(op: Op, bound: dict[str, Any]) -> Meta:
    of = bound["self"]
    return Meta(tuple(of.shape), dtypes.dtype_or(bound["dtype"], of.dtype))


op("_softmax(Tensor self, int dim, bool half_to_float) -> Tensor", rule(_infer_softmax),
   {"self": "_softmax_backward_data(grad, result, dim, self.dtype)"})  # fmt: skip
op("_log_softmax(Tensor self, int dim, bool half_to_float) -> Tensor", rule(_infer_softmax),
   {"self": "_log_softmax_backward_data(grad, result, dim, self.dtype)"})  # fmt: skip
op("_safe_softmax(Tensor self, int dim, ScalarType? dtype=None) -> Tensor",
   rule(_infer_safe_softmax),
   {"self": "_softmax_backward_data(grad, result, dim, self.dtype)"})  # fmt: skip
op("_softmax_backward_data(Tensor grad_output, Tensor output, int dim, ScalarType input_dtype)"
   " -> Tensor", rule(_infer_backward),
   {"grad_output": "_softmax_backward_data(grad, output, dim, input_dtype)",
    "output": "grad * grad_output - grad * sum(grad_output * output, dim, True)"
              " - grad_output * sum(grad * output, dim, True)"})  # fmt: skip
op("_log_softmax_backward_data(Tensor grad_output, Tensor output, int dim, ScalarType input_dtype)"
   " -> Tensor", rule(_infer_backward),
   {"grad_output": "grad - sum(grad * exp(output), dim, True)",
    "output": "0 - grad * exp(output) * sum(grad_output, dim, True)"})  # fmt: skip


@composite("softmax.int(Tensor self, int dim, ScalarType? dtype=None) -> Tensor")
def softmax(self: Any, dim: int, dtype: Any = None) -> Any:
    return F._softmax(_as(self, dtype), dim, False)


@composite("log_softmax.int(Tensor self, int dim, ScalarType? dtype=None) -> Tensor")
def log_softmax(self: Any, dim: int, dtype: Any = None) -> Any:
    return F._log_softmax(_as(self, dtype), dim, False)


@composite("softmin(Tensor self, int dim, ScalarType? dtype=None) -> Tensor")
def softmin(self: Any, dim: int, dtype: Any = None) -> Any:
    return F._softmax(F.neg(_as(self, dtype)), dim, False)


@composite("special_softmax(Tensor self, int dim, ScalarType? dtype=None) -> Tensor")
def special_softmax(self: Any, dim: int, dtype: Any = None) -> Any:
    return softmax(self, dim, dtype)


@composite("special_log_softmax(Tensor self, int dim, *, ScalarType? dtype=None) -> Tensor")
def special_log_softmax(self: Any, dim: int, *, dtype: Any = None) -> Any:
    return log_softmax(self, dim, dtype)


@composite("_masked_softmax(Tensor self, Tensor mask, int? dim=None, int? mask_type=None)"
           " -> Tensor")  # fmt: skip
def masked_softmax(self: Any, mask: Any, dim: Any = None, mask_type: Any = None) -> Any:
    axis = self.ndim - 1 if dim is None else dim
    if mask_type == _SQUARE:
        mask = F.expand(mask, list(self.shape))
    elif mask_type == _PADDING:
        mask = F.unsqueeze(F.unsqueeze(mask, 1), 1)
    shares = F._safe_softmax(F.masked_fill(self, mask, -math.inf), axis)
    return F.masked_fill(shares, mask, 0)


def _as(self: Any, dtype: Any) -> Any:
    return self if dtype is None else self.to(dtypes.dtype(dtype))
