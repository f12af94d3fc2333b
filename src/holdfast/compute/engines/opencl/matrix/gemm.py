"""Batched matrix products: out = alpha * a @ b + beta * c, for any strides.

Chooses the kernel (gemm_*.cl) and its parameters. Only `out` is written. Sums are in float32 or
wider; integers wrap around. Raises NotHere for dtypes the device cannot compute with.
"""

from __future__ import annotations

from typing import Any

import numpy

from holdfast.compute import dtype as dtypes
from holdfast.compute.engines.opencl.matrix import clblast
from holdfast.compute.engines.opencl.runtime import tuned_parameters
from holdfast.compute.engines.opencl.runtime.array import Array
from holdfast.compute.engines.opencl.runtime.engine_protocol import CLEngine
from holdfast.compute.engines.opencl.runtime.kernel_table import check_double, storage, working

_FEW = {"cpu": 32, "gpu": 8}  # rows, up to which packing or tiles do not pay
_SMALL = 1 << 20  # multiplications, up to which a second launch does not pay on CPUs
CPU, _GPU = "panels_cpu gemm_cpu", "fours_gpu gemm_gpu"  # kernel files
PACK_K = 256  # as in gemm_cpu.cl
FAST = frozenset(("float32", "float16", "bfloat16", "float64"))  # dtypes of the fast kernels


def gemm(
    engine: CLEngine,
    a: Array,
    b: Array,
    out: Array,
    c: Array | None = None,
    alpha: Any = 1,
    beta: Any = 1,
) -> None:
    """a [p, q, m, k] times b [p, q, k, n] into out [p, q, m, n], plus `c` of that shape."""
    if not out.size:
        return
    check_double(engine, out.dtype)
    if b.shape[3] == 1 != a.shape[2] and out.steps[2] == 1:
        a, b, out = transpose_matrices(b), transpose_matrices(a), transpose_matrices(out)
        c = c if c is None else transpose_matrices(c)
    if engine.mapping == "cpu" and out.dtype in dtypes.NARROW:
        _multiply_in_float32(engine, a, b, out, c, alpha, beta)
        return
    if _try_clblast(engine, a, b, out, c, alpha, beta):
        return
    multiply = _multiply_cpu if engine.mapping == "cpu" else _multiply_gpu
    if not _is_fast(a, b, out, c):
        multiply = _multiply_simple
    multiply(engine, a, b, out, c, alpha, beta)


def _try_clblast(
    engine: CLEngine, a: Array, b: Array, out: Array, c: Array | None, alpha: Any, beta: Any
) -> bool:
    """Compute by CLBlast if the tuner found it faster for this size; False if not done."""
    if "CLBLAST" not in tuned_parameters.settings(engine, a.shape[2], b.shape[3]) or not a.shape[3]:
        return False
    return clblast.gemm(engine, a, b, out, c, alpha, beta)


def as_batch(array: Array) -> Array:
    """A matrix with two batch dimensions of size 1."""
    return array.view(array.dtype, (1, 1, *array.shape), (0, 0, *array.strides))


def transpose_matrices(array: Array) -> Array:
    """Transpose the matrices of a batch."""
    return array.transpose((0, 1, 3, 2))


def _multiply_in_float32(
    engine: CLEngine, a: Array, b: Array, out: Array, c: Array | None, alpha: Any, beta: Any
) -> None:
    """Compute narrow floats in float32: PoCL would take many seconds to build kernels for each."""
    wide = engine.alloc(out.shape, dtypes.FLOAT32)
    a, b = (cast_once(engine, x, dtypes.FLOAT32) for x in (a, b))
    c = c if c is None else cast_once(engine, c, dtypes.FLOAT32)
    gemm(engine, a, b, wide, c, alpha, beta)
    engine.write(out, wide)


