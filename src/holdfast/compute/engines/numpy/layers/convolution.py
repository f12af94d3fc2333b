"""Convolution ops: check arguments and choose between `conv_direct` and `conv_im2col`.

A transposed convolution is computed as the gradient of a convolution, and the reverse.
"""

from __future__ import annotations

import math
from typing import Any

from holdfast.compute import dtype as dtypes
from holdfast.compute.engines.numpy.c_kernels import kernels
from holdfast.compute.engines.numpy.kernels import kernel, widen
from holdfast.compute.engines.numpy.layers import conv_direct, conv_im2col
from holdfast.compute.engines.numpy.layers.conv_im2col import ConvWindow
from holdfast.compute.ops.layers.convolution import output_sizes, per_dimension


@kernel("convolution")
def convolution(
    input: Any, weight: Any, bias: Any, stride: Any, padding: Any, dilation: Any,
    transposed: bool, output_padding: Any, groups: int,
) -> Any:  # fmt: skip
    window = _window(weight, stride, padding, dilation, groups)
    extra = per_dimension(output_padding, len(window.sizes))
    _check(input, weight, bias, window, transposed, extra)
    kind = input.dtype
    x, w = widen(input), widen(weight)
    b = None if bias is None else widen(bias)
    sizes = output_sizes(
        x.shape[2:], window.sizes, window.stride, window.padding, window.dilation, transposed, extra
    )
    if any(size < 0 or (size == 0 and not transposed) for size in sizes):
        raise ValueError(f"the window is larger than the padded input: the result would be {sizes}")
    if transposed:
        out = spread(x, w, (w.shape[1] * groups, *sizes), window)
        if b is not None:
            out += b.reshape(-1, *[1] * len(sizes))
    else:
        out = gather(x, w, b, sizes, window)
    return out if out.dtype == kind else out.astype(kind)


@kernel("convolution_backward")
def convolution_backward(
    grad_output: Any, input: Any, weight: Any, bias_sizes: Any, stride: Any, padding: Any,
    dilation: Any, transposed: bool, output_padding: Any, groups: int, output_mask: Any,
) -> Any:  # fmt: skip
    window = _window(weight, stride, padding, dilation, groups)
    kind = input.dtype
    g, x, w = (widen(a) for a in (grad_output, input, weight))
    back: list[Any] = [None, None, None]
    if output_mask[0] and transposed:
        back[0] = gather(g, w, None, x.shape[2:], window)
    elif output_mask[0]:
        back[0] = spread(g, w, x.shape[1:], window)
    if output_mask[1]:
        wide, narrow = (g, x) if transposed else (x, g)
        back[1] = conv_im2col.correlate(wide, narrow, w.shape, window)
    if output_mask[2]:
        back[2] = g.sum(axis=(0, *range(2, g.ndim)))
    return tuple(b if b is None or b.dtype == kind else b.astype(kind) for b in back)


def _window(weight: Any, stride: Any, padding: Any, dilation: Any, groups: int) -> ConvWindow:
    count = weight.ndim - 2
    if count < 1:
        raise ValueError("a weight has two dimensions for channels and one or more for the window")
    steps, zeros, gaps = (per_dimension(value, count) for value in (stride, padding, dilation))
    return ConvWindow(weight.shape[2:], steps, zeros, gaps, int(groups))


def _check(x: Any, w: Any, b: Any, window: ConvWindow, transposed: bool, extra: Any) -> None:
    if x.ndim != w.ndim:
        raise ValueError(f"the input has {x.ndim} dimensions, the weight {w.ndim}")
    if x.dtype != w.dtype or (b is not None and b.dtype != x.dtype):
        raise TypeError("input, weight and bias have different dtypes")
    groups = window.groups
    if groups < 1 or min(window.stride) < 1 or min(window.dilation) < 1:
        raise ValueError("groups, stride and dilation are 1 or more")
    if min(window.padding) < 0 or min(extra) < 0:
        raise ValueError("padding is 0 or more")
    channels = w.shape[0] if transposed else w.shape[1] * groups
    if x.shape[1] != channels or w.shape[0] % groups:
        raise ValueError(
            f"{x.shape[1]} channels do not fit a weight for {channels} in {groups} groups"
        )
    if transposed and any(
        e >= max(s, d) for e, s, d in zip(extra, window.stride, window.dilation, strict=True)
    ):
        raise ValueError("output_padding is smaller than the stride or the dilation")
    results = w.shape[1] * groups if transposed else w.shape[0]
    if b is not None and b.shape != (results,):
        raise ValueError(f"the bias has shape {b.shape} for {results} channels")


def gather(x: Any, w: Any, b: Any, sizes: tuple[int, ...], window: ConvWindow) -> Any:
    """Convolution: each result is the sum of a window of `x` times the weight."""
    if window.plain and window.groups == 1 and x.shape[2:] == tuple(sizes):
        return conv_im2col.product(x, w, b)
    if _use_c_loop(x, w):
        return conv_direct.gather(x, w, b, sizes, window)
    return conv_im2col.gather(x, w, b, sizes, window)


def spread(g: Any, w: Any, shape: tuple[int, ...], window: ConvWindow) -> Any:
    """Transposed convolution: each element of `g` times the weight is added to a window."""
    if window.plain and window.groups == 1 and g.shape[2:] == shape[1:]:
        return conv_im2col.product(g, w.swapaxes(0, 1), None)
    if _use_c_loop(g, w) and math.prod(shape):
        return conv_direct.spread(g, w, shape, window)
    return conv_im2col.spread(g, w, shape, window)


def _use_c_loop(x: Any, w: Any) -> bool:
    fits = x.dtype == dtypes.FLOAT32 and x.ndim <= 5 and x.size > 0 and w.size > 0
    return fits and kernels() is not None
