"""Elementwise functions in blocks that stay in a core's cache.

A function of a block writes into its first argument. In float32 `erf` and `gauss` have an error of
at most 1.5e-7; `select` and `choose` copy bits, so NaNs stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy

from holdfast.compute.engines.numpy import scipy
from holdfast.compute.engines.numpy.kernels import register
from holdfast.compute.engines.numpy.reduce import c_rows

BLOCK = 16384  # elements: 64 KB in float32; the L2 cache holds a few such blocks

# erf(x) = tanh(x * P(x²)): tanh flattens P's error where erf is near 1. Fitted on [0, 4], where
# erf reaches 1 in float32, to minimize the largest relative error (7e-8).
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
    """Broadcast the arrays and call `function(out, *blocks)` for every block."""
    made = c_rows.map_elements(_LOOPS[function], *arrays) if function in _LOOPS else None
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
    """`numpy.where` for arrays of one dtype, by masking bits: no branches to mispredict."""
    if (
        one.dtype.itemsize not in _UNSIGNED
        or max(condition.size, one.size, other.size) < BLOCK // 4
    ):
        return numpy.where(condition, one, other)

    return blockwise(choose, condition, one, other, dtype=one.dtype)


def choose(out: Any, condition: Any, one: Any, other: Any) -> None:
    """Write `one` where the condition holds, else `other`, which may be `out`."""
    bits, mask = _bit_mask(condition, one.dtype)
    chosen = numpy.bitwise_xor(one.view(bits), other.view(bits))
    numpy.bitwise_and(chosen, mask, out=chosen)
    numpy.bitwise_xor(chosen, other.view(bits), out=out.view(bits))


def keep_where(out: Any, condition: Any, value: Any) -> None:
    """Write `value` where the condition holds, else 0, even if `value` is NaN or infinite."""
    bits, mask = _bit_mask(condition, value.dtype)
    numpy.bitwise_and(value.view(bits), mask, out=out.view(bits))


def _bit_mask(condition: Any, kind: numpy.dtype[Any]) -> tuple[Any, Any]:
    """The unsigned dtype of that size, and a mask with all bits set where the condition holds."""
    bits = _UNSIGNED[kind.itemsize]
    return bits, numpy.negative(condition.view(numpy.uint8), dtype=bits, casting="unsafe")


def erf(out: Any, x: Any) -> None:
    """Write the error function of `x`, which may be `out`."""
    if out.dtype != numpy.float32:
        scipy.submodule("special").erf(x, out=out)
        return
    if not c_rows.map_block("erf", out, x):
        numpy.tanh(_odd_polynomial(x, _ERF, _ERF_END), out=out)


def gauss(out: Any, x: Any) -> None:
    """Write the cumulative normal distribution of `x`, which must not be `out`."""
    if c_rows.map_block("gauss", out, x):
        return
    if out.dtype == numpy.float32:
        numpy.exp(_odd_polynomial(x, _GAUSS, _GAUSS_END), out=out)
        numpy.add(out, 1, out=out)
        numpy.true_divide(1, out, out=out)
        return
    scipy.submodule("special").ndtr(x, out=out)


def _odd_polynomial(x: Any, factors: Any, end: Any) -> Any:
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
    """Write log(1 + x); `x` may be `out`."""
    if out.dtype != numpy.float32:
        numpy.log1p(x, out=out)
        return
    raised = numpy.add(x, numpy.float32(1))
    # First-order correction for the rounding error of 1 + x.
    lost = numpy.subtract(raised, numpy.float32(1))
    numpy.subtract(x, lost, out=lost)
    lost /= raised
    numpy.log(raised, out=raised)
    numpy.copyto(lost, 0, where=~numpy.isfinite(raised))
    numpy.add(raised, lost, out=out)


def sigmoid(out: Any, x: Any) -> None:
    """Write 1 / (1 + exp(-x)); `x` may be `out`."""
    if c_rows.map_block("sigmoid", out, x):
        return
    numpy.negative(x, out=out)
    numpy.exp(out, out=out)
    numpy.add(out, 1, out=out)
    numpy.true_divide(1, out, out=out)


# Functions of a block that have a C loop, which does all blocks at once.
_LOOPS: dict[Callable[..., None], str] = {erf: "erf", sigmoid: "sigmoid"}


def block_kernel(name: str | None, loop: str | None = None) -> Callable[[Any], Any]:
    """Decorate the function of a block that computes an op, with the name of its C loop.

    The result is the kernel, for whole arrays.
    """

    def decorate(function: Callable[..., None]) -> Callable[..., Any]:
        if loop is not None:
            _LOOPS[function] = loop

        def compute(*arrays: Any) -> Any:
            return blockwise(function, *arrays)

        if name is not None:
            register(name, compute)
        return compute

    return decorate


def remainder_block(out: Any, x: Any, by: Any, rounded: Any, exact: Any) -> None:
    """Write x - rounded(x / by) * by.

    In float64 that is exact for float32 while the quotient is below 2**29. `exact` computes blocks
    with larger quotients, or with NaN or infinity.
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
