"""Products of matrices and vectors, and ops on triangles and diagonals.

One BLAS call for each matrix of a batch, or a single one if the second argument is one matrix.
float16 and bfloat16 are computed in float32 and rounded once.
"""

from __future__ import annotations

from typing import Any

import numpy

from holdfast.compute import dtype as dtypes
from holdfast.compute.engines.numpy import threads
from holdfast.compute.engines.numpy.kernels import kernel, widen

_F32 = dtypes.FLOAT32
_matmul = numpy.matmul
# Multiplications in one matrix product:
_SHARED_BY_BLAS = 1 << 18  # for more, OpenBLAS uses several threads
_WORTH_SHARING = 1 << 24  # for more, several threads pay off even on a busy machine


def product(one: Any, other: Any) -> Any:
    """The matrix product; float32 for narrow dtypes."""
    kind = one.dtype
    if not kind is _F32 is other.dtype:  # fast path for float32
        if kind != other.dtype:
            raise TypeError(f"{kind} and {other.dtype} are not multiplied with each other")
        if kind in dtypes.NARROW:
            one, other = one.astype(_F32), other.astype(_F32)
    try:
        if other.ndim == 2 and one.ndim > 2 and one.flags.c_contiguous and one.size:
            rows = _multiply(one.reshape(-1, one.shape[-1]), other)
            return rows.reshape(*one.shape[:-1], other.shape[1])
        return _multiply(one, other)
    except ValueError as exc:
        raise ValueError(_explain_mismatch(one.shape, other.shape)) from exc


def _multiply(one: Any, other: Any) -> Any:
    """`numpy.matmul`, on one thread for products of medium size.

    With all threads BLAS waits for each of them: that saves up to 0.3 ms on an idle machine and
    costs several ms on a busy one (a step of tiny-flux took 940 ms instead of 125).
    """
    if other.ndim > 1:
        steps = one.shape[-2:][0] * other.shape[-2] * other.shape[-1]
        if _SHARED_BY_BLAS < steps < _WORTH_SHARING:
            with threads.single_blas():
                return _matmul(one, other)
    return _matmul(one, other)


def _explain_mismatch(one: tuple[int, ...], other: tuple[int, ...]) -> str:
    """Why matrices of these shapes cannot be multiplied."""
    if not one or not other:
        return "a scalar is not a matrix"
    columns, rows = one[-1], other[-2:][0]
    if columns != rows:
        return f"{columns} columns do not match {rows} rows"
    return f"batches of {list(one[:-2])} and of {list(other[:-2])} do not broadcast"


def round_to(out: Any, kind: Any) -> Any:
    """Cast a result to dtype `kind`."""
    return out if out.dtype is kind or out.dtype == kind else out.astype(kind)


def _check_ndim(ndim: int, **arrays: Any) -> None:
    for name, array in arrays.items():
        if array.ndim != ndim:
            raise ValueError(f"{name} has {array.ndim} dimensions, not {ndim}")


def _check_batches(**arrays: Any) -> None:
    _check_ndim(3, **arrays)
    one, other = (len(array) for array in arrays.values())
    if one != other:
        raise ValueError(f"batches of {one} and of {other} matrices")


@kernel("matmul")
def matmul(self: Any, other: Any) -> Any:
    return round_to(product(self, other), self.dtype)


@kernel("mm")
def mm(self: Any, mat2: Any) -> Any:
    _check_ndim(2, self=self, mat2=mat2)
    return round_to(product(self, mat2), self.dtype)


@kernel("bmm")
def bmm(self: Any, mat2: Any) -> Any:
    _check_batches(self=self, mat2=mat2)
    return round_to(product(self, mat2), self.dtype)


@kernel("mv")
def mv(self: Any, vec: Any) -> Any:
    _check_ndim(2, self=self)
    _check_ndim(1, vec=vec)
    return round_to(product(self, vec), self.dtype)


@kernel("dot")
def dot(self: Any, tensor: Any) -> Any:
    _check_ndim(1, self=self, tensor=tensor)
    return round_to(product(self, tensor), self.dtype)


@kernel("vdot")
def vdot(self: Any, other: Any) -> Any:
    _check_ndim(1, self=self, other=other)
    return round_to(product(self.conj(), other), self.dtype)


def add_scaled(base: Any, out: Any, beta: Any, alpha: Any) -> Any:
    """beta * base + alpha * out, in place in `out`; `base` is not read if beta is 0."""
    kind = base.dtype
    shape = out.shape
    if alpha != 1:
        out = numpy.asarray(out * out.dtype.type(alpha))  # integer dtypes truncate the factor
    if beta != 0:
        base = widen(base)
        if beta != 1:
            base = base * base.dtype.type(beta)
        out = numpy.add(out, base, out=out) if out.ndim else numpy.asarray(out + base)
    if out.shape != shape:
        raise ValueError(f"{list(base.shape)} does not broadcast to {list(shape)}")
    return round_to(out, kind)


def _check_dtypes(base: Any, one: Any) -> None:
    if base.dtype != one.dtype:
        raise TypeError(f"{base.dtype} and {one.dtype} are not added to each other")


