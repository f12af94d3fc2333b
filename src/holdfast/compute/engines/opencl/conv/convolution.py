"""The convolution ops: direct, as im2col, or as one product. Results are contiguous.

A 1x1 window is a matrix product. Convolutions with few channels per group, such as depthwise ones,
are summed directly. All others copy windows into columns (im2col), in chunks of a bounded
workspace, and multiply, unless `conv_implicit` suits. Narrow floats are summed in float32 and
rounded once.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy

from holdfast.compute import dtype as dtypes
from holdfast.compute.engines.opencl.conv import conv_implicit
from holdfast.compute.engines.opencl.conv.conv_case import ConvCase, to_3d, window_to_3d
from holdfast.compute.engines.opencl.matrix.gemm import accumulator_dtype, gemm
from holdfast.compute.engines.opencl.runtime.array import Array
from holdfast.compute.engines.opencl.runtime.engine_protocol import CLEngine
from holdfast.compute.engines.opencl.runtime.kernel_table import (
    KERNELS,
    check_double,
    kernel,
    storage,
    working,
)
from holdfast.compute.ops.layers.convolution import ConvWindow, plan_convolution, window_of

WORKSPACE_BYTES = {"cpu": 4 << 20, "gpu": 256 << 20}  # for columns; on CPUs it fits into the cache
_DIRECT = 16  # input times output channels of a group, up to which columns do not pay
_TINY = 1 << 16  # multiplications, up to which several launches do not pay


@kernel("convolution")
def convolution(
    engine: CLEngine, input: Array, weight: Array, bias: Array | None, stride: Any,
    padding: Any, dilation: Any, transposed: bool, output_padding: Any, groups: int,
) -> Array:  # fmt: skip
    window, shape = plan_convolution(
        input, weight, bias, stride, padding, dilation, transposed, output_padding, groups
    )
    window = window_to_3d(window)
    out = engine.alloc(shape, input.dtype)
    case = ConvCase(to_3d(input), to_3d(weight), to_3d(out), window, bool(transposed))
    convolve(engine, case, bias)
    return out


@kernel("convolution_backward")
def convolution_backward(
    engine: CLEngine, grad_output: Array, input: Array, weight: Array, bias_sizes: Any,
    stride: Any, padding: Any, dilation: Any, transposed: bool, output_padding: Any, groups: int,
    output_mask: Any,
) -> Any:  # fmt: skip
    window = window_to_3d(window_of(weight, stride, padding, dilation, groups))
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


# ---- forward and transposed


def convolve(engine: CLEngine, case: ConvCase, bias: Array | None) -> None:
    """Compute `case.out`, which is contiguous."""
    if not case.out.size:
        return
    storage(case.x.dtype)  # raises NotHere for complex dtypes
    check_double(engine, case.out.dtype)
    summed, results = case.channels
    steps = case.out.size * summed * case.window.elements
    if case.window.is_plain and case.x.shape[2:] == case.out.shape[2:] and case.x.size:
        _product(engine, case, bias)
    elif summed * results <= _DIRECT or steps <= _TINY or not case.x.size or not case.w.size:
        _direct(engine, case, bias)
    elif conv_implicit.suits(engine, case):
        conv_implicit.convolve(engine, case, bias)
    elif case.spread and max(case.window.stride) > 1:
        _from_columns(engine, case, bias)
    else:
        _by_columns(engine, case, bias)


def _kernel(engine: CLEngine, part: str, function: str, case: ConvCase, **more: Any) -> Any:
    words = {"X": storage(case.x.dtype), "W": storage(case.w.dtype), "O": storage(case.out.dtype)}
    defines = {**words, "ACC": working(accumulator_dtype(case.out.dtype)), part: 1, **more}
    if case.spread:
        defines["SPREAD"] = 1
    return engine.kernel("conv_direct", function, **defines)


def _direct(engine: CLEngine, case: ConvCase, bias: Array | None, **more: Any) -> None:
    defines = more if bias is None else {**more, "HAS_BIAS": 1}
    made = _kernel(engine, "DIRECT", "conv_direct", case, **defines)
    items, (d, h, w) = case.out.shape[0] * case.out.shape[1], case.out.shape[2:]
    gpu = engine.mapping == "gpu"
    size = (-(-d * h * w // 64) * 64 * items,) if gpu else (-(-w // 64), d * h, items)
    added = None if bias is None else engine.contiguous(bias)  # the kernel assumes a step of 1
    arrays = [a if a is not None and a.size else case.out for a in (case.x, case.w, added)]
    group = (64,) if gpu else (1, 1, 1)
    engine.launch(made, size, group, *arrays, case.out, case.to_struct(), items)


def _flatten_spatial(engine: CLEngine, array: Array, groups: int) -> Array:
    """[N, groups, channels, elements], a view unless that needs a copy."""
    _, channels, d, h, w = array.shape
    strides = array.strides
    line = [(n, s) for n, s in zip((d, h, w), strides[2:], strict=True) if n != 1]
    if any(a[1] != b[0] * b[1] for a, b in itertools.pairwise(line)):
        return _flatten_spatial(engine, engine.contiguous(array), groups)
    step = line[-1][1] if line else array.itemsize
    each = channels // groups
    return array.view(
        array.dtype, (array.shape[0], groups, each, d * h * w),
        (strides[0], each * strides[1], strides[1], step),
    )  # fmt: skip


def _broadcast_bias(case: ConvCase, bias: Array | None, shape: tuple[int, ...]) -> Array | None:
    """The bias broadcast to [N, groups, outputs, elements]."""
    if bias is None:
        return None
    step, (_, results) = bias.strides[0], case.channels
    return bias.view(bias.dtype, shape, (0, results * step, step, 0))


def _product(engine: CLEngine, case: ConvCase, bias: Array | None) -> None:
    groups = case.window.groups
    x, out = (_flatten_spatial(engine, a, groups) for a in (case.x, case.out))
    rows = case.rows(engine)
    rows = rows.broadcast_to((x.shape[0], *rows.shape[1:]))
    gemm(engine, rows, x, out, _broadcast_bias(case, bias, out.shape))


def _split_work(
    engine: CLEngine, many: int, places: int, each: int, kind: numpy.dtype[Any]
) -> list[tuple[int, int, int, int]]:
    """Chunks (first image, images, first element, elements) whose columns fit the workspace."""
    room = max(1, WORKSPACE_BYTES[engine.mapping] // max(each * kind.itemsize, 1))
    if room >= places:
        step = max(1, room // places)
        return [(n, min(step, many - n), 0, places) for n in range(0, many, step)]
    room = max(room, 64)
    return [(n, 1, p, min(room, places - p)) for n in range(many) for p in range(0, places, room)]


def _select_images(array: Array, first: int, count: int) -> Array:
    """Some images of a batch."""
    shape = (count, *array.shape[1:])
    return array.view(array.dtype, shape, array.strides, array.offset + first * array.strides[0])


def _fill_columns(
    engine: CLEngine, case: ConvCase, columns: Array, start: int, count: int, steps: Any,
    outside: int = 0,
) -> None:  # fmt: skip
    """Copy the windows of `case.x` into columns, for `count` outputs from `start` on.

    `steps` in `columns`: from image to image, group to group, row to row.
    """
    made = _kernel(engine, "COLUMNS", "conv_columns", case._replace(out=columns, w=columns))
    (summed, _), groups, many = case.channels, case.window.groups, case.x.shape[0]
    depth = summed * case.window.elements
    around = numpy.asarray(outside).astype(accumulator_dtype(columns.dtype))[()]
    size, group = (depth, groups, many), (1, 1, 1)
    if engine.mapping == "gpu":
        size, group = (-(-count // 64) * 64 * depth * many * groups,), (64,)
    engine.launch(
        made, size, group, case.x, columns, case.to_struct(), start, count, *steps, around
    )


def _by_columns(engine: CLEngine, case: ConvCase, bias: Array | None) -> None:
    kind = dtypes.working(case.x.dtype) if engine.mapping == "cpu" else case.x.dtype
    out = _flatten_spatial(engine, case.out, case.window.groups)
    rows = engine.cast(case.rows(engine), kind)
    target = out if out.dtype == kind else engine.alloc(out.shape, kind)
    added = None if bias is None else engine.cast(bias, kind)

    def multiply(left: Array, columns: Array, into: Array) -> None:
        gemm(engine, left, columns, into, _broadcast_bias(case, added, into.shape))

    multiply_columns(engine, case, rows, target, multiply)
    if target is not out:
        engine.write(out, target)


def multiply_columns(
    engine: CLEngine, case: ConvCase, rows: Array, out: Array, multiply: Callable[..., None],
    outside: int = 0,
) -> None:  # fmt: skip
    """Multiply the rows of the weight with windows as columns, chunk by chunk, into `out`."""
    (_, groups, results, depth), kind, (many, *_, places) = rows.shape, rows.dtype, out.shape
    for n, images, start, count in _split_work(engine, many, places, groups * depth, kind):
        columns = engine.alloc((images, groups, depth, count), kind)
        part = case._replace(x=_select_images(case.x, n, images))
        _fill_columns(engine, part, columns, start, count, columns.steps[:3], outside)
        at = out.offset + n * out.strides[0] + start * out.strides[3]
        into = out.view(out.dtype, (images, groups, results, count), out.strides, at)
        multiply(rows.broadcast_to((images, *rows.shape[1:])), columns, into)


def _from_columns(engine: CLEngine, case: ConvCase, bias: Array | None) -> None:
    """Multiply the weight with each input and add up overlapping windows; for stride above 1."""
    (summed, results), groups = case.channels, case.window.groups
    places, kind = case.window.elements, dtypes.working(case.x.dtype)
    x = _flatten_spatial(engine, case.x, groups)
    weight = engine.contiguous(case.w, kind)
    size = weight.itemsize
    shape = (1, groups, results * places, summed)
    strides = (0, summed * results * places * size, size, results * places * size)
    rows = weight.view(kind, shape, strides)
    x = x if x.dtype == kind else engine.cast(x, kind)
    many, dots = x.shape[0], x.shape[3]
    each_bytes = groups * results * places * size
    if each_bytes * dots > WORKSPACE_BYTES["gpu"]:  # a single image does not fit
        _by_columns(engine, case, bias)
        return
    step = max(1, WORKSPACE_BYTES[engine.mapping] // (each_bytes * dots))
    for n in range(0, many, step):
        images = min(step, many - n)
        columns = engine.alloc((images, groups, results * places, dots), kind)
        left = rows.broadcast_to((images, *rows.shape[1:]))
        gemm(engine, left, _select_images(x, n, images), columns)
        flat = columns.view(kind, (images, groups * results * places, *case.x.shape[2:]))
        part = ConvCase(flat, case.w, _select_images(case.out, n, images), case.window, True)
        _direct(engine, part, bias, FROM_COLUMNS=1)


# ---- gradient of the weight


def correlate(engine: CLEngine, wide: Array, narrow: Array, out: Array, window: ConvWindow) -> None:
    """Correlate windows of `wide` with `narrow`: the gradient of a weight, into `out`."""
    if not out.size:
        return
    groups = window.groups
    # In this case the output channels are those of `narrow`.
    case = ConvCase(wide, out, narrow, window, False)
    summed, results = case.channels
    many, places = narrow.shape[0], math.prod(narrow.shape[2:])
    few = summed * results <= _DIRECT or narrow.size * summed * window.elements <= _TINY
    if few or not wide.size or not narrow.size or dtypes.working(out.dtype).kind != "f":
        _correlate_directly(engine, case, many)
        return
    kind, depth = dtypes.working(out.dtype), summed * window.elements
    target = out if out.dtype == kind else engine.alloc(out.shape, kind)
    into = target.view(kind, (1, groups, results, depth))
    for n, images, start, count in _split_work(engine, many, places, groups * depth, kind):
        columns = engine.alloc((1, groups, depth, images * count), kind)
        _, group, row, _ = columns.steps
        part = case._replace(x=_select_images(wide, n, images))
        _fill_columns(engine, part, columns, start, count, (count, group, row))
        came = _gradient_matrix(
            engine, _select_images(narrow, n, images), groups, start, count, kind
        )
        base = into if n or start else None
        gemm(engine, came, columns.transpose((0, 1, 3, 2)), into, base)
    if target is not out:
        engine.write(out, target)


def _gradient_matrix(
    engine: CLEngine, narrow: Array, groups: int, start: int, count: int, kind: numpy.dtype[Any]
) -> Array:
    """The gradient as [1, groups, outputs, images x elements]."""
    flat = _flatten_spatial(engine, narrow, groups)
    images, _, results, _ = flat.shape
    at = flat.offset + start * flat.strides[3]
    part = flat.view(flat.dtype, (images, groups, results, count), flat.strides, at)
    if images == 1 and flat.dtype == kind:
        return part
    solid = engine.contiguous(part.transpose((1, 2, 0, 3)), kind)
    return solid.view(kind, (1, groups, results, images * count))


def _correlate_directly(engine: CLEngine, case: ConvCase, many: int) -> None:
    window, out = case.window, case.w
    made = engine.kernel(
        "conv_direct", "conv_weight", X=storage(case.x.dtype), W=storage(case.out.dtype),
        O=storage(out.dtype), ACC=working(accumulator_dtype(out.dtype)), WEIGHTS=1,
    )  # fmt: skip
    (summed, results), gpu = case.channels, engine.mapping == "gpu"
    each = 64 if gpu else 1
    size = window.elements * each, summed, window.groups * results
    arrays = [a if a.size else out for a in (case.x, case.out)]
    engine.launch(made, size, (each, 1, 1), *arrays, out, case.to_struct(), many)
