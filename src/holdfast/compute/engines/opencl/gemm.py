"""Products of batches of matrices: which kernel does one, and with what parameters.

Covers: `gemm`, out = alpha * a @ b + beta * c, over two dimensions of batches and any strides.
Leaves to others: what ops mean (`matrix`), the parameters (`tuning`), the kernels (gemm_*.cl).
Promise: writes `out` alone; sums are in float32 at least, in float64 for float64, and wrap around
for whole numbers. Raises NotHere for formats that the device does not compute with.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy

from holdfast.compute import dtype as formats
from holdfast.compute.engines.opencl import clblast, tuning
from holdfast.compute.engines.opencl.array import Array, NotHere
from holdfast.compute.engines.opencl.kernels import storage, working

if TYPE_CHECKING:
    from holdfast.compute.engines.opencl.engine import OpenCLEngine

_FEW = {"cpu": 32, "gpu": 8}  # rows for which packing, or tiles, cost more than they bring
_SMALL = 1 << 20  # multiplications of a product that is not worth a second launch on CPUs
CPU, _GPU = "panels_cpu gemm_cpu", "fours_gpu gemm_gpu"  # files of the kernels
PACK_K = 256  # as gemm_cpu.cl has it
FAST = frozenset(("float32", "float16", "bfloat16", "float64"))  # formats of the fast kernels


def gemm(
    engine: OpenCLEngine,
    a: Array,
    b: Array,
    out: Array,
    c: Array | None = None,
    alpha: Any = 1,
    beta: Any = 1,
) -> None:
    """a [p, q, m, k] times b [p, q, k, n] into out [p, q, m, n], and `c` of that shape added."""
    if not out.size:
        return
    if out.dtype == formats.FLOAT64 and not engine.has_double:
        raise NotHere("no float64 on this device")
    if b.shape[3] == 1 != a.shape[2] and out.steps[2] == 1:
        a, b, out = swapped(b), swapped(a), swapped(out)
        c = c if c is None else swapped(c)
    if engine.mapping == "cpu" and out.dtype in formats.NARROW:
        _widened(engine, a, b, out, c, alpha, beta)
        return
    if _blasted(engine, a, b, out, c, alpha, beta):
        return
    way = _simple if not _is_fast(a, b, out, c) else (_cpu if engine.mapping == "cpu" else _gpu)
    way(engine, a, b, out, c, alpha, beta)


def _blasted(
    engine: OpenCLEngine, a: Array, b: Array, out: Array, c: Array | None, alpha: Any, beta: Any
) -> bool:
    """Whether CLBlast has done it, which the tuner found faster for such sizes."""
    if "CLBLAST" not in tuning.settings(engine, a.shape[2], b.shape[3]) or not a.shape[3]:
        return False
    return clblast.gemm(engine, a, b, out, c, alpha, beta)


def four(array: Array) -> Array:
    """A matrix as the only one of its batches."""
    return array.viewed(array.dtype, (1, 1, *array.shape), (0, 0, *array.strides))


def swapped(array: Array) -> Array:
    """Batches of matrices with their rows as columns."""
    return array.transpose((0, 1, 3, 2))


def _widened(
    engine: OpenCLEngine, a: Array, b: Array, out: Array, c: Array | None, alpha: Any, beta: Any
) -> None:
    """Narrow floats as float32: to build kernels for each of them takes PoCL many seconds."""
    wide = engine.alloc(out.shape, formats.FLOAT32)
    a, b = (cast_once(engine, x, formats.FLOAT32) for x in (a, b))
    c = c if c is None else cast_once(engine, c, formats.FLOAT32)
    gemm(engine, a, b, wide, c, alpha, beta)
    engine.write(out, wide)


def cast_once(engine: OpenCLEngine, array: Array, kind: numpy.dtype[Any]) -> Array:
    """In another format; what is repeated is repeated still."""
    if array.dtype == kind:
        return array
    once = tuple(n if step else 1 for n, step in zip(array.shape, array.strides, strict=True))
    part = engine.cast(array.viewed(array.dtype, once, array.strides), kind)
    return part.broadcast_to(array.shape)


def _is_fast(a: Array, b: Array, out: Array, c: Array | None) -> bool:
    kind = out.dtype
    same = a.dtype == b.dtype == kind and (c is None or c.dtype == kind)
    row = out.strides[3] == out.itemsize or out.shape[3] == 1
    return same and row and bool(a.shape[3]) and storage(kind) in FAST


# ---- any format


def sums_of(kind: numpy.dtype[Any]) -> numpy.dtype[Any]:
    """The format of sums for a result of a format: whole numbers wrap around, without a sign."""
    if kind.kind in "iub":
        return numpy.dtype(numpy.uint64 if kind.itemsize == 8 else numpy.uint32)
    return formats.working(kind)


def _simple(
    engine: OpenCLEngine, a: Array, b: Array, out: Array, c: Array | None, alpha: Any, beta: Any
) -> None:
    (outer, inner, m, k), n, kind = a.shape, b.shape[3], out.dtype
    sums = sums_of(kind)
    base = out if c is None else c
    kernel = engine.kernel(
        "gemm_simple", "gemm_simple", IN=storage(a.dtype), BASE=storage(base.dtype),
        OUT=storage(kind), ACC=working(sums), **({} if c is None else {"HAS_C": 1}),
    )  # fmt: skip
    arrays = [x if x.size else out for x in (a, b)]
    steps = [step for x in (a, b, base, out) for step in x.steps]
    scales = [_scale(number, kind, sums) for number in (alpha, beta)]
    batches = outer * inner
    size, group = ((-(-n // 64), m, batches), None)
    if engine.mapping == "gpu":
        size, group = (-(-n // 64) * 16 * batches, -(-m // 64) * 16), (16, 16)
    engine.launch(kernel, size, group, *arrays, base, out, m, n, k, inner, *steps, *scales)


def _scale(number: Any, kind: numpy.dtype[Any], sums: numpy.dtype[Any]) -> Any:
    """A factor in the format of what it multiplies: whole numbers cut off a fraction."""
    if kind.kind in "iub":
        number = numpy.asarray(kind.type(number))
    return numpy.asarray(number).astype(sums)[()]


# ---- few long work-items


def _cpu(
    engine: OpenCLEngine, a: Array, b: Array, out: Array, c: Array | None, alpha: Any, beta: Any
) -> None:
    if not _one_step(out):  # the kernels know one step between results
        for p in range(out.shape[0]):
            added = None if c is None else _outer(c, p)
            _cpu(engine, _outer(a, p), _outer(b, p), _outer(out, p), added, alpha, beta)
        return
    (_, _, m, k), n = a.shape, b.shape[3]
    few = m <= _FEW["cpu"] or m * n * k <= _SMALL
    if few and (b.steps[3] == 1 or n == 1):
        _unpacked(engine, "gemm_direct", a, b, out, c, alpha, beta)
    elif few and a.steps[3] == 1 == b.steps[2]:
        _unpacked(engine, "gemm_dot", a, b, out, c, alpha, beta)
    else:
        _packed(engine, a, b, out, c, alpha, beta)


def _one_step(out: Array) -> bool:
    outer, inner = out.shape[:2]
    return 1 in (outer, inner) or out.strides[0] == inner * out.strides[1]


def _outer(array: Array, place: int) -> Array:
    """One of the outer batches."""
    shape, at = (1, *array.shape[1:]), array.offset + place * array.strides[0]
    return array.viewed(array.dtype, shape, array.strides, at)


def batch_step(out: Array) -> int:
    """Numbers between the results of two batches."""
    return out.steps[1] if out.shape[1] > 1 else out.steps[0]


def _scales(kind: numpy.dtype[Any], alpha: Any, beta: Any) -> tuple[Any, Any]:
    real = formats.working(kind).type
    return real(alpha), real(beta)


def _defines(
    engine: OpenCLEngine, kind: numpy.dtype[Any], c: Array | None, size: tuple[int, ...]
) -> dict[str, Any]:
    words = {"WORD": storage(kind), **tuning.cpu_tile(engine, kind, *size)}
    return words if c is None else {**words, "HAS_C": 1}


def _unpacked(
    engine: OpenCLEngine, name: str, a: Array, b: Array, out: Array, c: Array | None,
    alpha: Any, beta: Any,
) -> None:  # fmt: skip
    """Few rows: b is read where it lies."""
    (outer, inner, m, k), n = a.shape, b.shape[3]
    defines = _defines(engine, out.dtype, c, out.shape[2:])
    kernel = engine.kernel(CPU, name, **defines)
    wide = 4 if name == "gemm_dot" else 4 * defines["VEC"]
    size = -(-n // wide), -(-m // 4), outer * inner
    scales = _scales(out.dtype, alpha, beta)
    a_, b_ = a.steps, b.steps
    arrays = (a, b, out) if c is None else (a, b, out, c)
    more = () if c is None else (scales[1], c.steps[2], c.steps[3], c.steps[0], c.steps[1])
    engine.launch(
        kernel, size, (1, 1, 1), *arrays, m, n, k, a_[2], a_[3], b_[3], b_[2], inner, a_[0], a_[1],
        b_[0], b_[1], out.steps[2], batch_step(out), scales[0], *more,
    )  # fmt: skip


def _packed(
    engine: OpenCLEngine, a: Array, b: Array, out: Array, c: Array | None, alpha: Any, beta: Any
) -> None:
    """Both matrices are copied into panels, which the sums then run over."""
    (outer, inner, m, k), n, kind = a.shape, b.shape[3], out.dtype
    defines = _defines(engine, kind, c, out.shape[2:])
    high, wide = defines["MR"], defines["NV"] * defines["VEC"]
    real = formats.working(kind)
    batches = outer * inner
    a_many, b_many = (1 if x.steps[:2] == (0, 0) else batches for x in (a, b))
    rows, columns = -(-m // high), -(-n // wide)
    a_, b_ = a.steps, b.steps
    to_a = engine.alloc((a_many, rows * high * k), real)
    to_b = engine.alloc((b_many, columns * wide * k), real)
    engine.launch(
        engine.kernel(CPU, "pack_both", **defines),
        (rows + columns, -(-k // PACK_K), max(a_many, b_many)), (1, 1, 1),
        a, b, to_a, to_b, m, n, k, a_many, b_many, a_[2], a_[3], b_[3], b_[2], inner,
        a_[0], a_[1], b_[0], b_[1],
    )  # fmt: skip
    bm, bn = tuning.cpu_block(engine, m, n, batches, defines)
    steps = [0 if many == 1 else x.steps[0] for many, x in ((a_many, to_a), (b_many, to_b))]
    scales = _scales(kind, alpha, beta)
    arrays = (to_a, to_b, out) if c is None else (to_a, to_b, out, c)
    more = () if c is None else (scales[1], c.steps[2], c.steps[3], inner, *c.steps[:2])
    engine.launch(
        engine.kernel(CPU, "gemm_packed", **defines),
        (-(-n // bn), -(-m // bm), batches), (1, 1, 1), *arrays,
        m, n, k, bm, bn, *steps, out.steps[2], batch_step(out), scales[0], *more,
    )  # fmt: skip


# ---- tiles of work-groups


def _gpu(
    engine: OpenCLEngine, a: Array, b: Array, out: Array, c: Array | None, alpha: Any, beta: Any
) -> None:
    (outer, inner, m, k), n, kind = a.shape, b.shape[3], out.dtype
    scales = numpy.float32(alpha), numpy.float32(beta)
    if kind == formats.FLOAT64 and [float(s) for s in scales] != [alpha, beta]:
        _simple(engine, a, b, out, c, alpha, beta)  # the fast kernel takes them in float32
        return
    batches = outer * inner
    along = [_along(a, 3, 2), _along(b, 2, 3)]
    if m <= _FEW["gpu"]:
        _few_rows(engine, a, b, out, c, along, scales)
        return
    way = tuning.gpu_tile(engine, m, n)
    tiles = -(-m // way["BM"]) * -(-n // way["BN"]) * batches
    split = tuning.gpu_split(engine, tiles, k, way["BK"])
    defines = {**way, **_tile_defines(a, b, out, c, along, way), "SPLIT": split}
    base = out if c is None else c
    target = out
    if split > 1:
        target = engine.alloc((split, batches, m, n), formats.working(kind))
    items = way["BM"] // way["TM"] * (way["BN"] // way["TN"])
    o_ = out.steps
    engine.launch(
        engine.kernel(_GPU, "gemm_gpu", **defines), (items * tiles * split,), (items,),
        a, b, base, target, m, n, k, inner, *a.steps, *b.steps, *base.steps,
        o_[0], o_[1], o_[2], *scales,
    )  # fmt: skip
    if split > 1:
        engine.launch(
            engine.kernel(_GPU, "gemm_gpu_join", **defines),
            (-(-m * n * batches // 256) * 256,), (256,), target, base, out, m, n, batches,
            inner, *base.steps, o_[0], o_[1], o_[2], *scales,
        )  # fmt: skip


def _tile_defines(
    a: Array, b: Array, out: Array, c: Array | None, along: list[int], way: dict[str, int]
) -> dict[str, Any]:
    """What gemm_gpu.cl needs to know of the arrays; `along`: where neighbours of a and b lie."""
    (m, k), n = a.shape[2:], b.shape[3]
    edge = 1 if k % way["BK"] else 2 if m % way["BM"] or n % way["BN"] else 0
    return {
        "WORD": storage(out.dtype), "EDGE": edge, "HAS_C": int(c is not None),
        "A_ALONG_K": int(along[0] == 3), "B_ALONG_K": int(along[1] == 2),
        "VA": _vector(a, along[0]), "VB": _vector(b, along[1]), "VO": _vector(out, 3),
    }  # fmt: skip


def _few_rows(
    engine: OpenCLEngine, a: Array, b: Array, out: Array, c: Array | None, along: list[int],
    scales: tuple[Any, Any],
) -> None:  # fmt: skip
    """As fast as the second matrix is read."""
    (outer, inner, m, k), n = a.shape, b.shape[3]
    by_depth = along[1] == 2
    columns, slices = (8, 32) if by_depth else (4, 64)
    rows = 1 if m == 1 else 4
    fours = _vector(b, along[1])
    defines = {
        "MV": rows, "COLS": columns, "SLICES": slices, "B_ALONG_K": int(by_depth), "VB": fours,
        "VA": _vector(a, 3), "WORD": storage(out.dtype), "HAS_C": int(c is not None),
    }  # fmt: skip
    base = out if c is None else c
    items = columns * slices
    wide = columns if by_depth else columns * fours
    groups = -(-n // wide) * -(-m // rows) * outer * inner
    engine.launch(
        engine.kernel("fours_gpu gemv_gpu", "gemv_gpu", **defines), (items * groups,), (items,),
        a, b, base, out, m, n, k, inner, *a.steps, *b.steps, *base.steps, *out.steps[:3],
        *scales,
    )  # fmt: skip


def _along(array: Array, depth: int, side: int) -> int:
    """The dimension that neighbours in memory lie along: `depth` where neither does better."""
    steps = array.steps
    if array.shape[side] > 1 and (abs(steps[side]) < abs(steps[depth]) or array.shape[depth] == 1):
        return side
    return depth


def _vector(array: Array, along: int) -> int:
    """4 where numbers can be read four at a time along a dimension, else 1."""
    fours = array.shape[along] % 4 == 0 and array.steps[along] == 1
    others = (
        step % 4 == 0 or array.shape[d] == 1 for d, step in enumerate(array.steps) if d != along
    )
    return 4 if fours and array.offset % (4 * array.itemsize) == 0 and all(others) else 1