@kernel("addmm")
def addmm(self: Any, mat1: Any, mat2: Any, beta: Any = 1, alpha: Any = 1) -> Any:
    _check_ndim(2, mat1=mat1, mat2=mat2)
    _check_dtypes(self, mat1)
    return add_scaled(self, product(mat1, mat2), beta, alpha)


@kernel("baddbmm")
def baddbmm(self: Any, batch1: Any, batch2: Any, beta: Any = 1, alpha: Any = 1) -> Any:
    _check_batches(batch1=batch1, batch2=batch2)
    _check_dtypes(self, batch1)
    return add_scaled(self, product(batch1, batch2), beta, alpha)


@kernel("addbmm")
def addbmm(self: Any, batch1: Any, batch2: Any, beta: Any = 1, alpha: Any = 1) -> Any:
    _check_batches(batch1=batch1, batch2=batch2)
    _check_dtypes(self, batch1)
    # One long product sums over the batch.
    count, rows, inner = batch1.shape
    side = batch1.transpose(1, 0, 2).reshape(rows, count * inner)
    if batch2.shape[1] != inner:
        raise ValueError(f"{inner} columns do not match {batch2.shape[1]} rows")
    flat = batch2.reshape(count * inner, batch2.shape[2])
    return add_scaled(self, product(side, flat), beta, alpha)


@kernel("addmv")
def addmv(self: Any, mat: Any, vec: Any, beta: Any = 1, alpha: Any = 1) -> Any:
    _check_ndim(2, mat=mat)
    _check_ndim(1, vec=vec)
    _check_dtypes(self, mat)
    return add_scaled(self, product(mat, vec), beta, alpha)


@kernel("addr")
def addr(self: Any, vec1: Any, vec2: Any, beta: Any = 1, alpha: Any = 1) -> Any:
    _check_ndim(1, vec1=vec1, vec2=vec2)
    kind = dtypes.promote(self.dtype, dtypes.promote(vec1.dtype, vec2.dtype))
    working = dtypes.working(kind)
    out = numpy.multiply.outer(vec1.astype(working), vec2.astype(working))
    return add_scaled(self.astype(kind, copy=False), out, beta, alpha)


@kernel("linear")
def linear(input: Any, weight: Any, bias: Any = None) -> Any:
    out = product(input, weight.T)
    if bias is not None:
        bias = widen(bias)
        out = numpy.add(out, bias, out=out) if out.ndim else numpy.asarray(out + bias)
    return round_to(out, input.dtype)


@kernel("tril")
def tril(self: Any, diagonal: int = 0) -> Any:
    return numpy.where(_lower_mask(self, diagonal), self, self.dtype.type(0))


@kernel("triu")
def triu(self: Any, diagonal: int = 0) -> Any:
    return numpy.where(_lower_mask(self, diagonal - 1), self.dtype.type(0), self)


def _lower_mask(self: Any, diagonal: int) -> Any:
    if self.ndim < 2:
        raise ValueError(f"{self.ndim} dimensions are fewer than 2")
    return numpy.tri(*self.shape[-2:], k=diagonal, dtype=bool)


@kernel("trace")
def trace(self: Any) -> Any:
    _check_ndim(2, self=self)
    kind = self.dtype
    if dtypes.category(kind) < dtypes.FLOATING:
        return numpy.trace(self, dtype=numpy.int64)
    return round_to(numpy.asarray(numpy.trace(widen(self))), kind)


@kernel("linalg_cross")
def linalg_cross(self: Any, other: Any, dim: int = -1) -> Any:
    if self.ndim != other.ndim:
        raise ValueError(f"{self.ndim} and {other.ndim} dimensions")
    if self.shape[dim] != 3 or other.shape[dim] != 3:
        raise ValueError(f"sizes {self.shape[dim]} and {other.shape[dim]} along {dim}, not 3")
    kind = dtypes.promote(self.dtype, other.dtype)
    working = dtypes.working(kind)
    one, two = self.astype(working, copy=False), other.astype(working, copy=False)
    return round_to(numpy.cross(one, two, axis=dim), kind)


@kernel("block_diag")
def block_diag(tensors: Any) -> Any:
    if any(t.ndim > 2 for t in tensors):
        raise ValueError("a block has more than 2 dimensions")
    blocks = [numpy.atleast_2d(t) for t in tensors]
    kind = dtypes.result_type(*tensors)
    out = numpy.zeros((sum(b.shape[0] for b in blocks), sum(b.shape[1] for b in blocks)), kind)
    row = column = 0
    for block in blocks:
        rows, columns = block.shape
        out[row : row + rows, column : column + columns] = block
        row, column = row + rows, column + columns
    return out


@kernel("_trilinear")
def trilinear(
    i1: Any, i2: Any, i3: Any, expand1: Any, expand2: Any, expand3: Any, sumdim: Any, unroll_dim=1
) -> Any:
    ndim = i1.ndim + len(expand1)
    operands: list[Any] = []
    for array, expanded in ((i1, expand1), (i2, expand2), (i3, expand3)):
        missing = {d % ndim for d in expanded}
        operands += [widen(array), [d for d in range(ndim) if d not in missing]]
    summed = {d % ndim for d in sumdim}
    kept = [d for d in range(ndim) if d not in summed]
    return round_to(numpy.einsum(*operands, kept, optimize=True), i1.dtype)
