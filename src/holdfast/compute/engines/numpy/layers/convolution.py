"""Convolution ops: by the C loop of `conv_direct`, or with NumPy alone (im2col), for any dtype.

A transposed convolution is computed as the gradient of a convolution, and the reverse. For im2col
windows are copied into columns, for a part of an image at a time, and multiplied by the weight.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy

from holdfast.compute import dtype as dtypes
from holdfast.compute.engines.numpy import threads
from holdfast.compute.engines.numpy.c_kernels import kernels
from holdfast.compute.engines.numpy.kernels import kernel, widen
from holdfast.compute.engines.numpy.layers import conv_direct
from holdfast.compute.ops.layers.convolution import ConvWindow, plan_convolution, window_of

_COLUMNS = 1 << 18  # elements of columns at a time: they stay in the L2 cache
_TOGETHER = 1 << 22  # for the weight's gradient, where one large product is faster than many


@kernel("convolution")
def convolution(
    input: Any, weight: Any, bias: Any, stride: Any, padding: Any, dilation: Any,
    transposed: bool, output_padding: Any, groups: int,
) -> Any:  # fmt: skip
    window, shape = plan_convolution(
        input, weight, bias, stride, padding, dilation, transposed, output_padding, groups
    )
    x, w, b = (a if a is None else widen(a) for a in (input, weight, bias))
    if not transposed:
        out = gather(x, w, b, shape[2:], window)
    else:
        out = spread(x, w, shape[1:], window)
        if b is not None:
            out += b.reshape(-1, *[1] * len(window.sizes))
    return out.astype(input.dtype, copy=False)


@kernel("convolution_backward")
def convolution_backward(
    grad_output: Any, input: Any, weight: Any, bias_sizes: Any, stride: Any, padding: Any,
    dilation: Any, transposed: bool, output_padding: Any, groups: int, output_mask: Any,
) -> Any:  # fmt: skip
    window = window_of(weight, stride, padding, dilation, groups)
    g, x, w = (widen(a) for a in (grad_output, input, weight))
    back: list[Any] = [None, None, None]
    if output_mask[0] and transposed:
        back[0] = gather(g, w, None, x.shape[2:], window)
    elif output_mask[0]:
        back[0] = spread(g, w, x.shape[1:], window)
    if output_mask[1]:
        wide, narrow = (g, x) if transposed else (x, g)
        back[1] = _correlate(wide, narrow, w.shape, window)
    if output_mask[2]:
        back[2] = g.sum(axis=(0, *range(2, g.ndim)))
    return tuple(b if b is None else b.astype(input.dtype, copy=False) for b in back)


def gather(x: Any, w: Any, b: Any, sizes: tuple[int, ...], window: ConvWindow) -> Any:
    """Convolution: each result is the sum of a window of `x` times the weight."""
    if window.is_plain and window.groups == 1 and x.shape[2:] == tuple(sizes):
        return _product(x, w, b)
    if _use_c_loop(x, w):
        return conv_direct.gather(x, w, b, sizes, window)
    return _gather_columns(x, w, b, sizes, window)


def spread(g: Any, w: Any, shape: tuple[int, ...], window: ConvWindow) -> Any:
    """Transposed convolution: each element of `g` times the weight is added to a window."""
    if window.is_plain and window.groups == 1 and g.shape[2:] == shape[1:]:
        return _product(g, w.swapaxes(0, 1), None)
    if _use_c_loop(g, w) and math.prod(shape):
        return conv_direct.spread(g, w, shape, window)
    return _spread_columns(g, w, shape, window)


def _use_c_loop(x: Any, w: Any) -> bool:
    fits = x.dtype == dtypes.FLOAT32 and x.ndim <= 5 and x.size > 0 and w.size > 0
    return fits and kernels() is not None


# ---- with NumPy alone


def _product(x: Any, w: Any, b: Any) -> Any:
    """Convolution with a kernel of size 1, which is a matrix product."""
    many, results = x.shape[0], math.prod(x.shape[2:])
    flat, rows = x.reshape(many, x.shape[1], results), w.reshape(w.shape[:2])
    out = numpy.empty((many, w.shape[0], results), x.dtype)

    def work(n: int) -> None:
        numpy.matmul(rows, flat[n], out=out[n])
        if b is not None:
            numpy.add(out[n], b[:, None], out=out[n])

    threads.share_out(work, many, many >= threads.get_num_threads())
    return out.reshape(many, w.shape[0], *x.shape[2:])


def _gather_columns(x: Any, w: Any, b: Any, sizes: tuple[int, ...], window: ConvWindow) -> Any:
    """Convolution: each result is the sum of a window of `x` times the weight."""
    many, groups, results = x.shape[0], window.groups, math.prod(sizes)
    out = numpy.empty((many, groups, w.shape[0] // groups, results), x.dtype)
    wide = numpy.ascontiguousarray(_pad_input(x, sizes, window))
    rows = w.reshape(groups, w.shape[0] // groups, math.prod(w.shape[1:]))
    line = math.prod(sizes[1:])
    alone = w.shape[1] == 1 and rows.shape[1] == 1
    step = sizes[0] if alone else max(1, _COLUMNS // max(rows.shape[2] * groups * line, 1))
    parts = list(itertools.product(range(many), range(0, sizes[0], step)))

    def work(number: int) -> None:
        n, first = parts[number]
        last = min(first + step, sizes[0])
        if alone:
            _convolve_depthwise(wide[n], w, out[n, :, 0].reshape(groups, *sizes), window)
        else:
            target = out[n, :, :, first * line : last * line]
            columns = _columns(wide[n : n + 1], (last - first, *sizes[1:]), window, first)
            numpy.matmul(rows, columns[:, :, 0], out=target)
        if b is not None:
            part = out[n, :, :, first * line : last * line]
            numpy.add(part, b.reshape(groups, -1, 1), out=part)

    threads.share_out(work, len(parts))
    return out.reshape(many, w.shape[0], *sizes)


def _spread_columns(g: Any, w: Any, shape: tuple[int, ...], window: ConvWindow) -> Any:
    """Transposed convolution: each element of `g` times the weight is added to a window.

    `shape` is the result's, without the batch.
    """
    many, groups, sizes = g.shape[0], window.groups, g.shape[2:]
    rows = w.reshape(groups, w.shape[0] // groups, math.prod(w.shape[1:])).swapaxes(1, 2)
    flat = g.reshape(many, groups, w.shape[0] // groups, math.prod(sizes))
    wide = [
        max(s + 2 * p, r)
        for s, p, r in zip(shape[1:], window.padding, window.reach(sizes), strict=True)
    ]
    out = numpy.zeros((many, shape[0], *wide), g.dtype)

    def work(n: int) -> None:
        parts = numpy.matmul(rows, flat[n]).reshape(shape[0], *window.sizes, *sizes)
        for offset in itertools.product(*map(range, window.sizes)):
            out[(n, slice(None), *window.steps(offset, sizes))] += parts[(slice(None), *offset)]

    threads.share_out(work, many)
    inner = tuple(slice(p, p + s) for s, p in zip(shape[1:], window.padding, strict=True))
    return numpy.ascontiguousarray(out[(..., *inner)])


def _correlate(x: Any, g: Any, shape: tuple[int, ...], window: ConvWindow) -> Any:
    """The weight's gradient: windows of `x` times the gradients of their results."""
    many, groups, sizes = x.shape[0], window.groups, g.shape[2:]
    results = math.prod(sizes)
    depth = math.prod(shape[1:])
    out = numpy.zeros((groups, shape[0] // groups, depth), x.dtype)
    wide = _pad_input(x, sizes, window)
    step = max(1, _TOGETHER // max(groups * depth * results, 1))
    for n in range(0, many if results else 0, step):
        part = g[n : n + step]
        rows = part.reshape(len(part), groups, shape[0] // groups, results).transpose(1, 2, 0, 3)
        columns = _columns(wide[n : n + step], sizes, window)
        flat = (groups, -1, len(part) * results)
        out += numpy.matmul(rows.reshape(flat), columns.reshape(groups, depth, -1).swapaxes(1, 2))
    return out.reshape(shape)


def _pad_input(x: Any, sizes: tuple[int, ...], window: ConvWindow) -> Any:
    """Pad `x` with zeros, at least as far as windows for `sizes` results reach."""
    wide = [
        max(s + 2 * p, r)
        for s, p, r in zip(x.shape[2:], window.padding, window.reach(sizes), strict=True)
    ]
    if tuple(wide) == x.shape[2:]:
        return x
    out = numpy.zeros((*x.shape[:2], *wide), x.dtype)
    inner = tuple(slice(p, p + s) for s, p in zip(x.shape[2:], window.padding, strict=True))
    out[(..., *inner)] = x
    return out


def _columns(wide: Any, sizes: tuple[int, ...], window: ConvWindow, first: int = 0) -> Any:
    """im2col, [groups, channels x window, N, results]: a column has the inputs of one result.

    `first`: the index of the first result along the first dimension.
    """
    many, channels = wide.shape[:2]
    begin = wide[:, :, first * window.stride[0] :]
    outer, inner = begin.strides[:2], begin.strides[2:]
    view = numpy.lib.stride_tricks.as_strided(
        begin,
        (channels, *window.sizes, many, *sizes),
        (
            outer[1],
            *(step * d for step, d in zip(inner, window.dilation, strict=True)),
            outer[0],
            *(step * s for step, s in zip(inner, window.stride, strict=True)),
        ),
        writeable=False,
    )
    depth = channels // window.groups * math.prod(window.sizes)
    return view.reshape(window.groups, depth, many, math.prod(sizes))


def _convolve_depthwise(wide: Any, w: Any, out: Any, window: ConvWindow) -> None:
    """Depthwise convolution of one image: sum over the window, one tap at a time.

    With a stride of 1, a channel is computed as one long line, padding included, and the results
    that belong to padding are dropped at the end.
    """
    sizes, steps = out.shape[1:], [s // wide.itemsize for s in wide.strides[1:]]
    flat = wide.reshape(len(wide), -1)
    strides = [step * s for step, s in zip(steps, window.stride, strict=True)]
    count = sum((size - 1) * step for size, step in zip(sizes, steps, strict=True)) + 1
    straight = max(window.stride) == 1
    total, buffer = numpy.empty((2, len(wide), count) if straight else (2, *out.shape), out.dtype)
    for number, offset in enumerate(itertools.product(*map(range, window.sizes))):
        factor = w[(slice(None), 0, *offset)]
        if straight:
            shift = sum(o * d * t for o, d, t in zip(offset, window.dilation, steps, strict=True))
            part, factor = flat[:, shift : shift + count], factor[:, None]
        else:
            part = wide[(slice(None), *window.steps(offset, sizes))]
            factor = factor.reshape(-1, *[1] * len(sizes))
        numpy.multiply(part, factor, out=buffer if number else total)
        if number:
            numpy.add(total, buffer, out=total)
    if straight:
        inner = [step * out.itemsize for step in strides]
        shape, jumps = (len(wide), *sizes), (total.strides[0], *inner)
        total = numpy.lib.stride_tricks.as_strided(total, shape, jumps, writeable=False)
    out[...] = total
