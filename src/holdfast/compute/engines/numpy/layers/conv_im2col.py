"""Convolution with NumPy alone (im2col): any dtype and number of dimensions.

Windows are copied into columns, for a part of an image at a time, and multiplied by the weight.
"""

from __future__ import annotations

import itertools
import math
from typing import Any, NamedTuple

import numpy

from holdfast.compute.engines.numpy import threads

_COLUMNS = 1 << 18  # elements of columns at a time: they stay in the L2 cache
_TOGETHER = 1 << 22  # for the weight's gradient, where one large product is faster than many


class ConvWindow(NamedTuple):
    """Kernel size, stride, padding and dilation of a convolution, for each dimension."""

    sizes: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int

    @property
    def plain(self) -> bool:
        """Whether the kernel has size 1, with no stride and no padding."""
        return max(*self.sizes, *self.stride) == 1 and not any(self.padding)

    def reach(self, sizes: tuple[int, ...]) -> list[int]:
        """How many input elements windows for `sizes` results cover, by dimension."""
        return [
            (size - 1) * s + d * (k - 1) + 1 if size else 0
            for size, k, s, d in zip(sizes, self.sizes, self.stride, self.dilation, strict=True)
        ]

    def steps(self, offset: tuple[int, ...], sizes: tuple[int, ...]) -> tuple[slice, ...]:
        """The input elements that one tap of the window reads for `sizes` results."""
        return tuple(
            slice(o * d, o * d + (size - 1) * s + 1 if size else 0, s)
            for o, size, s, d in zip(offset, sizes, self.stride, self.dilation, strict=True)
        )


def product(x: Any, w: Any, b: Any) -> Any:
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


def gather(x: Any, w: Any, b: Any, sizes: tuple[int, ...], window: ConvWindow) -> Any:
    """Convolution: each result is the sum of a window of `x` times the weight."""
    many, groups, results = x.shape[0], window.groups, math.prod(sizes)
    out = numpy.empty((many, groups, w.shape[0] // groups, results), x.dtype)
    wide = numpy.ascontiguousarray(pad_input(x, sizes, window))
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


def spread(g: Any, w: Any, shape: tuple[int, ...], window: ConvWindow) -> Any:
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


def correlate(x: Any, g: Any, shape: tuple[int, ...], window: ConvWindow) -> Any:
    """The weight's gradient: windows of `x` times the gradients of their results."""
    many, groups, sizes = x.shape[0], window.groups, g.shape[2:]
    results = math.prod(sizes)
    depth = math.prod(shape[1:])
    out = numpy.zeros((groups, shape[0] // groups, depth), x.dtype)
    wide = pad_input(x, sizes, window)
    step = max(1, _TOGETHER // max(groups * depth * results, 1))
    for n in range(0, many if results else 0, step):
        part = g[n : n + step]
        rows = part.reshape(len(part), groups, shape[0] // groups, results).transpose(1, 2, 0, 3)
        columns = _columns(wide[n : n + step], sizes, window)
        flat = (groups, -1, len(part) * results)
        out += numpy.matmul(rows.reshape(flat), columns.reshape(groups, depth, -1).swapaxes(1, 2))
    return out.reshape(shape)


def pad_input(x: Any, sizes: tuple[int, ...], window: ConvWindow) -> Any:
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
