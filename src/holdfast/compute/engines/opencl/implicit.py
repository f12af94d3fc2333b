"""Convolutions as products of matrices whose second is never there as a whole.

Covers: `convolve`, on CPU-like devices (conv_cpu.cl) and on GPU-like ones (conv_gpu.cl).
Leaves to others: when to use it (`columns`), strides of windows that spread, few channels.
Promise: patches are copied for some results at a time, into scratch that stays in the cache, or
into local memory.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from holdfast.compute import dtype as formats
from holdfast.compute.engines.opencl import tuning
from holdfast.compute.engines.opencl.array import Array
from holdfast.compute.engines.opencl.gemm import CPU, PACK_K
from holdfast.compute.engines.opencl.kernels import storage

if TYPE_CHECKING:
    from holdfast.compute.engines.opencl.columns import Case
    from holdfast.compute.engines.opencl.engine import OpenCLEngine

_CPU = f"{CPU} conv_cpu"  # files of the kernels
_MOST = 128  # places of a window on GPU-like devices
_REACH = 1024  # how far they may be apart


def is_for(engine: OpenCLEngine, case: Case) -> bool:
    """Whether this way is there for a case, and the best one."""
    kind = case.x.dtype
    if not formats.is_floating(kind):
        return False
    if engine.mapping == "cpu":
        return not case.spread
    window = case.window
    reach = max(d * (k - 1) for d, k in zip(window.dilation, window.sizes, strict=True))
    fits = window.places <= _MOST and reach < _REACH and kind != formats.FLOAT64
    if not fits or (case.spread and max(window.stride) > 1):
        return False
    # Few tiles leave work-groups idle: a product of columns shares the sums out as well.
    return _tiles(case, tuning.conv_tile(engine, case.channels[1])) >= engine.units


def _tiles(case: Case, tile: dict[str, int]) -> int:
    columns = case.out.shape[0] * math.prod(case.out.shape[2:])
    groups, (_, results) = case.window.groups, case.channels
    return -(-columns // tile["BN"]) * -(-results // tile["BM"]) * groups


def convolve(engine: OpenCLEngine, case: Case, bias: Array | None) -> None:
    """Fill `case.out`, which is contiguous."""
    way = _on_cpu if engine.mapping == "cpu" else _on_gpu
    way(engine, case, bias)


def _on_gpu(engine: OpenCLEngine, case: Case, bias: Array | None) -> None:
    results, groups = case.channels[1], case.window.groups
    tile = tuning.conv_tile(engine, results)
    items = tile["BM"] // tile["TM"] * (tile["BN"] // tile["TN"])
    defines = {"X": storage(case.x.dtype), **tile, "MOST": _MOST}
    defines |= {"SPREAD": 1} if case.spread else {}
    defines |= {} if bias is None else {"HAS_BIAS": 1}
    columns = case.out.shape[0] * math.prod(case.out.shape[2:])
    rows = case.rows(engine)
    size = items * -(-columns // tile["BN"]), -(-results // tile["BM"]), groups
    engine.launch(
        engine.kernel("conv_gpu", "conv_gpu", **defines), size, (items, 1, 1), case.x, rows,
        case.out if bias is None else engine.contiguous(bias), case.out, case.numbers(), columns,
        *rows.steps[2:],
    )  # fmt: skip


def _on_cpu(engine: OpenCLEngine, case: Case, bias: Array | None) -> None:
    kind = formats.working(case.x.dtype)
    if kind != case.x.dtype:
        wide = engine.alloc(case.out.shape, kind)
        given = None if bias is None else engine.cast(bias, kind)
        cast = case._replace(x=engine.cast(case.x, kind), w=engine.cast(case.w, kind), out=wide)
        _on_cpu(engine, cast, given)
        engine.write(case.out, wide)
        return
    defines = {"WORD": storage(kind), **tuning.cpu_tile(engine, kind)}
    if bias is not None:
        defines["HAS_C"] = 1
        bias = engine.contiguous(bias)
    panels = _weights(engine, case, defines)
    padded, sizes = _padded(engine, case, defines)
    _multiply(engine, case, bias, panels, padded, sizes, defines)


def _weights(engine: OpenCLEngine, case: Case, defines: dict[str, Any]) -> Array:
    """The weight in panels."""
    (summed, results), groups, high = case.channels, case.window.groups, defines["MR"]
    depth, weight = summed * case.window.places, engine.contiguous(case.w)
    rows = -(-results // high)
    panels = engine.alloc((groups, rows * high * depth), weight.dtype)
    engine.launch(
        engine.kernel(CPU, "pack_both", **defines),
        (rows, -(-depth // PACK_K), groups), (1, 1, 1), weight, weight, panels, panels,
        results, 1, depth, groups, 0, depth, 1, 0, 0, 1, results * depth, 0, 0, 0,
    )  # fmt: skip
    return panels


def _padded(engine: OpenCLEngine, case: Case, defines: dict[str, Any]) -> tuple[Array, list[int]]:
    """The images with zeros around."""
    x, padding = case.x, case.window.padding
    sizes = [n + 2 * p for n, p in zip(x.shape[2:], padding, strict=True)]
    many, channels = x.shape[:2]
    spare = defines["NV"] * defines["VEC"]
    padded = engine.alloc((many * channels * math.prod(sizes) + spare,), x.dtype)
    engine.launch(
        engine.kernel(_CPU, "conv_pad", **defines), (channels, many), (1, 1), x, padded, channels,
        *x.steps, *x.shape[2:], *padding, *sizes,
    )  # fmt: skip
    return padded, sizes


def _multiply(
    engine: OpenCLEngine, case: Case, bias: Array | None, panels: Array, padded: Array,
    sizes: list[int], defines: dict[str, Any],
) -> None:  # fmt: skip
    out, window, (summed, results) = case.out, case.window, case.channels
    wide, depth = defines["NV"] * defines["VEC"], summed * window.places
    places = math.prod(out.shape[2:])
    items = out.shape[0] * window.groups * -(-places // wide)
    workers = min(items, 8 * engine.units)
    scratch = engine.alloc((workers, (depth + 1) * wide), out.dtype)
    arrays = (padded, panels, out, scratch, *(() if bias is None else (bias,)))
    engine.launch(
        engine.kernel(_CPU, "conv_packed", **defines), (workers,), (1,), *arrays, items,
        window.groups, summed, results, *sizes, *out.shape[2:], *window.sizes, *window.stride,
        *window.dilation,
    )  # fmt: skip
