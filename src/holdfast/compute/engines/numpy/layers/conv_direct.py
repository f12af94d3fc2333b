"""Convolution by the C loop: float32, one to three dimensions, forward and gradient of the input.

A convolution is a matrix product whose second factor need not be made: its rows are the input
itself at different offsets (see `native/kernels.c`). This module computes those offsets and shares
the work over threads.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import math
from typing import Any, NamedTuple

import numpy

from holdfast.compute.engines.numpy import threads
from holdfast.compute.engines.numpy.c_kernels import Window, kernels
from holdfast.compute.ops.layers.convolution import ConvWindow

_PATCH = 200 * 1024  # elements of the input laid out at once: they stay in the L2 cache
WORTH = 1 << 21  # multiplications; for fewer, waking another thread costs more than it saves
_RESULTS = 384  # results computed from one patch, if there are as many
Three = tuple[int, int, int]


class Taps(NamedTuple):
    """Along one dimension: which phase (remainder modulo the stride) each tap reads, and where."""

    phases: tuple[int, ...]
    which: tuple[int, ...]
    shifts: tuple[int, ...]
    stride: int
    origin: int


class DirectPlan(NamedTuple):
    """What the C loop needs that depends on shapes alone; sizes in elements."""

    window: Window
    address: int
    results: int
    block: int
    scratch: int
    packed: int
    work: int
    kept: tuple[Any, ...]  # keeps the arrays alive that `window` points to


def forward_taps(count: int, stride: int, padding: int, dilation: int) -> Taps:
    """Taps for results: result i reads input i * stride - padding + tap * dilation."""
    reads = [tap * dilation for tap in range(count)]
    phases = tuple(sorted({r % stride for r in reads}))
    which = tuple(phases.index(r % stride) for r in reads)
    return Taps(phases, which, tuple(r // stride for r in reads), stride, -padding)


class Phase(NamedTuple):
    """Results with the same remainder modulo the stride: the first, and the taps that reach it."""

    first: int
    stride: int
    taps: tuple[int, ...]
    reads: Taps


def backward_taps(count: int, stride: int, padding: int, dilation: int) -> list[Phase]:
    """Phases for the input's gradient.

    Element i is read by result (i + padding - tap * dilation) / stride, if that is an integer.
    """
    found = []
    for rest in range(stride):
        taps = tuple(tap for tap in range(count) if (tap * dilation - rest) % stride == 0)
        first = (rest - padding) % stride
        begin = (first + padding - rest) // stride
        sources = [begin + (rest - tap * dilation) // stride for tap in taps]
        least = min(sources, default=0)
        shifts = tuple(source - least for source in sources)
        reads = Taps((0,), (0,) * len(taps), shifts, 1, least)
        found.append(Phase(first, stride, taps, reads))
    return found


_ONE_TAP = forward_taps(1, 1, 0, 1)


@functools.lru_cache(512)
def plan(
    sizes: Three, x_steps: Three, x_channel: int, channels: int, outputs: int,
    taps: tuple[Taps, Taps, Taps], out_sizes: Three, out_steps: Three, out_channel: int,
) -> DirectPlan:  # fmt: skip
    """Plan the C loop for arrays of these shapes. Steps are strides in elements."""
    planes = list(itertools.product(*(t.phases for t in taps)))
    number = {phase: i for i, phase in enumerate(planes)}
    grid = [_line(t, size, out) for t, size, out in zip(taps, sizes, out_sizes, strict=True)]
    shifts, which = [], []
    for tap in itertools.product(*(range(len(t.which)) for t in taps)):
        d, h, w = (t.shifts[i] for t, i in zip(taps, tap, strict=True))
        shifts.append((d * grid[1] + h) * grid[2] + w)
        phase = tuple(t.phases[t.which[i]] for t, i in zip(taps, tap, strict=True))
        which.append(number[phase])
    taps_count, reach = len(shifts), max(shifts)
    plane = (numpy.arange(channels)[:, None] * len(planes) + numpy.array(which)).ravel()
    shift = numpy.tile(numpy.array(shifts, numpy.int64), channels)
    phase = numpy.array(planes, numpy.int64)
    results = ((out_sizes[0] - 1) * grid[1] + out_sizes[1] - 1) * grid[2] + out_sizes[2]
    high = kernels().holdfast_high() if outputs > 1 else 1
    block, chunk = _blocks(results, reach, channels, len(planes))
    depth = channels * taps_count
    window = Window(
        x_steps, x_channel, sizes, tuple(t.stride for t in taps), tuple(t.origin for t in taps),
        tuple(grid), channels, len(planes), phase.ctypes.data, depth, plane.ctypes.data,
        shift.ctypes.data, outputs, high, out_sizes, out_steps, out_channel, reach, chunk,
    )  # fmt: skip
    address = ctypes.addressof(window)
    return DirectPlan(
        window, address, results, block, kernels().holdfast_scratch(address, block),
        -(-outputs // high) * high * depth, results * outputs * depth, (phase, plane, shift),
    )  # fmt: skip


def _line(taps: Taps, size: int, out: int) -> int:
    """The length of a line of the grid.

    With a stride of 1, the padding after a line is also the padding before the next.
    """
    whole = out + max(taps.shifts)
    if taps.stride == 1 and taps.origin <= 0:
        zeros = -taps.origin
        return max(out, min(whole, size + zeros), whole - zeros)
    return whole


def _blocks(results: int, reach: int, channels: int, planes: int) -> tuple[int, int]:
    """How many results and how many channels to compute at a time."""
    most = max(_PATCH // (channels * planes) - reach, min(_RESULTS, results))
    count = -(-results // most)
    block = -(-results // count)
    block = min(-(-block // 48) * 48, results) if count > 1 else results
    return block, max(min(channels, _PATCH // ((block + reach) * planes)), min(channels, 8))


def pack(weight: Any, found: DirectPlan, groups: int) -> Any:
    """Pack weights [groups, outputs, depth] as the loop reads them."""
    window = found.window
    flat = numpy.ascontiguousarray(weight)
    packed = numpy.empty(groups * found.packed, numpy.float32)
    for g in range(groups) if window.high > 1 else ():
        kernels().holdfast_pack(
            flat.ctypes.data + 4 * g * window.outputs * window.depth, window.outputs, window.depth,
            window.depth, 1, window.high, packed.ctypes.data + 4 * g * found.packed,
        )  # fmt: skip
    return packed if window.high > 1 else flat


def _convolve(x: Any, weight: Any, bias: Any, out: Any, found: DirectPlan, groups: int) -> None:
    loop, window = kernels().holdfast_convolve, found.window
    many = x.shape[0]
    block = _results_per_call(found, many * groups)
    starts = range(0, found.results, block)
    together = _groups_per_call(groups, many * len(starts), found.work)
    parts = list(itertools.product(range(many), range(0, groups, together), starts))
    packed = pack(weight, found, groups)
    factors, at, to = packed.ctypes.data, x.ctypes.data, out.ctypes.data
    added = None if bias is None else numpy.ascontiguousarray(bias)

    def work(number: int) -> None:
        n, g, start = parts[number]
        loop(
            found.address,
            at + n * x.strides[0] + 4 * g * window.channels * window.x_channel,
            factors + 4 * g * found.packed,
            None if added is None else added.ctypes.data + 4 * g * window.outputs,
            to + n * out.strides[0] + 4 * g * window.outputs * window.out_channel,
            start, min(start + block, found.results), min(together, groups - g),
            found.packed, threads.scratch.of(found.scratch).ctypes.data,
        )  # fmt: skip

    threads.share_out(work, len(parts), found.work * many * groups >= WORTH)


def _results_per_call(found: DirectPlan, parts: int) -> int:
    """Results for each call: fewer than fit the cache if threads would be idle otherwise."""
    wanted = 4 * threads.get_num_threads() // max(parts * -(-found.results // found.block), 1)
    if wanted <= 1 or threads.get_num_threads() == 1:
        return found.block
    return min(max(-(-found.block // (wanted * 48)) * 48, 192), found.block)


def _groups_per_call(groups: int, parts: int, work: int) -> int:
    """Groups for each call: many if they are small, but with enough calls for all threads."""
    wanted = max(1, 4 * threads.get_num_threads() // parts)
    return max(1, min(groups // min(wanted, groups), max(1, (1 << 24) // max(work, 1))))


def gather(x: Any, w: Any, b: Any, sizes: tuple[int, ...], setting: ConvWindow) -> Any:
    """Convolution: each result is the sum of a window of `x` times the weight."""
    out = numpy.empty((x.shape[0], w.shape[0], *sizes), numpy.float32)
    taps = tuple(forward_taps(*each) for each in zip(*setting[:4], strict=True))
    _run(x, w, b, out, taps, setting.groups)
    return out


def spread(g: Any, w: Any, shape: tuple[int, ...], setting: ConvWindow) -> Any:
    """Transposed convolution: each element of `g` times the weight is added to a window.

    An element of the result is a sum over the taps that reach it, which depend on its index modulo
    the stride: one convolution for each remainder.
    """
    groups = setting.groups
    out = numpy.empty((g.shape[0], *shape), numpy.float32)
    swapped = w.reshape(groups, w.shape[0] // groups, *w.shape[1:]).swapaxes(1, 2)
    swapped = swapped.reshape(shape[0], w.shape[0] // groups, *w.shape[2:])
    along = (backward_taps(*each) for each in zip(*setting[:4], strict=True))
    for phases in itertools.product(*along):
        target = out[(..., *(slice(p.first, None, p.stride) for p in phases))]
        if not target.size:
            continue
        if not all(p.taps for p in phases):
            target[...] = 0
            continue
        part = swapped
        for dimension, p in enumerate(phases, 2):
            if len(p.taps) < part.shape[dimension]:
                part = part.take(p.taps, axis=dimension)
        _run(g, part, None, target, tuple(p.reads for p in phases), groups)
    return out


def _run(x: Any, w: Any, b: Any, out: Any, taps: tuple[Taps, ...], groups: int) -> None:
    """Add dimensions up to three and convolve.

    Small images are stacked along an added dimension, so that weights are read once for several.
    """
    free = 3 - len(taps)
    if free and x.shape[0] > 1 and math.prod(out.shape[2:]) < _RESULTS:
        x, out, free = x.swapaxes(0, 1)[None], out.swapaxes(0, 1)[None], free - 1
        taps = (_ONE_TAP, *taps)
    fill = (_ONE_TAP,) * free
    x_steps, out_steps = ([step // 4 for step in a.strides] for a in (x, out))
    found = plan(
        _to_three(x.shape[2:], 1), _to_three(x_steps[2:], 0), x_steps[1], w.shape[1],
        w.shape[0] // groups, (*fill, *taps), _to_three(out.shape[2:], 1),
        _to_three(out_steps[2:], 0), out_steps[1],
    )  # fmt: skip
    _convolve(x, w, b, out, found, groups)


def _to_three(values: Any, missing: int) -> Three:
    first, second, third = (*(missing,) * (3 - len(values)), *values)
    return first, second, third
