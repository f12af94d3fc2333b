"""Element by element in blocks that stay in a core's cache, where NumPy alone would be slow.

Covers: the loop over blocks, choosing between two arrays, erf and log(1 + x) in float32.
Promise: `erf` and `gauss` in float32 are within 1.5e-7 of the truth; choosing is exact, NaN too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy

from holdfast.compute.engines.numpy import rows, scipy

BLOCK = 16384  # numbers: 64 KB in float32, a few of which fit into a second-level cache

# erf(x) = tanh(x * P(x²)): tanh flattens P's error where erf is near 1. Fitted on [0, 4], where
# erf reaches 1 in float32, for the least greatest relative error (7e-8).
_FITTED = (
    *(5.423107623803748e-09, 2.7536265659986653e-08, -4.794214494577577e-06),
    *(8.459478426796076e-05, -0.000614834176754465, -0.00019529244836950075),
    *(0.10276986591798866, 1.1283792469938219),
)
_ERF = tuple(numpy.array(factor, numpy.float32) for factor in _FITTED)
# (1 + tanh(y)) / 2 = 1 / (1 + exp(-2 y)), here with y for x / sqrt(2).
_GAUSS = tuple(
    numpy.array(-2 * factor * 0.5 ** (power + 0.5), numpy.float32)
    for power, factor in zip(range(len(_FITTED) - 1, -1, -1), _FITTED, strict=True)
)
_GAUSS_END = numpy.array(32, numpy.float32)
_ERF_END = numpy.array(16, numpy.float32)
_EXACT = 2.0**29
_UNSIGNED = {1: numpy.uint8, 2: numpy.uint16, 4: numpy.uint32, 8: numpy.uint64}


def blockwise(function: Callable[..., None], *arrays: Any, dtype: Any = None) -> Any:
    """`function(out, *blocks)` for every block of arrays that are broadcast to one shape."""
    made = rows.each(_LOOPS[function], *arrays) if function in _LOOPS else None
    if made is not None:
        return made
    shape = arrays[0].shape
    if any(a.shape != shape for a in arrays):
        arrays = numpy.broadcast_arrays(*arrays)
        shape = arrays[0].shape
    out = numpy.empty(shape, dtype or arrays[0].dtype)
    flat = out.reshape(-1)
    flats = [numpy.ascontiguousarray(a).reshape(-1) for a in arrays]
    for start in range(0, flat.size, BLOCK):
        part = slice(start, start + BLOCK)
        function(flat[part], *(a[part] for a in flats))
    return out


def select(condition: Any, one: Any, other: Any) -> Any:
    """`numpy.where` for arrays of one format: by bits, so that no branch is guessed wrong."""
    if (
        one.dtype.itemsize not in _UNSIGNED
        or max(condition.size, one.size, other.size) < BLOCK // 4
    ):
        return numpy.where(condition, one, other)

    return blockwise(choose, condition, one, other, dtype=one.dtype)


def choose(out: Any, condition: Any, one: Any, other: Any) -> None:
    """Into a block: `one` where the condition holds, else `other`, which may be the block."""
    bits, mask = _mask(condition, one.dtype)
    chosen = numpy.bitwise_xor(one.view(bits), other.view(bits))
    numpy.bitwise_and(chosen, mask, out=chosen)
    numpy.bitwise_xor(chosen, other.view(bits), out=out.view(bits))


def keep_where(out: Any, condition: Any, value: Any) -> None:
    """Into a block: `value` where the condition holds, else 0, even where it is not finite."""
    bits, mask = _mask(condition, value.dtype)
    numpy.bitwise_and(value.view(bits), mask, out=out.view(bits))


def _mask(condition: Any, kind: numpy.dtype[Any]) -> tuple[Any, Any]:
    """All bits set where the condition holds, in the size of a number."""
    bits = _UNSIGNED[kind.itemsize]
    return bits, numpy.negative(condition.view(numpy.uint8), dtype=bits, casting="unsafe")


def erf(out: Any, x: Any) -> None:
    """The error function of a block, into `out`, which may be `x`."""
    if out.dtype != numpy.float32:
        scipy.part("special").erf(x, out=out)
        return
    if not rows.into("erf", out, x):
        numpy.tanh(_odd(x, _ERF, _ERF_END), out=out)


def gauss(out: Any, x: Any) -> None:
    """The share of normally distributed numbers below those of a block, into `out`, not `x`."""
    if rows.into("gauss", out, x):
        return
    if out.dtype == numpy.float32:
        numpy.exp(_odd(x, _GAUSS, _GAUSS_END), out=out)
        numpy.add(out, 1, out=out)
        numpy.true_divide(1, out, out=out)
        return
    scipy.part("special").ndtr(x, out=out)


def _odd(x: Any, factors: Any, end: Any) -> Any:
    """x * P(x²), with x² no larger than `end`."""
    square = numpy.square(x)
    numpy.minimum(square, end, out=square)
    found = numpy.multiply(square, factors[0])
    for factor in factors[1:-1]:
        numpy.add(found, factor, out=found)
        numpy.multiply(found, square, out=found)
    numpy.add(found, factors[-1], out=found)
    numpy.multiply(found, x, out=found)
    return found


def log1p(out: Any, x: Any) -> None:
    """log(1 + x) of a block, into `out`, which may be `x`."""
    if out.dtype != numpy.float32:
        numpy.log1p(x, out=out)
        return
    raised = numpy.add(x, numpy.float32(1))
    # What the sum lost in rounding, over its slope.
    lost = numpy.subtract(raised, numpy.float32(1))
    numpy.subtract(x, lost, out=lost)
    lost /= raised
    numpy.log(raised, out=raised)
    numpy.copyto(lost, 0, where=~numpy.isfinite(raised))
    numpy.add(raised, lost, out=out)


def sigmoid(out: Any, x: Any) -> None:
    """1 / (1 + exp(-x)) of a block, into `out`, which may be `x`."""
    if rows.into("sigmoid", out, x):
        return
    numpy.negative(x, out=out)
    numpy.exp(out, out=out)
    numpy.add(out, 1, out=out)
    numpy.true_divide(1, out, out=out)


# Functions of a block that have a C loop, which goes over all blocks at once.
_LOOPS = {erf: "erf", sigmoid: "sigmoid"}


def divided_apart(out: Any, x: Any, by: Any, rounded: Any, exact: Any) -> None:
    """x - rounded(x / by) * by of a block, into `out`.

    In float64 no digit of float32 numbers is lost while the quotient is below 2**29; `exact`
    computes the blocks where it is not, or where something is not finite.
    """
    wide, divisor = x.astype(numpy.float64), by.astype(numpy.float64)
    quotient = wide / divisor
    rounded(quotient, out=quotient)
    if not numpy.abs(quotient).max() < _EXACT:
        exact(x, by, out=out)
        return
    quotient *= divisor
    wide -= quotient
    if not numpy.isfinite(wide.sum()):
        exact(x, by, out=out)
        return
    out[...] = wide
