"""Fake quantization, and products of int8 tensors.

A fake-quantized element is rounded to one of the levels but stays float; its gradient passes
unchanged inside the range of the levels (the straight-through estimator).
"""

from __future__ import annotations

from typing import Any

from holdfast.compute import dtype as dtypes
from holdfast.compute import functional as F
from holdfast.compute.ops.rules import Meta, Rule, like, meta_of
from holdfast.compute.ops.table import Op, composite, op


def _infer_with_mask(op: Op, bound: dict[str, Any]) -> tuple[Meta, Meta]:
    of = bound["self"]
    return meta_of(of), Meta(tuple(of.shape), dtypes.BOOL)


def _infer_product(op: Op, bound: dict[str, Any]) -> Meta:
    a, b = bound["self"], bound["mat2"]
    return Meta((a.shape[0], b.shape[1]), dtypes.dtype("int32"))


_ROUNDED = Rule(
    _infer_with_mask, expects="floats, a scale above 0, levels with quant_min < quant_max"
)

op(
    "fake_quantize_per_tensor_affine_cachemask(Tensor self, float scale, int zero_point, "
    "int quant_min, int quant_max) -> (Tensor output, Tensor mask)",
    _ROUNDED,
    {"self": "fake_quantize_per_tensor_affine_cachemask_backward(grad, result1)"},
)
op(
    "fake_quantize_per_tensor_affine_cachemask_backward(Tensor grad, Tensor mask) -> Tensor",
    like("grad"),
    {"grad": "grads[0] * mask"},
)
op(
    "fake_quantize_per_channel_affine_cachemask(Tensor self, Tensor scale, Tensor zero_point, "
    "int axis, int quant_min, int quant_max) -> (Tensor output, Tensor mask)",
    _ROUNDED,
    {"self": "fake_quantize_per_channel_affine_cachemask_backward(grad, result1)"},
)
op(
    "fake_quantize_per_channel_affine_cachemask_backward(Tensor grad, Tensor mask) -> Tensor",
    like("grad"),
    {"grad": "grads[0] * mask"},
)
op(
    "_int_mm(Tensor self, Tensor mat2) -> Tensor",
    Rule(
        _infer_product,
        expects="int8[m, k] and int8[k, n]: the columns of the first are the rows of the second",
    ),
)

# Not ATen's: torch has no convolution of plain int8 tensors.
op(
    "holdfast_int_conv2d(Tensor self, Tensor weight, int[2] stride, int[2] padding, "
    "int[2] dilation, int groups, int zero_point) -> Tensor",
    Rule(expects="int8[n, c, h, w] and int8[out, c / groups, kh, kw]"),
)


@composite(
    "fake_quantize_per_tensor_affine(Tensor self, float scale, int zero_point, int quant_min, "
    "int quant_max) -> Tensor"
)
def fake_quantize_per_tensor_affine(
    self: Any, scale: float, zero_point: int, quant_min: int, quant_max: int
) -> Any:
    """Round to the nearest level, as float."""
    return F.fake_quantize_per_tensor_affine_cachemask(
        self, scale, zero_point, quant_min, quant_max
    )[0]


@composite(
    "fake_quantize_per_channel_affine(Tensor self, Tensor scale, Tensor zero_point, int axis, "
    "int quant_min, int quant_max) -> Tensor"
)
def fake_quantize_per_channel_affine(
    self: Any, scale: Any, zero_point: Any, axis: int, quant_min: int, quant_max: int
) -> Any:
    """Round to the nearest level of each channel, as float."""
    return F.fake_quantize_per_channel_affine_cachemask(
        self, scale, zero_point, axis, quant_min, quant_max
    )[0]
