"""Sums over windows: number by number, or as products of matrices.

Covers: windows that gather (a convolution), that spread (its transpose), and the gradient of a
weight.
Leaves to others: arguments (`convolution`), products of matrices (`gemm`), complex numbers (the
host).
Promise: columns of windows take a bounded workspace, whatever the sizes; narrow floats are summed
in float32 and rounded once.

Three ways. A window of one number is a product of matrices. Few channels, one to each group above
all, are summed number by number. All else copies windows into columns, part by part, and multiplies
those.
"""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy

from holdfast.compute import dtype as formats
from holdfast.compute.engines.opencl import implicit
from holdfast.compute.engines.opencl.array import Array, NotHere
from holdfast.compute.engines.opencl.gemm import gemm, sums_of
from holdfast.compute.engines.opencl.kernels import storage, working

if TYPE_CHECKING:
    from holdfast.compute.engines.opencl.engine import OpenCLEngine

WORKSPACE_BYTES = {"cpu": 4 << 20, "gpu": 256 << 20}  # of columns: what stays in a CPU's cache
DIMENSIONS = 3  # of places: those that are missing have size 1
_DIRECT = 16  # products of the channels of a group; up to here columns are not worth it
_TINY = 1 << 16  # multiplications of a convolution that is not worth several launches


class Window(NamedTuple):
    """How a window goes over an input, one number for each of three dimensions."""

    sizes: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int

    @property
    def places(self) -> int:
        """How many numbers of a channel it sees."""
        return math.prod(self.sizes)

    @property
    def is_plain(self) -> bool:
        """One number of each channel, at every place."""
        return max(*self.sizes, *self.stride) == 1 and not any(self.padding)


def gathered(sizes: tuple[int, ...], window: Window) -> tuple[int, ...]:
    """How many windows there are along the last dimensions."""
    given = zip(window.sizes, window.stride, window.padding, window.dilation, strict=True)
    last = list(given)[-len(sizes) :]
    return tuple(
        (n + 2 * p - d * (k - 1) - 1) // s + 1 for n, (k, s, p, d) in zip(sizes, last, strict=True)
    )


def deep(array: Array) -> Array:
    """With three dimensions of places; those that are missing come first."""
    missing = DIMENSIONS - (array.ndim - 2)
    shape = (*array.shape[:2], *[1] * missing, *array.shape[2:])
    strides = (*array.strides[:2], *[0] * missing, *array.strides[2:])
    return array.viewed(array.dtype, shape, strides)


class Case(NamedTuple):
    """Arrays with three dimensions of places: `x` is gathered from, or spread, into `out`."""

    x: Array
    w: Array
    out: Array
    window: Window
    spread: bool

    @property
    def channels(self) -> tuple[int, int]:
        """Of a group: those that are summed over, and those of the result."""
        groups = self.window.groups
        return self.x.shape[1] // groups, self.out.shape[1] // groups

    def weight_steps(self) -> list[int]:
        """Steps of the weight: from group to group, result to result, summed to summed, places."""
        steps = self.w.steps
        first, second = steps[:2]
        group = self.w.shape[0] // self.window.groups * first
        return (
            [group, second, first, *steps[2:]]
            if self.spread
            else [group, first, second, *steps[2:]]
        )

    def rows(self, engine: OpenCLEngine) -> Array:
        """The weight as [1, groups, results, summed x window], without a copy where that can be."""
        summed, results = self.channels
        groups, places, steps = self.window.groups, self.window.places, self.weight_steps()
        w = self.w
        if not w.is_contiguous:
            w = engine.contiguous(w)
            steps = self._replace(w=w).weight_steps()
        if self.spread and places > 1:  # channels that are summed over are not beside their places
            apart = w.viewed(
                w.dtype, (groups, results, summed, places),
                tuple(s * w.itemsize for s in (steps[0], steps[1], steps[2], 1)),
            )  # fmt: skip
            return engine.contiguous(apart).viewed(w.dtype, (1, groups, results, summed * places))
        size = w.itemsize
        inner = steps[2] if places == 1 else 1
        strides = 0, steps[0] * size, steps[1] * size, inner * size
        return w.viewed(w.dtype, (1, groups, results, summed * places), strides)

    def numbers(self) -> Any:
        """The struct Conv of conv_direct.cl: one argument, as setting forty takes its time."""
        window, (summed, results) = self.window, self.channels
        x, o = self.x.steps, self.out.steps
        words = (
            window.groups, summed, results, *self.x.shape[2:], *window.sizes, *self.out.shape[2:],
            *window.stride, *window.padding, *window.dilation, *x, *self.weight_steps(), *o,
        )  # fmt: skip
        return numpy.void(numpy.array(words, numpy.int64).tobytes())


