"""Products of matrices and vectors, and triangles.

One BLAS call for each matrix of a batch, or a single one if the second argument is one matrix.
float16 and bfloat16 are computed in float32 and rounded once.
"""

from __future__ import annotations

from typing import Any

import numpy

from holdfast.compute import dtype as dtypes
from holdfast.compute.engines.numpy import threads
from holdfast.compute.engines.numpy.kernels import kernel, widen
from holdfast.compute.ops.matrix.products import check_product

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
            check_product(one, other)
        if kind in dtypes.NARROW:
            one, other = one.astype(_F32), other.astype(_F32)
    try:
        if other.ndim == 2 and one.ndim > 2 and one.flags.c_contiguous and one.size:
            rows = _multiply(one.reshape(-1, one.shape[-1]), other)
            return rows.reshape(*one.shape[:-1], other.shape[1])
        return _multiply(one, other)
    except ValueError:
        check_product(one, other)  # says why
        raise


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


def round_to(out: Any, kind: Any) -> Any:
    """Cast a result to dtype `kind`."""
    return out if out.dtype is kind or out.dtype == kind else out.astype(kind)


@kernel("matmul", "mm", "bmm", "mv", "dot")
def matmul(self: Any, other: Any) -> Any:
    return round_to(product(self, other), self.dtype)


@kernel("vdot")
def vdot(self: Any, other: Any) -> Any:
    return matmul(self.conj(), other)


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


@kernel("addmm", "baddbmm", "addmv")
def add_product(self: Any, one: Any, other: Any, beta: Any = 1, alpha: Any = 1) -> Any:
    return add_scaled(self, product(one, other), beta, alpha)


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
