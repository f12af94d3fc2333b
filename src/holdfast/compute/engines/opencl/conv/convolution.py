"""The convolution ops: argument checks, and the calls for each result. Results are contiguous."""

from __future__ import annotations

from typing import Any

from holdfast.compute.engines.opencl.conv.conv_case import DIMENSIONS, ConvCase, ConvWindow, to_3d
from holdfast.compute.engines.opencl.conv.conv_im2col import convolve, correlate
from holdfast.compute.engines.opencl.runtime.array import Array, NotHere
from holdfast.compute.engines.opencl.runtime.engine_protocol import CLEngine
from holdfast.compute.engines.opencl.runtime.kernel_table import KERNELS, kernel
from holdfast.compute.ops.layers.convolution import output_sizes, per_dimension


@kernel("convolution")
def convolution(
    engine: CLEngine, input: Array, weight: Array, bias: Array | None, stride: Any,
    padding: Any, dilation: Any, transposed: bool, output_padding: Any, groups: int,
) -> Array:  # fmt: skip
    count = weight.ndim - 2
    if count < 1:
        raise ValueError("a weight has two dimensions for channels and one or more for the window")
    steps, zeros, gaps = (per_dimension(value, count) for value in (stride, padding, dilation))
    extra = per_dimension(output_padding, count)
    window = _window(weight, steps, zeros, gaps, groups)
    _check(input, weight, bias, [steps, zeros, gaps, extra], int(groups), transposed)
    sizes = output_sizes(input.shape[2:], weight.shape[2:], steps, zeros, gaps, transposed, extra)
    if any(size < 0 or (size == 0 and not transposed) for size in sizes):
        raise ValueError(f"the window is larger than the padded input: the result would be {sizes}")
    channels = weight.shape[1] * groups if transposed else weight.shape[0]
    out = engine.alloc((input.shape[0], channels, *sizes), input.dtype)
    case = ConvCase(to_3d(input), to_3d(weight), to_3d(out), window, bool(transposed))
    convolve(engine, case, bias)
    return out


@kernel("convolution_backward")
def convolution_backward(
    engine: CLEngine, grad_output: Array, input: Array, weight: Array, bias_sizes: Any,
    stride: Any, padding: Any, dilation: Any, transposed: bool, output_padding: Any, groups: int,
    output_mask: Any,
) -> Any:  # fmt: skip
    count = weight.ndim - 2
    steps, zeros, gaps = (per_dimension(value, count) for value in (stride, padding, dilation))
    window = _window(weight, steps, zeros, gaps, groups)
    kind = input.dtype
    g, x, w = to_3d(grad_output), to_3d(input), to_3d(weight)
    back: list[Any] = [None, None, None]
    if output_mask[0]:
        back[0] = engine.alloc(input.shape, kind)
        convolve(engine, ConvCase(g, w, to_3d(back[0]), window, not transposed), None)
    if output_mask[1]:
        back[1] = engine.alloc(weight.shape, kind)
        wide, narrow = (g, x) if transposed else (x, g)
        correlate(engine, wide, narrow, to_3d(back[1]), window)
    if output_mask[2]:
        dims = [0, *range(2, grad_output.ndim)]
        total = KERNELS["sum.dim_IntList"].function(engine, grad_output, dims)
        back[2] = engine.cast(total, kind)
    return tuple(back)


def _window(weight: Array, stride: Any, padding: Any, dilation: Any, groups: int) -> ConvWindow:
    missing = DIMENSIONS - (weight.ndim - 2)
    if missing < 0:
        raise NotHere("a convolution of more than three dimensions")
    ones, zeros = (1,) * missing, (0,) * missing
    sizes = (*ones, *weight.shape[2:])
    return ConvWindow(sizes, (*ones, *stride), (*zeros, *padding), (*ones, *dilation), int(groups))


def _check(
    x: Array, w: Array, b: Array | None, given: list[tuple[int, ...]], groups: int, transposed: bool
) -> None:
    stride, padding, dilation, extra = given
    if x.ndim != w.ndim:
        raise ValueError(f"the input has {x.ndim} dimensions, the weight {w.ndim}")
    if x.dtype != w.dtype or (b is not None and b.dtype != x.dtype):
        raise TypeError("input, weight and bias have different dtypes")
    if groups < 1 or min(stride) < 1 or min(dilation) < 1:
        raise ValueError("groups, stride and dilation are 1 or more")
    if min(padding) < 0 or min(extra) < 0:
        raise ValueError("padding is 0 or more")
    channels = w.shape[0] if transposed else w.shape[1] * groups
    if x.shape[1] != channels or w.shape[0] % groups:
        raise ValueError(
            f"{x.shape[1]} channels do not fit a weight for {channels} in {groups} groups"
        )
    if transposed and any(e >= max(s, d) for e, s, d in zip(extra, stride, dilation, strict=True)):
        raise ValueError("output_padding is smaller than the stride or the dilation")
    results = w.shape[1] * groups if transposed else w.shape[0]
    if b is not None and b.shape != (results,):
        raise ValueError(f"the bias has shape {b.shape} for {results} channels")
