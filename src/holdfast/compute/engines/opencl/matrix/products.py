"""Matrix and vector product ops, with any batches and strides.

A product takes one or two launches. float16 and bfloat16 are computed in float32 and rounded once,
after the addition.
"""

from __future__ import annotations

from typing import Any

import numpy

from holdfast.compute.engines.opencl.matrix.gemm import as_batch, gemm
from holdfast.compute.engines.opencl.runtime.array import Array, collapse_dims
from holdfast.compute.engines.opencl.runtime.engine_protocol import CLEngine
from holdfast.compute.engines.opencl.runtime.kernel_table import kernel, storage
from holdfast.compute.ops.matrix.products import check_product


def product(
    engine: CLEngine, one: Array, other: Array, base: Array | None = None, beta: Any = 1,
    alpha: Any = 1,
) -> Array:  # fmt: skip
    """alpha * one @ other + beta * base, with the dimensions of numpy.matmul."""
    check_product(one, other)
    storage(one.dtype)  # raises NotHere for complex dtypes
    left, right = _as_matrix(one, 0), _as_matrix(other, 1)
    batch = numpy.broadcast_shapes(left.shape[:-2], right.shape[:-2])
    m, n = left.shape[-2], right.shape[-1]
    shape = (*batch, *(() if one.ndim == 1 else (m,)), *(() if other.ndim == 1 else (n,)))
    out = engine.alloc(shape, one.dtype)
    whole = out.view(out.dtype, (*batch, m, n))
    added = None if base is None or beta == 0 else _broadcast(base, shape)
    if added is not None:
        added = added.view(added.dtype, whole.shape, _strides_of(added, one, other))
    _multiply(engine, left, right, whole, added, beta, alpha)
    return out


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


def _multiply(
    engine: CLEngine, left: Array, right: Array, out: Array, added: Array | None, beta: Any,
    alpha: Any,
) -> None:  # fmt: skip
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
    if len(sizes) == 1 and _are_rows(arrays, strides, m):
        m, sizes, strides = m * sizes[0], [], [[] for _ in arrays]
    missing = 2 - len(sizes)
    seen = [
        x.view(x.dtype, (*[1] * missing, *sizes, *matrix), (*[0] * missing, *s, *x.strides[-2:]))
        for x, s, matrix in zip(arrays, strides, [(m, n), (m, k), (k, n), (m, n)], strict=False)
    ]
    gemm(engine, seen[1], seen[2], seen[0], seen[3] if len(seen) == 4 else None, alpha, beta)


def _are_rows(arrays: list[Array], strides: list[list[int]], m: int) -> bool:
    """Whether the batches are further rows of one matrix, times the same other matrix."""
    fits = [s[0] == m * x.strides[-2] or m == 1 for x, s in zip(arrays, strides, strict=True)]
    return strides[2] == [0] and all(f for i, f in enumerate(fits) if i != 2) and m > 1


# ---- ops


@kernel("matmul", "mm", "bmm", "mv", "dot", "vdot")
def matmul(engine: CLEngine, self: Array, other: Array) -> Array:
    return product(engine, self, other)


@kernel("addmm", "baddbmm", "addmv")
def add_product(
    engine: CLEngine, self: Array, one: Array, other: Array, beta: Any = 1, alpha: Any = 1
) -> Array:
    return product(engine, one, other, self, beta, alpha)


@kernel("linear")
def linear(engine: CLEngine, input: Array, weight: Array, bias: Array | None = None) -> Array:
    turned = weight.transpose(tuple(reversed(range(weight.ndim))))
    return product(engine, input, turned, bias)
