"""Batched matrix products: out = alpha * a @ b + beta * c, for any strides.

Chooses the kernel (gemm_*.cl) and its parameters. Only `out` is written. Sums are in float32 or
wider; integers wrap around. Raises NotHere for dtypes the device cannot compute with.
"""

from __future__ import annotations

from typing import Any, NamedTuple

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


class _Product(NamedTuple):
    """out = alpha * a @ b + beta * c, for a [p, q, m, k], b [p, q, k, n]; c may be missing."""

    a: Array
    b: Array
    out: Array
    c: Array | None
    alpha: Any
    beta: Any

    @property
    def base(self) -> Array:
        """What a kernel takes for `c`."""
        return self.out if self.c is None else self.c

    @property
    def sizes(self) -> tuple[int, int, int]:
        """m, n, k."""
        return self.a.shape[2], self.b.shape[3], self.a.shape[3]

    @property
    def batches(self) -> int:
        return self.a.shape[0] * self.a.shape[1]

    def map(self, function: Any) -> _Product:
        """The product of `function` of each array."""
        arrays = (None if x is None else function(x) for x in self[:4])
        return _Product._make([*arrays, self.alpha, self.beta])

    @property
    def is_fast(self) -> bool:
        """Whether the fast kernels can compute it."""
        out = self.out
        same = all(x is None or x.dtype == out.dtype for x in self[:4])
        row = out.strides[3] == out.itemsize or out.shape[3] == 1
        return same and row and bool(self.a.shape[3]) and storage(out.dtype) in FAST


def gemm(
    engine: CLEngine, a: Array, b: Array, out: Array, c: Array | None = None, alpha: Any = 1,
    beta: Any = 1,
) -> None:  # fmt: skip
    """a [p, q, m, k] times b [p, q, k, n] into out [p, q, m, n], plus `c` of that shape."""
    if not out.size:
        return
    check_double(engine, out.dtype)
    if b.shape[3] == 1 != a.shape[2] and out.steps[2] == 1:
        a, b, out = transpose_matrices(b), transpose_matrices(a), transpose_matrices(out)
        c = c if c is None else transpose_matrices(c)
    if engine.mapping == "cpu" and out.dtype in dtypes.NARROW:
        # PoCL would take many seconds to build kernels for each narrow dtype.
        wide = engine.alloc(out.shape, dtypes.FLOAT32)
        a, b = (cast_once(engine, x, dtypes.FLOAT32) for x in (a, b))
        c = c if c is None else cast_once(engine, c, dtypes.FLOAT32)
        gemm(engine, a, b, wide, c, alpha, beta)
        engine.write(out, wide)
        return
    settings = tuned_parameters.settings(engine, a.shape[2], b.shape[3])
    if "CLBLAST" in settings and a.shape[3] and clblast.gemm(engine, a, b, out, c, alpha, beta):
        return  # the tuner found it faster for this size
    of = _Product(a, b, out, c, alpha, beta)
    multiply = _multiply_cpu if engine.mapping == "cpu" else _multiply_gpu
    (multiply if of.is_fast else _multiply_simple)(engine, of)


def as_batch(array: Array) -> Array:
    """A matrix with two batch dimensions of size 1."""
    return array.view(array.dtype, (1, 1, *array.shape), (0, 0, *array.strides))


def transpose_matrices(array: Array) -> Array:
    """Transpose the matrices of a batch."""
    return array.transpose((0, 1, 3, 2))


def cast_once(engine: CLEngine, array: Array, kind: numpy.dtype[Any]) -> Array:
    """A cast that keeps broadcast dimensions broadcast."""
    if array.dtype == kind:
        return array
    once = tuple(n if step else 1 for n, step in zip(array.shape, array.strides, strict=True))
    part = engine.cast(array.view(array.dtype, once, array.strides), kind)
    return part.broadcast_to(array.shape)


# ---- any dtype


def accumulator_dtype(kind: numpy.dtype[Any]) -> numpy.dtype[Any]:
    """The dtype to accumulate in: unsigned for integers, which wrap around."""
    if kind.kind in "iub":
        return numpy.dtype(numpy.uint64 if kind.itemsize == 8 else numpy.uint32)
    return dtypes.working(kind)


