"""Matrix and vector product ops, with any batches and strides.

A product takes one or two launches. float16 and bfloat16 are computed in float32 and rounded once,
after the addition.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy

from holdfast.compute import dtype as dtypes
from holdfast.compute.engines.opencl.elementwise.strided_kernels import Input, compute
from holdfast.compute.engines.opencl.matrix.gemm import as_batch, gemm
from holdfast.compute.engines.opencl.runtime.array import Array, collapse_dims
from holdfast.compute.engines.opencl.runtime.engine_protocol import CLEngine
from holdfast.compute.engines.opencl.runtime.kernel_table import KERNELS, kernel, storage, working


def product(
    engine: CLEngine,
    one: Array,
    other: Array,
    base: Array | None = None,
    beta: Any = 1,
    alpha: Any = 1,
) -> Array:
    """alpha * one @ other + beta * base, with the dimensions of numpy.matmul."""
    if one.dtype != other.dtype:
        raise TypeError(f"{one.dtype} and {other.dtype} are not multiplied with each other")
    storage(one.dtype)  # raises NotHere for complex dtypes
    if not one.ndim or not other.ndim or one.shape[-1] != other.shape[-2:][0]:
        raise ValueError(_mismatch_text(one.shape, other.shape))
    left, right = _as_matrix(one, 0), _as_matrix(other, 1)
    try:
        batch = numpy.broadcast_shapes(left.shape[:-2], right.shape[:-2])
    except ValueError as exc:
        raise ValueError(_mismatch_text(one.shape, other.shape)) from exc
    m, n = left.shape[-2], right.shape[-1]
    shape = (*batch, *(() if one.ndim == 1 else (m,)), *(() if other.ndim == 1 else (n,)))
    out = engine.alloc(shape, one.dtype)
    whole = out.view(out.dtype, (*batch, m, n))
    added = None if base is None or beta == 0 else _broadcast(base, shape)
    if added is not None:
        added = added.view(added.dtype, whole.shape, _strides_of(added, one, other))
    _multiply(engine, left, right, whole, added, beta, alpha)
    return out


def _mismatch_text(one: tuple[int, ...], other: tuple[int, ...]) -> str:
    """Why these shapes cannot be multiplied."""
    if not one or not other:
        return "a scalar is not a matrix"
    columns, rows = one[-1], other[-2:][0]
    if columns != rows:
        return f"{columns} columns do not match {rows} rows"
    return f"batches of {list(one[:-2])} and of {list(other[:-2])} do not broadcast"


def _as_matrix(array: Array, at: int) -> Array:
    """A vector becomes a row if it comes first, a column if second."""
    if array.ndim > 1:
        return array
    (size,), (stride,) = array.shape, array.strides
    shape, strides = ((1, size), (0, stride)) if at == 0 else ((size, 1), (stride, 0))
    return array.view(array.dtype, shape, strides)


def _broadcast(base: Array, shape: tuple[int, ...]) -> Array:
    try:
        fits = numpy.broadcast_shapes(base.shape, shape) == shape
    except ValueError:
        fits = False
    if not fits:
        raise ValueError(f"{list(base.shape)} does not broadcast to {list(shape)}")
    return base.broadcast_to(shape)


def _strides_of(added: Array, one: Array, other: Array) -> tuple[int, ...]:
    """The strides of the addend, with 0 for dimensions that vectors lack."""
    strides = list(added.strides)
    if other.ndim == 1:
        strides.append(0)
    if one.ndim == 1:
        strides.insert(len(strides) - 1, 0)
    return tuple(strides)


# ---- batches


class _Batched(NamedTuple):
    """An array and the strides of its batch dimensions."""

    array: Array
    strides: list[int]

    def with_batch(self, sizes: list[int], matrix: tuple[int, int], steps: Any) -> Array:
        """The array with two batch dimensions."""
        missing = 2 - len(sizes)
        shape, strides = (*[1] * missing, *sizes), (*[0] * missing, *self.strides)
        return self.array.view(self.array.dtype, (*shape, *matrix), (*strides, *steps))


def _multiply(
    engine: CLEngine,
    left: Array,
    right: Array,
    out: Array,
    added: Array | None,
    beta: Any,
    alpha: Any,
) -> None:
    """Multiply batches: as rows of one matrix if possible, else with two batch dimensions."""
    batch, (m, n), k = out.shape[:-2], out.shape[-2:], left.shape[-1]
    if not out.size:
        return
    if not batch:
        base = None if added is None else as_batch(added)
        gemm(engine, as_batch(left), as_batch(right), as_batch(out), base, alpha, beta)
        return
    given = [x for x in (left, right, added) if x is not None]
    arrays = [out, *(x.broadcast_to((*batch, *x.shape[-2:])) for x in given)]
    sizes, strides = collapse_dims(batch, [list(x.strides[:-2]) for x in arrays])
    if len(sizes) > 2:
        solid = [engine.contiguous(x) for x in arrays[1:]]
        added = solid[2] if added is not None else None
        _multiply(engine, solid[0], solid[1], out, added, beta, alpha)
        return
    parts = [_Batched(x, s) for x, s in zip(arrays, strides, strict=True)]
    if len(sizes) == 1 and _are_rows(parts, m):
        m, sizes = m * sizes[0], []
        parts = [_Batched(p.array, []) for p in parts]
    matrices = [(m, n), (m, k), (k, n), (m, n)]
    seen = [
        p.with_batch(sizes, size, p.array.strides[-2:])
        for p, size in zip(parts, matrices, strict=False)
    ]
    gemm(engine, seen[1], seen[2], seen[0], seen[3] if len(seen) == 4 else None, alpha, beta)


def _are_rows(parts: list[_Batched], m: int) -> bool:
    """Whether the batches are further rows of one matrix, times the same other matrix."""
    fits = [p.strides[0] == m * p.array.strides[-2] or m == 1 for p in parts]
    return parts[2].strides == [0] and all(f for i, f in enumerate(fits) if i != 2) and m > 1


# ---- ops


def _check_ndim(name: str, array: Array, ndim: int) -> None:
    if array.ndim != ndim:
        raise ValueError(f"{name} has {array.ndim} dimensions, not {ndim}")


def _check_batches(one: Array, other: Array, first: str, second: str) -> None:
    _check_ndim(first, one, 3)
    _check_ndim(second, other, 3)


def _check_same_batches(one: Array, other: Array) -> None:
    if one.shape[0] != other.shape[0]:
        raise ValueError(f"batches of {one.shape[0]} and of {other.shape[0]} matrices")


def _check_same_dtype(base: Array, one: Array) -> None:
    if base.dtype != one.dtype:
        raise TypeError(f"{base.dtype} and {one.dtype} are not added to each other")


@kernel("matmul")
def matmul(engine: CLEngine, self: Array, other: Array) -> Array:
    return product(engine, self, other)


@kernel("mm")
def mm(engine: CLEngine, self: Array, mat2: Array) -> Array:
    _check_ndim("self", self, 2)
    _check_ndim("mat2", mat2, 2)
    return product(engine, self, mat2)


@kernel("bmm")
def bmm(engine: CLEngine, self: Array, mat2: Array) -> Array:
    _check_batches(self, mat2, "self", "mat2")
    _check_same_batches(self, mat2)
    return product(engine, self, mat2)


@kernel("mv")
def mv(engine: CLEngine, self: Array, vec: Array) -> Array:
    _check_ndim("self", self, 2)
    _check_ndim("vec", vec, 1)
    return product(engine, self, vec)


@kernel("dot")
def dot(engine: CLEngine, self: Array, tensor: Array) -> Array:
    _check_ndim("self", self, 1)
    _check_ndim("tensor", tensor, 1)
    return product(engine, self, tensor)


@kernel("vdot")
def vdot(engine: CLEngine, self: Array, other: Array) -> Array:
    _check_ndim("self", self, 1)
    _check_ndim("other", other, 1)
    return product(engine, self, other)


@kernel("addmm")
def addmm(
    engine: CLEngine, self: Array, mat1: Array, mat2: Array, beta: Any = 1, alpha: Any = 1
) -> Array:
    _check_ndim("mat1", mat1, 2)
    _check_ndim("mat2", mat2, 2)
    _check_same_dtype(self, mat1)
    return product(engine, mat1, mat2, self, beta, alpha)


@kernel("baddbmm")
def baddbmm(
    engine: CLEngine, self: Array, batch1: Array, batch2: Array, beta: Any = 1, alpha: Any = 1
) -> Array:
    _check_batches(batch1, batch2, "batch1", "batch2")
    _check_same_dtype(self, batch1)
    _check_same_batches(batch1, batch2)
    return product(engine, batch1, batch2, self, beta, alpha)


@kernel("addbmm")
def addbmm(
    engine: CLEngine, self: Array, batch1: Array, batch2: Array, beta: Any = 1, alpha: Any = 1
) -> Array:
    _check_batches(batch1, batch2, "batch1", "batch2")
    _check_same_dtype(self, batch1)
    _check_same_batches(batch1, batch2)
    # The sum over the batch is part of one long product.
    (count, rows, inner), columns = batch1.shape, batch2.shape[2]
    if batch2.shape[1] != inner:
        raise ValueError(f"{inner} columns do not match {batch2.shape[1]} rows")
    side = engine.contiguous(batch1.transpose((1, 0, 2)))
    below = engine.contiguous(batch2)
    side = side.view(side.dtype, (rows, count * inner))
    below = below.view(below.dtype, (count * inner, columns))
    return product(engine, side, below, self, beta, alpha)


@kernel("addmv")
def addmv(
    engine: CLEngine, self: Array, mat: Array, vec: Array, beta: Any = 1, alpha: Any = 1
) -> Array:
    _check_ndim("mat", mat, 2)
    _check_ndim("vec", vec, 1)
    _check_same_dtype(self, mat)
    return product(engine, mat, vec, self, beta, alpha)


@kernel("addr")
def addr(
    engine: CLEngine, self: Array, vec1: Array, vec2: Array, beta: Any = 1, alpha: Any = 1
) -> Array:
    _check_ndim("vec1", vec1, 1)
    _check_ndim("vec2", vec2, 1)
    kind = dtypes.promote(self.dtype, dtypes.promote(vec1.dtype, vec2.dtype))
    one, two, base = (engine.cast(x, kind) for x in (vec1, vec2, self))
    column = one.view(kind, (*one.shape, 1), (*one.strides, 0))
    row = two.view(kind, (1, *two.shape), (0, *two.strides))
    return product(engine, column, row, base, beta, alpha)


@kernel("linear")
def linear(engine: CLEngine, input: Array, weight: Array, bias: Array | None = None) -> Array:
    turned = weight.transpose(tuple(reversed(range(weight.ndim))))
    return product(engine, input, turned, bias)


# ---- trace, cross product, block_diag


@kernel("trace")
def trace(engine: CLEngine, self: Array) -> Array:
    _check_ndim("self", self, 2)
    diagonal = self.view(self.dtype, (min(self.shape),), (sum(self.strides),))
    return KERNELS["sum.dim_IntList"].function(engine, diagonal, [0])


@kernel("linalg_cross")
def linalg_cross(engine: CLEngine, self: Array, other: Array, dim: int = -1) -> Array:
    if self.ndim != other.ndim:
        raise ValueError(f"{self.ndim} and {other.ndim} dimensions")
    if self.shape[dim] != 3 or other.shape[dim] != 3:
        raise ValueError(f"sizes {self.shape[dim]} and {other.shape[dim]} along {dim}, not 3")
    kind = dtypes.promote(self.dtype, other.dtype)
    out = engine.alloc(numpy.broadcast_shapes(self.shape, other.shape), kind)
    read = working(dtypes.working(kind))
    for index in range(3):
        after, last = (index + 1) % 3, (index + 2) % 3
        sources = (("a", self, after), ("b", other, last), ("c", self, last), ("d", other, after))
        inputs = [Input(name, _slice_at(array, dim, i), read) for name, array, i in sources]
        compute(engine, "($a * $b - $c * $d)", inputs, [], _slice_at(out, dim, index))
    return out


def _slice_at(array: Array, dim: int, index: int) -> Array:
    """The slice at one index of a dimension, kept with size 1."""
    dim %= array.ndim
    shape = tuple(1 if d == dim else n for d, n in enumerate(array.shape))
    at = array.offset + index * array.strides[dim]
    return array.view(array.dtype, shape, array.strides, at)


@kernel("block_diag")
def block_diag(engine: CLEngine, tensors: list[Array]) -> Array:
    if any(t.ndim > 2 for t in tensors):
        raise ValueError("a block has more than 2 dimensions")
    shapes = [(1, 1, *t.shape)[-2:] for t in tensors]
    kind = dtypes.result_type(*tensors)
    out = engine.alloc((sum(s[0] for s in shapes), sum(s[1] for s in shapes)), kind)
    if out.size:
        engine.write(out, numpy.zeros((), kind))
    row = column = 0
    for block, shape in zip(tensors, shapes, strict=True):
        at = out.offset + row * out.strides[0] + column * out.strides[1]
        engine.write(out.view(kind, shape, out.strides, at), block.broadcast_to(shape))
        row, column = row + shape[0], column + shape[1]
    return out