def cast_once(engine: CLEngine, array: Array, kind: numpy.dtype[Any]) -> Array:
    """A cast that keeps broadcast dimensions broadcast."""
    if array.dtype == kind:
        return array
    once = tuple(n if step else 1 for n, step in zip(array.shape, array.strides, strict=True))
    part = engine.cast(array.view(array.dtype, once, array.strides), kind)
    return part.broadcast_to(array.shape)


def _is_fast(a: Array, b: Array, out: Array, c: Array | None) -> bool:
    kind = out.dtype
    same = a.dtype == b.dtype == kind and (c is None or c.dtype == kind)
    row = out.strides[3] == out.itemsize or out.shape[3] == 1
    return same and row and bool(a.shape[3]) and storage(kind) in FAST


# ---- any dtype


def accumulator_dtype(kind: numpy.dtype[Any]) -> numpy.dtype[Any]:
    """The dtype to accumulate in: unsigned for integers, which wrap around."""
    if kind.kind in "iub":
        return numpy.dtype(numpy.uint64 if kind.itemsize == 8 else numpy.uint32)
    return dtypes.working(kind)


def _multiply_simple(
    engine: CLEngine, a: Array, b: Array, out: Array, c: Array | None, alpha: Any, beta: Any
) -> None:
    (outer, inner, m, k), n, kind = a.shape, b.shape[3], out.dtype
    sums = accumulator_dtype(kind)
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
    """A factor in the dtype it multiplies; integers truncate it."""
    if kind.kind in "iub":
        number = numpy.asarray(kind.type(number))
    return numpy.asarray(number).astype(sums)[()]


# ---- cpu mapping


def _multiply_cpu(
    engine: CLEngine, a: Array, b: Array, out: Array, c: Array | None, alpha: Any, beta: Any
) -> None:
    if not _has_one_batch_step(out):  # the kernels take one step between batches
        for p in range(out.shape[0]):
            added = None if c is None else _outer(c, p)
            _multiply_cpu(engine, _outer(a, p), _outer(b, p), _outer(out, p), added, alpha, beta)
        return
    (_, _, m, k), n = a.shape, b.shape[3]
    few = m <= _FEW["cpu"] or m * n * k <= _SMALL
    if few and (b.steps[3] == 1 or n == 1):
        _multiply_unpacked(engine, "gemm_direct", a, b, out, c, alpha, beta)
    elif few and a.steps[3] == 1 == b.steps[2]:
        _multiply_unpacked(engine, "gemm_dot", a, b, out, c, alpha, beta)
    else:
        _multiply_packed(engine, a, b, out, c, alpha, beta)


def _has_one_batch_step(out: Array) -> bool:
    outer, inner = out.shape[:2]
    return 1 in (outer, inner) or out.strides[0] == inner * out.strides[1]


def _outer(array: Array, place: int) -> Array:
    """One of the outer batches."""
    shape, at = (1, *array.shape[1:]), array.offset + place * array.strides[0]
    return array.view(array.dtype, shape, array.strides, at)


def batch_step(out: Array) -> int:
    """The step between the results of two batches."""
    return out.steps[1] if out.shape[1] > 1 else out.steps[0]


def _scales(kind: numpy.dtype[Any], alpha: Any, beta: Any) -> tuple[Any, Any]:
    real = dtypes.working(kind).type
    return real(alpha), real(beta)


def _defines(
    engine: CLEngine, kind: numpy.dtype[Any], c: Array | None, size: tuple[int, ...]
) -> dict[str, Any]:
    words = {"WORD": storage(kind), **tuned_parameters.cpu_tile(engine, kind, *size)}
    return words if c is None else {**words, "HAS_C": 1}


def _multiply_unpacked(
    engine: CLEngine, name: str, a: Array, b: Array, out: Array, c: Array | None,
    alpha: Any, beta: Any,
) -> None:  # fmt: skip
    """Few rows: b is read in place."""
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