# ---- gathering and spreading


def convolve(engine: OpenCLEngine, case: Case, bias: Array | None) -> None:
    """Fill `case.out`, which is contiguous."""
    if not case.out.size:
        return
    storage(case.x.dtype)  # which says NotHere for complex numbers
    if case.out.dtype == formats.FLOAT64 and not engine.has_double:
        raise NotHere("no float64 on this device")
    summed, results = case.channels
    steps = case.out.size * summed * case.window.places
    if case.window.is_plain and case.x.shape[2:] == case.out.shape[2:] and case.x.size:
        _product(engine, case, bias)
    elif summed * results <= _DIRECT or steps <= _TINY or not case.x.size or not case.w.size:
        _direct(engine, case, bias)
    elif implicit.is_for(engine, case):
        implicit.convolve(engine, case, bias)
    elif case.spread and max(case.window.stride) > 1:
        _from_columns(engine, case, bias)
    else:
        _by_columns(engine, case, bias)


def _kernel(engine: OpenCLEngine, part: str, function: str, case: Case, **more: Any) -> Any:
    words = {"X": storage(case.x.dtype), "W": storage(case.w.dtype), "O": storage(case.out.dtype)}
    defines = {**words, "ACC": working(sums_of(case.out.dtype)), part: 1, **more}
    if case.spread:
        defines["SPREAD"] = 1
    return engine.kernel("conv_direct", function, **defines)


