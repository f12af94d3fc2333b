"""Fake quantization, and products of int8 tensors.

A fake-quantized element is rounded to one of the levels but stays float; its gradient passes
unchanged inside the range of the levels (the straight-through estimator).
"""

from __future__ import annotations

import math
from typing import Any

import numpy

from holdfast.compute import dtype as dtypes
from holdfast.compute import functional as F
from holdfast.compute.ops.rules import Meta, checked, like, meta_of, rule
from holdfast.compute.ops.table import composite, op

_ROUNDED = rule(
    lambda _, b: (meta_of(b["self"]), Meta(tuple(b["self"].shape), dtypes.BOOL)),
    "floats, a scale above 0, levels with quant_min < quant_max",
)


def _check_levels(self: Any, scale: Any, zero_point: Any, quant_min: int, quant_max: int) -> None:
    if quant_min >= quant_max:
        raise ValueError(f"{quant_min} to {quant_max} are no levels")


def _check_channels(
    self: Any, scale: Any, zero_point: Any, axis: int, quant_min: int, quant_max: int
) -> None:
    channels, scales, zeros = self.shape[axis], scale.shape, zero_point.shape
    if scales != (channels,) or zeros != scales:
        given = f"{math.prod(scales)} scales and {math.prod(zeros)} zero points"
        raise ValueError(f"{given} for {channels} channels")
    _check_levels(self, scale, zero_point, quant_min, quant_max)


def _check_int_mm(self: Any, mat2: Any) -> None:
    if not self.dtype == mat2.dtype == numpy.int8 or not self.ndim == mat2.ndim == 2:
        raise TypeError("both must be matrices of int8")
    if self.shape[1] != mat2.shape[0]:
        raise ValueError(f"{self.shape[1]} columns do not match {mat2.shape[0]} rows")


def _check_int_conv(
    self: Any, weight: Any, stride: Any, padding: Any, dilation: Any, groups: int, zero_point: int
) -> None:
    if not self.dtype == weight.dtype == numpy.int8 or not self.ndim == weight.ndim == 4:
        raise TypeError("both must be int8 with four dimensions")
    if self.shape[1] != weight.shape[1] * groups:
        raise ValueError(f"{self.shape[1]} channels for {weight.shape[1]} in {groups} groups")


for _name, _given, _check in (
    ("fake_quantize_per_tensor_affine", "float scale, int zero_point", _check_levels),
    ("fake_quantize_per_channel_affine", "Tensor scale, Tensor zero_point, int axis",
     _check_channels),
):  # fmt: skip
    _arguments = f"(Tensor self, {_given}, int quant_min, int quant_max)"
    op(f"{_name}_cachemask{_arguments} -> (Tensor output, Tensor mask)",
       checked(_ROUNDED, _check),
       {"self": f"{_name}_cachemask_backward(grad, result1)"})  # fmt: skip
    op(f"{_name}_cachemask_backward(Tensor grad, Tensor mask) -> Tensor", like("grad"),
       {"grad": "grads[0] * mask"})  # fmt: skip

    def _quantize(*args: Any, name: str = f"{_name}_cachemask", **named: Any) -> Any:
        """Round to the nearest level, as float."""
        return F.packet(name)(*args, **named)[0]

    composite(f"{_name}{_arguments} -> Tensor")(_quantize)

op("_int_mm(Tensor self, Tensor mat2) -> Tensor",
   rule(lambda _, b: Meta((b["self"].shape[0], b["mat2"].shape[1]), dtypes.DTYPES["int32"]),
        "int8[m, k] and int8[k, n]: the columns of the first are the rows of the second",
        _check_int_mm))  # fmt: skip
# Not ATen's: torch has no convolution of plain int8 tensors.
op("holdfast_int_conv2d(Tensor self, Tensor weight, int[2] stride, int[2] padding, "
   "int[2] dilation, int groups, int zero_point) -> Tensor",
   rule(expects="int8[n, c, h, w] and int8[out, c / groups, kh, kw]",
        check=_check_int_conv))  # fmt: skip
