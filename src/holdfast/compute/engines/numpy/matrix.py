"""Kernels: products of matrices and vectors.

Promise: every product of floating-point matrices is one call of the BLAS for each matrix of the
batch, or one in all where the second is a single matrix, whichever way the arguments lie in
memory; float16 and bfloat16 are multiplied and added in float32 and rounded once.
"""

from __future__ import annotations

from typing import Any

import numpy

from holdfast.compute import dtype as formats
from holdfast.compute import threads
from holdfast.compute.engines.numpy.kernels import kernel, widened

_F32 = formats.FLOAT32
_matmul = numpy.matmul
# Multiplications in one matrix product: from here on OpenBLAS uses several threads, and from there
# on they are worth their while on a machine that does other things too.
_SHARED_BY_BLAS = 1 << 18
_WORTH_SHARING = 1 << 24


def product(one: Any, other: Any) -> Any:
    """The matrix product, not yet rounded to a narrow format."""
    kind = one.dtype
    if not kind is _F32 is other.dtype:  # the most common case asks no more questions
        if kind != other.dtype:
            raise TypeError(f"{kind} and {other.dtype} are not multiplied with each other")
        if kind in formats.NARROW:
            one, other = one.astype(_F32), other.astype(_F32)
    try:
        if other.ndim == 2 and one.ndim > 2 and one.flags.c_contiguous and one.size:
            rows = _multiplied(one.reshape(-1, one.shape[-1]), other)
            return rows.reshape(*one.shape[:-1], other.shape[1])
        return _multiplied(one, other)
    except ValueError as exc:
        raise ValueError(_apart(one.shape, other.shape)) from exc


def _multiplied(one: Any, other: Any) -> Any:
    """`numpy.matmul`; a product of middling size is not shared out.

    BLAS would use all threads for it, and wait for each: that wins up to 0.3 ms on an idle machine,
    and loses several on a busy one (a step of tiny-flux took 940 ms instead of 125).
    """
    if other.ndim > 1:
        steps = one.shape[-2:][0] * other.shape[-2] * other.shape[-1]
        if _SHARED_BY_BLAS < steps < _WORTH_SHARING:
            with threads.single_blas():
                return _matmul(one, other)
    return _matmul(one, other)


def _apart(one: tuple[int, ...], other: tuple[int, ...]) -> str:
    """Why these shapes do not multiply."""
    if not one or not other:
        return "a single number is no matrix"
    columns, rows = one[-1], other[-2:][0]
    if columns != rows:
        return f"{columns} columns do not meet {rows} rows"
    return f"batches of {list(one[:-2])} and of {list(other[:-2])} do not broadcast"


def rounded(out: Any, kind: Any) -> Any:
    """A result in the format it must have."""
    return out if out.dtype is kind or out.dtype == kind else out.astype(kind)


def _need(name: str, array: Any, ndim: int) -> None:
    if array.ndim != ndim:
        raise ValueError(f"{name} has {array.ndim} dimensions, not {ndim}")


@kernel("matmul")
def matmul(self: Any, other: Any) -> Any:
    return rounded(product(self, other), self.dtype)


@kernel("mm")
def mm(self: Any, mat2: Any) -> Any:
    _need("self", self, 2)
    _need("mat2", mat2, 2)
    return rounded(product(self, mat2), self.dtype)


@kernel("bmm")
def bmm(self: Any, mat2: Any) -> Any:
    _need("self", self, 3)
    _need("mat2", mat2, 3)
    if self.shape[0] != mat2.shape[0]:
        raise ValueError(f"batches of {self.shape[0]} and of {mat2.shape[0]} matrices")
    return rounded(product(self, mat2), self.dtype)


@kernel("mv")
def mv(self: Any, vec: Any) -> Any:
    _need("self", self, 2)
    _need("vec", vec, 1)
    return rounded(product(self, vec), self.dtype)


@kernel("dot")
def dot(self: Any, tensor: Any) -> Any:
    _need("self", self, 1)
    _need("tensor", tensor, 1)
    return rounded(product(self, tensor), self.dtype)


@kernel("vdot")
def vdot(self: Any, other: Any) -> Any:
    _need("self", self, 1)
    _need("other", other, 1)
    return rounded(product(self.conj(), other), self.dtype)


def added(base: Any, out: Any, beta: Any, alpha: Any) -> Any:
    """beta * base + alpha * out, in the memory of `out`; base is not read where beta is 0."""
    kind = base.dtype
    shape = out.shape
    if alpha != 1:
        out = numpy.asarray(out * _number(alpha, out.dtype))
    if beta != 0:
        base = widened(base)
        if beta != 1:
            base = base * _number(beta, base.dtype)
        out = numpy.add(out, base, out=out) if out.ndim else numpy.asarray(out + base)
    if out.shape != shape:
        raise ValueError(f"{list(base.shape)} does not broadcast to {list(shape)}")
    return rounded(out, kind)


def _number(value: Any, kind: Any) -> Any:
    """A factor in the format of what it multiplies: whole numbers cut off a fraction."""
    return kind.type(value)


