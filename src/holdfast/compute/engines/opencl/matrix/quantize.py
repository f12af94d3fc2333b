"""Fake quantization with its gradient, and exact int8 products and convolutions.

int8 products are summed in int32. Scales in arrays are not checked, which would wait for the
device; a scale of 0 gives inf or nan.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy

from holdfast.compute import dtype as dtypes
from holdfast.compute.engines.opencl.conv.conv_case import ConvCase, to_3d, window_to_3d
from holdfast.compute.engines.opencl.conv.convolution import multiply_columns
from holdfast.compute.engines.opencl.elementwise.strided_kernels import Input, Number, compute
from holdfast.compute.engines.opencl.matrix.gemm import as_batch, batch_step, gemm
from holdfast.compute.engines.opencl.runtime.array import Array
from holdfast.compute.engines.opencl.runtime.engine_protocol import CLEngine
from holdfast.compute.engines.opencl.runtime.kernel_table import kernel, working
from holdfast.compute.ops.layers.convolution import ConvWindow, output_sizes

_INT8, _INT32 = numpy.dtype(numpy.int8), numpy.dtype(numpy.int32)
_LEVEL = "(rint($self * (1 / $scale)) + $zero)"
_INSIDE = f"({_LEVEL} >= $low && {_LEVEL} <= $high)"
# Not clamp(): NaN has to stay NaN.
_ROUNDED = f"((({_LEVEL} < $low ? $low : {_LEVEL} > $high ? $high : {_LEVEL}) - $zero) * $scale)"


# ---- levels


def _quantize(engine: CLEngine, x: Array, inputs: list[Input], values: dict[str, float]) -> Any:
    """The nearest level, and whether it was within the range."""
    type = working(x.dtype)
    inputs = [Input("self", x, type), *inputs]
    numbers = [Number(name, value, type) for name, value in values.items()]
    out, inside = engine.alloc_like(x, x.dtype), engine.alloc_like(x, dtypes.BOOL)
    compute(engine, _ROUNDED, inputs, numbers, out)
    compute(engine, _INSIDE, inputs, numbers, inside)
    return out, inside


@kernel("fake_quantize_per_tensor_affine_cachemask")
def fake_quantize_per_tensor(
    engine: CLEngine, self: Array, scale: float, zero_point: int, quant_min: int, quant_max: int
) -> Any:
    if not (math.isfinite(scale) and scale > 0):
        raise ValueError("a scale is not above 0, or not finite")
    values = {"scale": scale, "zero": zero_point, "low": quant_min, "high": quant_max}
    return _quantize(engine, self, [], values)


@kernel("fake_quantize_per_channel_affine_cachemask")
def fake_quantize_per_channel(
    engine: CLEngine, self: Array, scale: Array, zero_point: Array, axis: int, quant_min: int,
    quant_max: int,
) -> Any:  # fmt: skip
    at, kind = axis % self.ndim, working(self.dtype)
    inputs = []
    for name, part in (("scale", scale), ("zero", zero_point)):
        shape = tuple(n if d == at else 1 for d, n in enumerate(self.shape))
        strides = tuple(part.strides[0] if d == at else 0 for d in range(self.ndim))
        inputs.append(Input(name, part.view(part.dtype, shape, strides), kind))
    return _quantize(engine, self, inputs, {"low": quant_min, "high": quant_max})


@kernel(
    "fake_quantize_per_tensor_affine_cachemask_backward",
    "fake_quantize_per_channel_affine_cachemask_backward",
)
def fake_quantize_backward(engine: CLEngine, grad: Array, mask: Array) -> Array:
    kind = working(grad.dtype)
    inputs = [Input("grad", grad, kind), Input("mask", mask, "uchar")]
    return compute(
        engine, f"($mask ? $grad : ({kind})0)", inputs, [], engine.alloc_like(grad, grad.dtype)
    )


# ---- products


@kernel("_int_mm")
def int_mm(engine: CLEngine, self: Array, mat2: Array) -> Array:
    out = engine.alloc((self.shape[0], mat2.shape[1]), _INT32)
    int8_product(engine, as_batch(self), as_batch(mat2), as_batch(out))
    return out


def int8_product(engine: CLEngine, a: Array, b: Array, out: Array) -> None:
    """a [p, q, m, k] times b [p, q, k, n] of int8, into out [p, q, m, n] of int32."""
    if not out.size or not a.shape[3]:
        gemm(engine, a, b, out)
    elif engine.mapping == "cpu":
        _multiply_packed(engine, a, b, out)
    else:
        _multiply_tiled(engine, a, b, out)


def _sizes(a: Array, b: Array) -> tuple[int, int, int]:
    return a.shape[2], b.shape[3], a.shape[3]


def _steps(a: Array, b: Array) -> tuple[int, ...]:
    """As the kernels take them: rows and columns, then batches."""
    a_, b_ = a.steps, b.steps
    return a_[2], a_[3], b_[3], b_[2], a.shape[1], a_[0], a_[1], b_[0], b_[1]


def _multiply_tiled(engine: CLEngine, a: Array, b: Array, out: Array) -> None:
    (m, n, k), batches = _sizes(a, b), a.shape[0] * a.shape[1]
    engine.launch(
        engine.kernel("int8", "int8_tiles"), (16 * -(-n // 64), 16 * -(-m // 64), batches),
        (16, 16, 1), a, b, out, m, n, k, *_steps(a, b), out.steps[2], batch_step(out),
    )  # fmt: skip


def _multiply_packed(engine: CLEngine, a: Array, b: Array, out: Array) -> None:
    (m, n, k), batches = _sizes(a, b), a.shape[0] * a.shape[1]
    high, wide, pairs = 6, 32, -(-k // 2)  # the register tile of int8.cl
    rows, across = -(-m // high), -(-n // wide)
    many = [1 if x.steps[:2] == (0, 0) else batches for x in (a, b)]
    to_a = engine.alloc((many[0], rows * high * pairs), _INT32)
    to_b = engine.alloc((many[1], across * wide * pairs), _INT32)
    engine.launch(
        engine.kernel("int8", "int8_pack"), (rows + across, max(many)), (1, 1),
        a, b, to_a, to_b, m, n, k, *many, *_steps(a, b),
    )  # fmt: skip
    bm, bn = 16 * high, 4 * wide
    while bm > high and batches * -(-m // bm) * -(-n // bn) < 8 * engine.units:
        bm //= 2
    steps = [0 if count == 1 else x.steps[0] for count, x in zip(many, (to_a, to_b), strict=True)]
    engine.launch(
        engine.kernel("int8", "int8_packed"), (-(-n // bn), -(-m // bm), batches), (1, 1, 1),
        to_a, to_b, out, m, n, k, bm, bn, *steps, out.steps[2], batch_step(out),
    )  # fmt: skip


# ---- convolution


@kernel("holdfast_int_conv2d")
def int_conv2d(
    engine: CLEngine, self: Array, weight: Array, stride: Any, padding: Any, dilation: Any,
    groups: int, zero_point: int,
) -> Array:  # fmt: skip
    window = ConvWindow(weight.shape[2:], tuple(stride), tuple(padding), tuple(dilation), groups)
    sizes = output_sizes(self.shape[2:], *window[:4], False, (0, 0))
    out = engine.alloc((self.shape[0], weight.shape[0], *sizes), _INT32)
    if out.size:
        x, w, o = map(to_3d, (self, weight, out))
        case = ConvCase(x, w, o, window_to_3d(window), False)
        _convolve(engine, case, int(zero_point))
    return out


def _convolve(engine: CLEngine, case: ConvCase, zero: int) -> None:
    """A product with the zero point as padding, minus the zero point's contribution."""
    (summed, results), groups = case.channels, case.window.groups
    depth, (many, _, *sizes) = summed * case.window.elements, case.out.shape
    weight, places = engine.contiguous(case.w), math.prod(sizes)
    rows = weight.view(_INT8, (1, groups, results, depth))
    whole = case.out.view(_INT32, (many, groups, results, places))
    product = functools.partial(int8_product, engine)
    multiply_columns(engine, case, rows, whole, product, zero)
    if zero:
        _subtract_zero_point(engine, rows, whole, zero)


def _subtract_zero_point(engine: CLEngine, rows: Array, out: Array, zero: int) -> None:
    ones = engine.upload(numpy.ones((1, 1, 1, 1), numpy.int8))
    groups, results, depth = rows.shape[1:]
    sums = engine.alloc((1, groups, results, 1), _INT32)
    gemm(engine, rows, ones.broadcast_to((1, groups, depth, 1)), sums)
    inputs = [Input("self", out, "int"), Input("sums", sums.broadcast_to(out.shape), "int")]
    number = Number("zero", numpy.int32(zero), "int")
    compute(engine, "($self - $zero * $sums)", inputs, [number], out)
