"""Fake quantization, and products and convolutions of int8 that are exact in int32.

Without the C loops, blocks of at most 1024 products are summed in float32, which is exact in any
order (128 * 128 * 1024 = 2^24), and the blocks in int32.
"""

from __future__ import annotations

import ctypes
import functools
from typing import Any

import numpy

from holdfast.compute import dtype as dtypes
from holdfast.compute.engines.numpy import c_kernels
from holdfast.compute.engines.numpy.kernels import kernel

_DEPTH = 1024  # products of int8 whose sum float32 holds exactly
_FEW = 8  # rows; for fewer, packing the other matrix costs more than it saves
_POINTER, _INT = ctypes.c_void_p, ctypes.c_int64


def _fake_quantize(self: Any, scale: Any, zero: Any, low: int, high: int) -> tuple[Any, Any]:
    """Dequantized values, and a mask of those that were within low..high."""
    if not (numpy.all(numpy.isfinite(scale)) and numpy.all(scale > 0)):
        raise ValueError("a scale is not above 0, or not finite")
    # By the inverse, as torch does: dividing rounds a few elements in a million differently.
    level = numpy.rint(self.astype(scale.dtype, copy=False) * (scale.dtype.type(1) / scale)) + zero
    mask = (level >= low) & (level <= high)
    out = (numpy.clip(level, low, high) - zero) * scale
    return out.astype(self.dtype, copy=False), mask


@kernel("fake_quantize_per_tensor_affine_cachemask")
def fake_quantize_per_tensor(
    self: Any, scale: float, zero_point: int, quant_min: int, quant_max: int
) -> Any:
    kind = dtypes.working(self.dtype).type
    return _fake_quantize(self, kind(scale), kind(zero_point), quant_min, quant_max)


@kernel("fake_quantize_per_channel_affine_cachemask")
def fake_quantize_per_channel(
    self: Any, scale: Any, zero_point: Any, axis: int, quant_min: int, quant_max: int
) -> Any:
    shape = [-1 if d == axis % self.ndim else 1 for d in range(self.ndim)]
    kind = dtypes.working(self.dtype)
    steps, zeros = (part.astype(kind).reshape(shape) for part in (scale, zero_point))
    return _fake_quantize(self, steps, zeros, quant_min, quant_max)


@kernel(
    "fake_quantize_per_tensor_affine_cachemask_backward",
    "fake_quantize_per_channel_affine_cachemask_backward",
)
def fake_quantize_backward(grad: Any, mask: Any) -> Any:
    return numpy.where(mask, grad, grad.dtype.type(0))


# ---- products


@kernel("_int_mm")
def int_mm(self: Any, mat2: Any) -> Any:
    return int8_product(self, mat2.T)


@kernel("holdfast_int_conv2d")
def int_conv2d(
    self: Any, weight: Any, stride: Any, padding: Any, dilation: Any, groups: int, zero_point: int
) -> Any:
    sides = [(0, 0), (0, 0), *((p, p) for p in padding)]
    padded = numpy.pad(self, sides, constant_values=zero_point)
    reach = [d * (k - 1) + 1 for d, k in zip(dilation, weight.shape[2:], strict=True)]
    windows = numpy.lib.stride_tricks.sliding_window_view(padded, reach, axis=(2, 3))
    windows = windows[:, :, :: stride[0], :: stride[1], :: dilation[0], :: dilation[1]]
    batch, _, high, wide = windows.shape[:4]
    columns = windows.transpose(0, 2, 3, 1, 4, 5).reshape(batch * high * wide, groups, -1)
    rows = weight.reshape(groups, weight.shape[0] // groups, -1)
    # Padding has the value of the zero point; its share is subtracted from the whole product.
    parts = [int8_product(columns[:, g], rows[g]) for g in range(groups)]
    out = numpy.concatenate(parts, axis=1)
    out -= zero_point * weight.reshape(weight.shape[0], -1).sum(axis=1, dtype=numpy.int32)
    return out.reshape(batch, high, wide, -1).transpose(0, 3, 1, 2)


def int8_product(a: Any, b: Any) -> Any:
    """a[m, k] @ b[n, k].T in int32."""
    library = _library()
    if library is None or not a.size or not b.size:
        return _multiply_blocks(a, b)
    a, b = numpy.ascontiguousarray(a), numpy.ascontiguousarray(b)
    out = numpy.empty((a.shape[0], b.shape[0]), numpy.int32)
    if a.shape[0] < _FEW:
        library.holdfast_int8_rows(*_addresses(a, b, out), *out.shape, a.shape[1])
    elif library.holdfast_int8_ready():
        _multiply_packed(library, a, b, out)
    else:
        return _multiply_blocks(a, b)
    return out


def _multiply_blocks(a: Any, b: Any) -> Any:
    out = numpy.zeros((a.shape[0], b.shape[0]), numpy.int32)
    for start in range(0, a.shape[1], _DEPTH):
        part = slice(start, start + _DEPTH)
        product = a[:, part].astype(numpy.float32) @ b[:, part].astype(numpy.float32).T
        out += product.astype(numpy.int32)
    return out


def _multiply_packed(library: Any, a: Any, b: Any, out: Any) -> None:
    rows, depth = a.shape
    block, fours = library.holdfast_int8_ready(), -(-depth // 4)
    packed = numpy.empty((-(-b.shape[0] // block) * block, fours * 4), numpy.int8)
    library.holdfast_int8_pack(*_addresses(b, packed), *b.shape)
    lifted = numpy.full((rows, fours * 4), 128, numpy.uint8)
    numpy.add(a.view(numpy.uint8), 128, out=lifted[:, :depth])
    excess = b.sum(axis=1, dtype=numpy.int32) * 128
    addresses = _addresses(lifted, packed, excess, out)
    library.holdfast_int8_product(*addresses, *out.shape, fours)


def _addresses(*arrays: Any) -> list[int]:
    return [array.ctypes.data for array in arrays]


@functools.cache
def _library() -> Any:
    return c_kernels.load(
        "int8.c",
        {
            "holdfast_int8_ready": (_INT, ()),
            "holdfast_int8_rows": (None, (*[_POINTER] * 3, *[_INT] * 3)),
            "holdfast_int8_pack": (None, (*[_POINTER] * 2, *[_INT] * 2)),
            "holdfast_int8_product": (None, (*[_POINTER] * 4, *[_INT] * 3)),
        },
    )