def _multiply_simple(engine: CLEngine, of: _Product) -> None:
    (m, n, k), kind, base = of.sizes, of.out.dtype, of.base
    sums = accumulator_dtype(kind)
    kernel = engine.kernel(
        "gemm_simple", "gemm_simple", IN=storage(of.a.dtype), BASE=storage(base.dtype),
        OUT=storage(kind), ACC=working(sums), **({} if of.c is None else {"HAS_C": 1}),
    )  # fmt: skip
    arrays = [x if x.size else of.out for x in (of.a, of.b)]
    steps = [step for x in (of.a, of.b, base, of.out) for step in x.steps]
    scales = [_scale(number, kind, sums) for number in (of.alpha, of.beta)]
    size, group = ((-(-n // 64), m, of.batches), None)
    if engine.mapping == "gpu":
        size, group = (-(-n // 64) * 16 * of.batches, -(-m // 64) * 16), (16, 16)
    inner = of.a.shape[1]
    engine.launch(kernel, size, group, *arrays, base, of.out, m, n, k, inner, *steps, *scales)


def _scale(number: Any, kind: numpy.dtype[Any], sums: numpy.dtype[Any]) -> Any:
    """A factor in the dtype it multiplies; integers truncate it."""
    if kind.kind in "iub":
        number = numpy.asarray(kind.type(number))
    return numpy.asarray(number).astype(sums)[()]


# ---- cpu mapping


def _multiply_cpu(engine: CLEngine, of: _Product) -> None:
    outer, inner = of.out.shape[:2]
    # The kernels take one step between batches.
    if 1 not in (outer, inner) and of.out.strides[0] != inner * of.out.strides[1]:
        for p in range(outer):
            _multiply_cpu(engine, of.map(lambda x, p=p: _outer(x, p)))
        return
    m, n, k = of.sizes
    few = m <= _FEW["cpu"] or m * n * k <= _SMALL
    if few and (of.b.steps[3] == 1 or n == 1):
        _multiply_unpacked(engine, "gemm_direct", of)
    elif few and of.a.steps[3] == 1 == of.b.steps[2]:
        _multiply_unpacked(engine, "gemm_dot", of)
    else:
        _multiply_packed(engine, of)


def _outer(array: Array, place: int) -> Array:
    shape, at = (1, *array.shape[1:]), array.offset + place * array.strides[0]
    return array.view(array.dtype, shape, array.strides, at)


def batch_step(out: Array) -> int:
    """The step between the results of two batches."""
    return out.steps[1] if out.shape[1] > 1 else out.steps[0]


def _cpu_arguments(engine: CLEngine, of: _Product) -> tuple[dict[str, Any], Any, Any, list[Any]]:
    """Defines, factors in the working dtype, and what comes with `c`: the array, its arguments."""
    kind, c = of.out.dtype, of.c
    defines = {"WORD": storage(kind), **tuned_parameters.cpu_tile(engine, kind, *of.out.shape[2:])}
    real = dtypes.working(kind).type
    if c is None:
        return defines, real(of.alpha), (), []
    return {**defines, "HAS_C": 1}, real(of.alpha), (c,), [real(of.beta), *c.steps[2:]]


def _multiply_unpacked(engine: CLEngine, name: str, of: _Product) -> None:
    """Few rows: b is read in place."""
    (m, n, k), a, b = of.sizes, of.a.steps, of.b.steps
    defines, alpha, added, more = _cpu_arguments(engine, of)
    wide = 4 if name == "gemm_dot" else 4 * defines["VEC"]
    engine.launch(
        engine.kernel(CPU, name, **defines), (-(-n // wide), -(-m // 4), of.batches), (1, 1, 1),
        *of[:3], *added, m, n, k, a[2], a[3], b[3], b[2], of.a.shape[1], *a[:2], *b[:2],
        of.out.steps[2], batch_step(of.out), alpha, *more, *(s for c in added for s in c.steps[:2]),
    )  # fmt: skip


def _multiply_packed(engine: CLEngine, of: _Product) -> None:
    """Pack both matrices into panels, and multiply those."""
    (m, n, k), a, b, batches = of.sizes, of.a.steps, of.b.steps, of.batches
    defines, alpha, added, more = _cpu_arguments(engine, of)
    high, wide = defines["MR"], defines["NV"] * defines["VEC"]
    real, inner = dtypes.working(of.out.dtype), of.a.shape[1]
    a_many, b_many = (1 if steps[:2] == (0, 0) else batches for steps in (a, b))
    rows, columns = -(-m // high), -(-n // wide)
    to_a = engine.alloc((a_many, rows * high * k), real)
    to_b = engine.alloc((b_many, columns * wide * k), real)
    engine.launch(
        engine.kernel(CPU, "pack_both", **defines),
        (rows + columns, -(-k // PACK_K), max(a_many, b_many)), (1, 1, 1), of.a, of.b, to_a, to_b,
        m, n, k, a_many, b_many, a[2], a[3], b[3], b[2], inner, *a[:2], *b[:2],
    )  # fmt: skip
    bm, bn = tuned_parameters.cpu_block(engine, m, n, batches, defines)
    steps = [0 if many == 1 else x.steps[0] for many, x in ((a_many, to_a), (b_many, to_b))]
    engine.launch(
        engine.kernel(CPU, "gemm_packed", **defines), (-(-n // bn), -(-m // bm), batches),
        (1, 1, 1), to_a, to_b, of.out, *added, m, n, k, bm, bn, *steps, of.out.steps[2],
        batch_step(of.out), alpha, *more, *(w for c in added for w in (inner, *c.steps[:2])),
    )  # fmt: skip


# ---- gpu mapping


def _multiply_gpu(engine: CLEngine, of: _Product) -> None:
    (m, n, k), kind, base, inner = of.sizes, of.out.dtype, of.base, of.a.shape[1]
    scales = numpy.float32(of.alpha), numpy.float32(of.beta)
    if kind == dtypes.FLOAT64 and [float(s) for s in scales] != [of.alpha, of.beta]:
        _multiply_simple(engine, of)  # the fast kernel takes float32 factors
        return
    along = [_along(of.a, 3, 2), _along(of.b, 2, 3)]
    if m <= _FEW["gpu"]:
        _multiply_few_rows(engine, of, along, scales)
        return
    way = tuned_parameters.gpu_tile(engine, m, n)
    tiles = -(-m // way["BM"]) * -(-n // way["BN"]) * of.batches
    split = tuned_parameters.gpu_split(engine, tiles, k, way["BK"])
    edge = 1 if k % way["BK"] else 2 if m % way["BM"] or n % way["BN"] else 0
    defines = {
        **way, "WORD": storage(kind), "EDGE": edge, "HAS_C": int(of.c is not None),
        "A_ALONG_K": int(along[0] == 3), "B_ALONG_K": int(along[1] == 2),
        "VA": _vector(of.a, along[0]), "VB": _vector(of.b, along[1]), "VO": _vector(of.out, 3),
        "SPLIT": split,
    }  # fmt: skip
    target = of.out
    if split > 1:
        target = engine.alloc((split, of.batches, m, n), dtypes.working(kind))
    items = way["BM"] // way["TM"] * (way["BN"] // way["TN"])
    engine.launch(
        engine.kernel(_GPU, "gemm_gpu", **defines), (items * tiles * split,), (items,),
        of.a, of.b, base, target, m, n, k, inner, *of.a.steps, *of.b.steps, *base.steps,
        *of.out.steps[:3], *scales,
    )  # fmt: skip
    if split > 1:
        engine.launch(
            engine.kernel(_GPU, "gemm_gpu_join", **defines),
            (-(-m * n * of.batches // 256) * 256,), (256,), target, base, of.out, m, n, of.batches,
            inner, *base.steps, *of.out.steps[:3], *scales,
        )  # fmt: skip


def _multiply_few_rows(engine: CLEngine, of: _Product, along: list[int], scales: Any) -> None:
    """Few rows: limited by reading the second matrix."""
    (m, n, k), base, by_depth = of.sizes, of.base, along[1] == 2
    columns, slices = (8, 32) if by_depth else (4, 64)
    rows, fours = 1 if m == 1 else 4, _vector(of.b, along[1])
    defines = {
        "MV": rows, "COLS": columns, "SLICES": slices, "B_ALONG_K": int(by_depth), "VB": fours,
        "VA": _vector(of.a, 3), "WORD": storage(of.out.dtype), "HAS_C": int(of.c is not None),
    }  # fmt: skip
    items = columns * slices
    wide = columns if by_depth else columns * fours
    groups = -(-n // wide) * -(-m // rows) * of.batches
    engine.launch(
        engine.kernel("fours_gpu gemv_gpu", "gemv_gpu", **defines), (items * groups,), (items,),
        of.a, of.b, base, of.out, m, n, k, of.a.shape[1], *of.a.steps, *of.b.steps, *base.steps,
        *of.out.steps[:3], *scales,
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
