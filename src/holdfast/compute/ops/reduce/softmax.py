"""Softmax and log_softmax, with torch's public functions."""

from __future__ import annotations

import math
from typing import Any

from holdfast.compute import dtype as dtypes
from holdfast.compute import functional as F
from holdfast.compute.ops.layout.factory import LIKE
from holdfast.compute.ops.rules import Meta, checked, rule
from holdfast.compute.ops.table import Op, composite, composites, op

_SQUARE, _PADDING = 0, 1  # ATen's kinds of masks: (query, key), (sample, key)


def _infer_softmax(op: Op, bound: dict[str, Any]) -> Meta:
    of = bound["self"]
    return Meta(tuple(of.shape), dtypes.FLOAT32 if bound["half_to_float"] else of.dtype)


def _check_softmax(self: Any, dim: int, half_to_float: bool = False) -> None:
    if half_to_float and self.dtype != dtypes.FLOAT16:
        raise TypeError(f"half_to_float is for float16, not {self.dtype}")
    _check_floats(self, dim)


def _check_floats(self: Any, dim: int, dtype: Any = None) -> None:
    kind = dtypes.dtype_or(dtype, self.dtype)
    if dtypes.category(kind) != dtypes.FLOATING:
        raise TypeError(f"softmax takes floating-point numbers, not {kind}; name a dtype")


_DATA = rule(lambda _, b: Meta(tuple(b["grad_output"].shape), dtypes.dtype(b["input_dtype"])))
_SOFTMAX = rule(_infer_softmax, check=_check_softmax)
_BACKWARD = "(Tensor grad_output, Tensor output, int dim, ScalarType input_dtype) -> Tensor"
for _name in ("_softmax", "_log_softmax"):
    op(f"{_name}(Tensor self, int dim, bool half_to_float) -> Tensor", _SOFTMAX,
       {"self": f"{_name}_backward_data(grad, result, dim, self.dtype)"})  # fmt: skip
op("_safe_softmax(Tensor self, int dim, ScalarType? dtype=None) -> Tensor",
   checked(LIKE, _check_floats),
   {"self": "_softmax_backward_data(grad, result, dim, self.dtype)"})  # fmt: skip
op(f"_softmax_backward_data{_BACKWARD}", _DATA,
   {"grad_output": "_softmax_backward_data(grad, output, dim, input_dtype)",
    "output": "grad * grad_output - grad * sum(grad_output * output, dim, True)"
              " - grad_output * sum(grad * output, dim, True)"})  # fmt: skip
op(f"_log_softmax_backward_data{_BACKWARD}", _DATA,
   {"grad_output": "grad - sum(grad * exp(output), dim, True)",
    "output": "0 - grad * exp(output) * sum(grad_output, dim, True)"})  # fmt: skip


def _softmax(self: Any, dim: int, dtype: Any = None) -> Any:
    return F._softmax(_as(self, dtype), dim, False)


def _log_softmax(self: Any, dim: int, dtype: Any = None) -> Any:
    return F._log_softmax(_as(self, dtype), dim, False)


_GIVEN = "(Tensor self, int dim, ScalarType? dtype=None) -> Tensor"
composites(
    {
        f"softmax.int{_GIVEN}": _softmax,
        f"special_softmax{_GIVEN}": _softmax,
        f"log_softmax.int{_GIVEN}": _log_softmax,
        "special_log_softmax(Tensor self, int dim, *, ScalarType? dtype=None) -> Tensor": (
            _log_softmax
        ),
        f"softmin{_GIVEN}": lambda self, dim, dtype=None: _softmax(-_as(self, dtype), dim),
    }
)


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