def _direct(engine: OpenCLEngine, case: Case, bias: Array | None, **more: Any) -> None:
    defines = more if bias is None else {**more, "HAS_BIAS": 1}
    made = _kernel(engine, "DIRECT", "conv_direct", case, **defines)
    items, (d, h, w) = case.out.shape[0] * case.out.shape[1], case.out.shape[2:]
    gpu = engine.mapping == "gpu"
    size = (-(-d * h * w // 64) * 64 * items,) if gpu else (-(-w // 64), d * h, items)
    added = None if bias is None else engine.contiguous(bias)  # the kernel steps from 1 to the next
    arrays = [a if a is not None and a.size else case.out for a in (case.x, case.w, added)]
    group = (64,) if gpu else (1, 1, 1)
    engine.launch(made, size, group, *arrays, case.out, case.numbers(), items)


def _flat(array: Array, groups: int) -> Array | None:
    """[N, groups, channels, places], without a copy; None where places do not follow each other."""
    _, channels, d, h, w = array.shape
    strides = array.strides
    line = [(n, s) for n, s in zip((d, h, w), strides[2:], strict=True) if n != 1]
    if any(a[1] != b[0] * b[1] for a, b in itertools.pairwise(line)):
        return None
    step = line[-1][1] if line else array.itemsize
    each = channels // groups
    return array.viewed(
        array.dtype, (array.shape[0], groups, each, d * h * w),
        (strides[0], each * strides[1], strides[1], step),
    )  # fmt: skip


def _added(case: Case, bias: Array | None, shape: tuple[int, ...]) -> Array | None:
    """The bias as something that is added to [N, groups, results, places]."""
    if bias is None:
        return None
    step, (_, results) = bias.strides[0], case.channels
    return bias.viewed(bias.dtype, shape, (0, results * step, step, 0))


def _product(engine: OpenCLEngine, case: Case, bias: Array | None) -> None:
    groups = case.window.groups
    x = _flat(case.x, groups)
    if x is None:
        x = _flat(engine.contiguous(case.x), groups)
    out, rows = _flat(case.out, groups), case.rows(engine)
    if x is None or out is None:
        raise NotHere("a result that is not contiguous")
    rows = rows.broadcast_to((x.shape[0], *rows.shape[1:]))
    gemm(engine, rows, x, out, _added(case, bias, out.shape))


def _columns_format(engine: OpenCLEngine, kind: numpy.dtype[Any]) -> numpy.dtype[Any]:
    """Of columns: as the product reads it best."""
    return formats.working(kind) if engine.mapping == "cpu" else kind


def parts(
    engine: OpenCLEngine, many: int, places: int, each_bytes: int
) -> list[tuple[int, int, int, int]]:
    """Images and places (first and count of both) whose columns fit into the workspace."""
    room = max(1, WORKSPACE_BYTES[engine.mapping] // max(each_bytes, 1))  # places at a time
    if room >= places:
        step = max(1, room // places)
        return [(n, min(step, many - n), 0, places) for n in range(0, many, step)]
    room = max(room, 64)
    return [(n, 1, p, min(room, places - p)) for n in range(many) for p in range(0, places, room)]


def some(array: Array, first: int, count: int) -> Array:
    """Some images of a batch."""
    shape = (count, *array.shape[1:])
    return array.viewed(array.dtype, shape, array.strides, array.offset + first * array.strides[0])


def fill(
    engine: OpenCLEngine,
    case: Case,
    columns: Array,
    start: int,
    count: int,
    steps: Any,
    outside: int = 0,
) -> None:
    """Copy what windows see of the images of `case.x`, for `count` results from `start` on.

    `steps`: in `columns`, from image to image, group to group, row to row.
    """
    made = _kernel(engine, "COLUMNS", "conv_columns", case._replace(out=columns, w=columns))
    (summed, _), groups, many = case.channels, case.window.groups, case.x.shape[0]
    depth = summed * case.window.places
    around = numpy.asarray(outside).astype(sums_of(columns.dtype))[()]
    size, group = (depth, groups, many), (1, 1, 1)
    if engine.mapping == "gpu":
        size, group = (-(-count // 64) * 64 * depth * many * groups,), (64,)
    engine.launch(made, size, group, case.x, columns, case.numbers(), start, count, *steps, around)


def _by_columns(engine: OpenCLEngine, case: Case, bias: Array | None) -> None:
    """Windows as columns, times the weight; part by part."""
    (summed, _), groups = case.channels, case.window.groups
    depth, kind = summed * case.window.places, _columns_format(engine, case.x.dtype)
    out, rows = _flat(case.out, groups), case.rows(engine)
    if out is None:
        raise NotHere("a result that is not contiguous")
    if rows.dtype != kind:
        rows = engine.cast(rows, kind)
    many, places = out.shape[0], out.shape[3]
    target = out if out.dtype == kind else engine.alloc(out.shape, kind)
    if bias is not None and bias.dtype != kind:
        bias = engine.cast(bias, kind)
    for n, images, start, count in parts(engine, many, places, groups * depth * kind.itemsize):
        columns = engine.alloc((images, groups, depth, count), kind)
        part = case._replace(x=some(case.x, n, images))
        fill(engine, part, columns, start, count, columns.steps[:3])
        shape = (images, groups, rows.shape[2], count)
        at = target.offset + n * target.strides[0] + start * target.strides[3]
        into = target.viewed(kind, shape, target.strides, at)
        left = rows.broadcast_to((images, *rows.shape[1:]))
        gemm(engine, left, columns, into, _added(case, bias, shape))
    if target is not out:
        engine.write(out, target)


def _from_columns(engine: OpenCLEngine, case: Case, bias: Array | None) -> None:
    """The weight times each number, added up where windows overlap: no product is with zero."""
    (summed, results), groups = case.channels, case.window.groups
    places, kind = case.window.places, formats.working(case.x.dtype)
    x = _flat(case.x, groups)
    if x is None:
        x = _flat(engine.contiguous(case.x), groups)
    if x is None:
        raise NotHere("an input that is not contiguous")
    weight = engine.contiguous(case.w, kind)
    size = weight.itemsize
    shape = (1, groups, results * places, summed)
    strides = (0, summed * results * places * size, size, results * places * size)
    rows = weight.viewed(kind, shape, strides)
    x = x if x.dtype == kind else engine.cast(x, kind)
    many, dots = x.shape[0], x.shape[3]
    each_bytes = groups * results * places * size
    if each_bytes * dots > WORKSPACE_BYTES["gpu"]:  # not even one image
        _by_columns(engine, case, bias)
        return
    step = max(1, WORKSPACE_BYTES[engine.mapping] // (each_bytes * dots))
    for n in range(0, many, step):
        images = min(step, many - n)
        columns = engine.alloc((images, groups, results * places, dots), kind)
        left = rows.broadcast_to((images, *rows.shape[1:]))
        gemm(engine, left, some(x, n, images), columns)
        flat = columns.viewed(kind, (images, groups * results * places, *case.x.shape[2:]))
        part = Case(flat, case.w, some(case.out, n, images), case.window, True)
        _direct(engine, part, bias, FROM_COLUMNS=1)


# ---- the gradient of the weight


def correlate(engine: OpenCLEngine, wide: Array, narrow: Array, out: Array, window: Window) -> None:
    """Windows of `wide` times what came of them: the gradient of a weight, into `out`."""
    if not out.size:
        return
    groups = window.groups
    # In a Case the channels of the result are those of `narrow`.
    case = Case(wide, out, narrow, window, False)
    summed, results = case.channels
    many, places = narrow.shape[0], math.prod(narrow.shape[2:])
    few = summed * results <= _DIRECT or narrow.size * summed * window.places <= _TINY
    if few or not wide.size or not narrow.size or formats.working(out.dtype).kind != "f":
        _correlate_directly(engine, case, many)
        return
    kind, depth = formats.working(out.dtype), summed * window.places
    target = out if out.dtype == kind else engine.alloc(out.shape, kind)
    into = target.viewed(kind, (1, groups, results, depth))
    for n, images, start, count in parts(engine, many, places, groups * depth * kind.itemsize):
        columns = engine.alloc((1, groups, depth, images * count), kind)
        _, group, row, _ = columns.steps
        part = case._replace(x=some(wide, n, images))
        fill(engine, part, columns, start, count, (count, group, row))
        came = _turned(engine, some(narrow, n, images), groups, start, count, kind)
        base = into if n or start else None
        gemm(engine, came, columns.transpose((0, 1, 3, 2)), into, base)
    if target is not out:
        engine.write(out, target)


def _turned(
    engine: OpenCLEngine, narrow: Array, groups: int, start: int, count: int, kind: numpy.dtype[Any]
) -> Array:
    """[1, groups, results, images x places] of what came of windows."""
    flat = _flat(narrow, groups)
    if flat is None:
        flat = _flat(engine.contiguous(narrow), groups)
    if flat is None:
        raise NotHere("a gradient that is not contiguous")
    images, _, results, _ = flat.shape
    at = flat.offset + start * flat.strides[3]
    part = flat.viewed(flat.dtype, (images, groups, results, count), flat.strides, at)
    if images == 1 and flat.dtype == kind:
        return part
    solid = engine.contiguous(part.transpose((1, 2, 0, 3)), kind)
    return solid.viewed(kind, (1, groups, results, images * count))


def _correlate_directly(engine: OpenCLEngine, case: Case, many: int) -> None:
    window, out = case.window, case.w
    made = engine.kernel(
        "conv_direct", "conv_weight", X=storage(case.x.dtype), W=storage(case.out.dtype),
        O=storage(out.dtype), ACC=working(sums_of(out.dtype)), WEIGHTS=1,
    )  # fmt: skip
    (summed, results), gpu = case.channels, engine.mapping == "gpu"
    each = 64 if gpu else 1
    size = window.places * each, summed, window.groups * results
    arrays = [a if a.size else out for a in (case.x, case.out)]
    engine.launch(made, size, (each, 1, 1), *arrays, out, case.numbers(), many)
