"""Implicit GEMM convolution: the matrix of patches is never stored as a whole.

Patches are copied chunk by chunk, into scratch that stays in the cache (conv_cpu.cl) or into local
memory (conv_gpu.cl). `convolution` decides when to use it.
"""

from __future__ import annotations

import math
from typing import Any

from holdfast.compute import dtype as dtypes
from holdfast.compute.engines.opencl.conv.conv_case import ConvCase
from holdfast.compute.engines.opencl.matrix.gemm import CPU, PACK_K
from holdfast.compute.engines.opencl.runtime import tuned_parameters
from holdfast.compute.engines.opencl.runtime.array import Array
from holdfast.compute.engines.opencl.runtime.engine_protocol import CLEngine
from holdfast.compute.engines.opencl.runtime.kernel_table import storage

_CPU = f"{CPU} conv_cpu"  # kernel files
_MOST = 128  # window elements on GPU-like devices
_REACH = 1024  # largest distance between two window elements


def suits(engine: CLEngine, case: ConvCase) -> bool:
    """Whether implicit GEMM is possible for a case, and the fastest way."""
    kind = case.x.dtype
    if not dtypes.is_floating(kind):
        return False
    if engine.mapping == "cpu":
        return not case.spread
    window = case.window
    reach = max(d * (k - 1) for d, k in zip(window.dilation, window.sizes, strict=True))
    fits = window.elements <= _MOST and reach < _REACH and kind != dtypes.FLOAT64
    if not fits or (case.spread and max(window.stride) > 1):
        return False
    # Few tiles leave work-groups idle; a product of columns also splits the sums.
    tile, results = tuned_parameters.conv_tile(engine, case.channels[1]), case.channels[1]
    columns = case.out.shape[0] * math.prod(case.out.shape[2:])
    tiles = -(-columns // tile["BN"]) * -(-results // tile["BM"]) * window.groups
    return tiles >= engine.units


def convolve(engine: CLEngine, case: ConvCase, bias: Array | None) -> None:
    """Compute `case.out`, which is contiguous."""
    (_on_cpu if engine.mapping == "cpu" else _on_gpu)(engine, case, bias)


def _on_gpu(engine: CLEngine, case: ConvCase, bias: Array | None) -> None:
    results, groups = case.channels[1], case.window.groups
    tile = tuned_parameters.conv_tile(engine, results)
    items = tile["BM"] // tile["TM"] * (tile["BN"] // tile["TN"])
    defines = {"X": storage(case.x.dtype), **tile, "MOST": _MOST}
    defines |= {"SPREAD": 1} if case.spread else {}
    defines |= {} if bias is None else {"HAS_BIAS": 1}
    columns = case.out.shape[0] * math.prod(case.out.shape[2:])
    rows = case.rows(engine)
    size = items * -(-columns // tile["BN"]), -(-results // tile["BM"]), groups
    engine.launch(
        engine.kernel("conv_gpu", "conv_gpu", **defines), size, (items, 1, 1), case.x, rows,
        case.out if bias is None else engine.contiguous(bias), case.out, case.to_struct(), columns,
        *rows.steps[2:],
    )  # fmt: skip


def _on_cpu(engine: CLEngine, case: ConvCase, bias: Array | None) -> None:
    kind = dtypes.working(case.x.dtype)
    if kind != case.x.dtype:
        wide = engine.alloc(case.out.shape, kind)
        given = None if bias is None else engine.cast(bias, kind)
        cast = case._replace(x=engine.cast(case.x, kind), w=engine.cast(case.w, kind), out=wide)
        _on_cpu(engine, cast, given)
        engine.write(case.out, wide)
        return
    defines = {"WORD": storage(kind), **tuned_parameters.cpu_tile(engine, kind)}
    if bias is not None:
        defines["HAS_C"] = 1
        bias = engine.contiguous(bias)
    panels = _pack_weights(engine, case, defines)
    padded, sizes = _pad_images(engine, case, defines)
    _multiply(engine, case, bias, panels, padded, sizes, defines)


def _pack_weights(engine: CLEngine, case: ConvCase, defines: dict[str, Any]) -> Array:
    (summed, results), groups, high = case.channels, case.window.groups, defines["MR"]
    depth, weight = summed * case.window.elements, engine.contiguous(case.w)
    rows = -(-results // high)
    panels = engine.alloc((groups, rows * high * depth), weight.dtype)
    engine.launch(
        engine.kernel(CPU, "pack_both", **defines),
        (rows, -(-depth // PACK_K), groups), (1, 1, 1), weight, weight, panels, panels,
        results, 1, depth, groups, 0, depth, 1, 0, 0, 1, results * depth, 0, 0, 0,
    )  # fmt: skip
    return panels


def _pad_images(
    engine: CLEngine, case: ConvCase, defines: dict[str, Any]
) -> tuple[Array, list[int]]:
    """The images padded with zeros, and their sizes."""
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
    engine: CLEngine, case: ConvCase, bias: Array | None, panels: Array, padded: Array,
    sizes: list[int], defines: dict[str, Any],
) -> None:  # fmt: skip
    out, window, (summed, results) = case.out, case.window, case.channels
    wide, depth = defines["NV"] * defines["VEC"], summed * window.elements
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