def _same_format(base: Any, one: Any) -> None:
    if base.dtype != one.dtype:
        raise TypeError(f"{base.dtype} and {one.dtype} are not added to each other")


@kernel("addmm")
def addmm(self: Any, mat1: Any, mat2: Any, beta: Any = 1, alpha: Any = 1) -> Any:
    _need("mat1", mat1, 2)
    _need("mat2", mat2, 2)
    _same_format(self, mat1)
    return added(self, product(mat1, mat2), beta, alpha)


@kernel("baddbmm")
def baddbmm(self: Any, batch1: Any, batch2: Any, beta: Any = 1, alpha: Any = 1) -> Any:
    _need("batch1", batch1, 3)
    _need("batch2", batch2, 3)
    _same_format(self, batch1)
    if batch1.shape[0] != batch2.shape[0]:
        raise ValueError(f"batches of {batch1.shape[0]} and of {batch2.shape[0]} matrices")
    return added(self, product(batch1, batch2), beta, alpha)


@kernel("addbmm")
def addbmm(self: Any, batch1: Any, batch2: Any, beta: Any = 1, alpha: Any = 1) -> Any:
    _need("batch1", batch1, 3)
    _need("batch2", batch2, 3)
    _same_format(self, batch1)
    if batch1.shape[0] != batch2.shape[0]:
        raise ValueError(f"batches of {batch1.shape[0]} and of {batch2.shape[0]} matrices")
    # The sum over the batch is part of one long product.
    count, rows, inner = batch1.shape
    side = batch1.transpose(1, 0, 2).reshape(rows, count * inner)
    if batch2.shape[1] != inner:
        raise ValueError(f"{inner} columns do not meet {batch2.shape[1]} rows")
    return added(self, product(side, batch2.reshape(count * inner, batch2.shape[2])), beta, alpha)


@kernel("addmv")
def addmv(self: Any, mat: Any, vec: Any, beta: Any = 1, alpha: Any = 1) -> Any:
    _need("mat", mat, 2)
    _need("vec", vec, 1)
    _same_format(self, mat)
    return added(self, product(mat, vec), beta, alpha)


@kernel("addr")
def addr(self: Any, vec1: Any, vec2: Any, beta: Any = 1, alpha: Any = 1) -> Any:
    _need("vec1", vec1, 1)
    _need("vec2", vec2, 1)
    kind = formats.promote(self.dtype, formats.promote(vec1.dtype, vec2.dtype))
    working = formats.working(kind)
    out = numpy.multiply.outer(vec1.astype(working), vec2.astype(working))
    return added(self.astype(kind, copy=False), out, beta, alpha)


@kernel("linear")
def linear(input: Any, weight: Any, bias: Any = None) -> Any:
    out = product(input, weight.T)
    if bias is not None:
        bias = widened(bias)
        out = numpy.add(out, bias, out=out) if out.ndim else numpy.asarray(out + bias)
    return rounded(out, input.dtype)


@kernel("tril")
def tril(self: Any, diagonal: int = 0) -> Any:
    return numpy.where(_below(self, diagonal), self, self.dtype.type(0))


@kernel("triu")
def triu(self: Any, diagonal: int = 0) -> Any:
    return numpy.where(_below(self, diagonal - 1), self.dtype.type(0), self)


def _below(self: Any, diagonal: int) -> Any:
    if self.ndim < 2:
        raise ValueError(f"{self.ndim} dimensions are fewer than 2")
    return numpy.tri(*self.shape[-2:], k=diagonal, dtype=bool)


@kernel("trace")
def trace(self: Any) -> Any:
    _need("self", self, 2)
    kind = self.dtype
    if formats.category(kind) < formats.FLOATING:
        return numpy.trace(self, dtype=numpy.int64)
    return rounded(numpy.asarray(numpy.trace(widened(self))), kind)


@kernel("linalg_cross")
def linalg_cross(self: Any, other: Any, dim: int = -1) -> Any:
    if self.ndim != other.ndim:
        raise ValueError(f"{self.ndim} and {other.ndim} dimensions")
    if self.shape[dim] != 3 or other.shape[dim] != 3:
        raise ValueError(f"sizes {self.shape[dim]} and {other.shape[dim]} along {dim}, not 3")
    kind = formats.promote(self.dtype, other.dtype)
    working = formats.working(kind)
    one, two = self.astype(working, copy=False), other.astype(working, copy=False)
    return rounded(numpy.cross(one, two, axis=dim), kind)


@kernel("block_diag")
def block_diag(tensors: Any) -> Any:
    if any(t.ndim > 2 for t in tensors):
        raise ValueError("a block has more than 2 dimensions")
    blocks = [numpy.atleast_2d(t) for t in tensors]
    kind = formats.result_type(*tensors)
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
        operands += [widened(array), [d for d in range(ndim) if d not in missing]]
    summed = {d % ndim for d in sumdim}
    kept = [d for d in range(ndim) if d not in summed]
    return rounded(numpy.einsum(*operands, kept, optimize=True), i1.dtype)