def _multiply_packed(
    engine: CLEngine, a: Array, b: Array, out: Array, c: Array | None, alpha: Any, beta: Any
) -> None:
    """Pack both matrices into panels, and multiply those."""
    (outer, inner, m, k), n, kind = a.shape, b.shape[3], out.dtype
    defines = _defines(engine, kind, c, out.shape[2:])
    high, wide = defines["MR"], defines["NV"] * defines["VEC"]
    real = dtypes.working(kind)
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
    bm, bn = tuned_parameters.cpu_block(engine, m, n, batches, defines)
    steps = [0 if many == 1 else x.steps[0] for many, x in ((a_many, to_a), (b_many, to_b))]
    scales = _scales(kind, alpha, beta)
    arrays = (to_a, to_b, out) if c is None else (to_a, to_b, out, c)
    more = () if c is None else (scales[1], c.steps[2], c.steps[3], inner, *c.steps[:2])
    engine.launch(
        engine.kernel(CPU, "gemm_packed", **defines),
        (-(-n // bn), -(-m // bm), batches), (1, 1, 1), *arrays,
        m, n, k, bm, bn, *steps, out.steps[2], batch_step(out), scales[0], *more,
    )  # fmt: skip


# ---- gpu mapping


def _multiply_gpu(
    engine: CLEngine, a: Array, b: Array, out: Array, c: Array | None, alpha: Any, beta: Any
) -> None:
    (outer, inner, m, k), n, kind = a.shape, b.shape[3], out.dtype
    scales = numpy.float32(alpha), numpy.float32(beta)
    if kind == dtypes.FLOAT64 and [float(s) for s in scales] != [alpha, beta]:
        _multiply_simple(engine, a, b, out, c, alpha, beta)  # the fast kernel takes float32 factors
        return
    batches = outer * inner
    along = [_along(a, 3, 2), _along(b, 2, 3)]
    if m <= _FEW["gpu"]:
        _multiply_few_rows(engine, a, b, out, c, along, scales)
        return
    way = tuned_parameters.gpu_tile(engine, m, n)
    tiles = -(-m // way["BM"]) * -(-n // way["BN"]) * batches
    split = tuned_parameters.gpu_split(engine, tiles, k, way["BK"])
    defines = {**way, **_tile_defines(a, b, out, c, along, way), "SPLIT": split}
    base = out if c is None else c
    target = out
    if split > 1:
        target = engine.alloc((split, batches, m, n), dtypes.working(kind))
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
    """Defines of gemm_gpu.cl; `along`: the contiguous dimensions of a and b."""
    (m, k), n = a.shape[2:], b.shape[3]
    edge = 1 if k % way["BK"] else 2 if m % way["BM"] or n % way["BN"] else 0
    return {
        "WORD": storage(out.dtype), "EDGE": edge, "HAS_C": int(c is not None),
        "A_ALONG_K": int(along[0] == 3), "B_ALONG_K": int(along[1] == 2),
        "VA": _vector(a, along[0]), "VB": _vector(b, along[1]), "VO": _vector(out, 3),
    }  # fmt: skip


def _multiply_few_rows(
    engine: CLEngine, a: Array, b: Array, out: Array, c: Array | None, along: list[int],
    scales: tuple[Any, Any],
) -> None:  # fmt: skip
    """Few rows: limited by reading the second matrix."""
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
    """The dimension with the smaller step, `side` or `depth`; `depth` if equal."""
    steps = array.steps
    if array.shape[side] > 1 and (abs(steps[side]) < abs(steps[depth]) or array.shape[depth] == 1):
        return side
    return depth


def _vector(array: Array, along: int) -> int:
    """4 if elements can be read four at a time along a dimension, else 1."""
    fours = array.shape[along] % 4 == 0 and array.steps[along] == 1
    others = (
        step % 4 == 0 or array.shape[d] == 1 for d, step in enumerate(array.steps) if d != along
    )
    return 4 if fours and array.offset % (4 * array.itemsize) == 0 and all(others) else 1
