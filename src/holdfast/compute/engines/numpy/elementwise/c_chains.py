"""Fused chains of the ops in `CODES` in one C loop, for contiguous float32 arrays of one shape.

`fusion.chain` records chains, assigns registers, and runs those that do not fit.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from typing import Any

import numpy

from holdfast.compute import dtype as dtypes
from holdfast.compute.engines.numpy import threads
from holdfast.compute.engines.numpy.c_kernels import kernels
from holdfast.compute.engines.numpy.elementwise import activation
from holdfast.compute.engines.numpy.reduce import c_rows

_FUNCTIONS = 64  # offset of the codes of rows.c
CODES: dict[Any, int] = {
    numpy.add: 0,
    numpy.subtract: 1,
    numpy.multiply: 2,
    numpy.true_divide: 3,
    numpy.maximum: 4,
    numpy.minimum: 5,
    numpy.negative: 6,
    numpy.absolute: 7,
    numpy.sqrt: 8,
    numpy.square: 9,
    **{
        getattr(activation, name): _FUNCTIONS + c_rows.CODES[name]
        for name in (
            *("sigmoid", "silu", "gelu"),
            *("sigmoid_backward", "silu_backward", "gelu_backward"),
        )
    },
}
_WORTH = 1 << 14  # elements per thread; for fewer, waking another costs more than it saves


class Chain:
    """Ops with their registers, which are numbered: arrays, then scalars, then buffers."""

    def __init__(
        self, orders: Sequence[tuple[int, int, int, int]], arrays: int, numbers: Any, buffers: int
    ) -> None:
        self._orders = numpy.array(orders, numpy.int32)
        self._numbers = numpy.array(numbers, numpy.float32)
        self._arrays, self._buffers = arrays, buffers
        self._functions = any(order[0] >= _FUNCTIONS for order in orders)
        self.used = sorted({r for order in orders for r in order[1:] if r < arrays})

    def run(self, arrays: list[Any], shape: tuple[int, ...]) -> bool:
        """Compute the chain; False, with nothing written, if these arrays do not fit."""
        loops = kernels()
        if loops is None or not all(_can_run(arrays[r], shape) for r in self.used):
            return False
        each = None
        if self._functions:
            # The single op does not use the C loop below LEAST elements: results must be equal.
            if math.prod(shape) < c_rows.LEAST or c_rows.loops() is None:
                return False
            each = ctypes.cast(c_rows.loops().holdfast_each, ctypes.c_void_p)
        addresses = numpy.zeros(self._arrays, numpy.uintp)
        for r in self.used:
            addresses[r] = arrays[r].ctypes.data
        size = math.prod(shape)
        scratch = loops.holdfast_chain_scratch(len(self._numbers), self._buffers)
        parts = max(1, min(size // _WORTH, 4 * threads.get_num_threads()))
        if threads.get_num_threads() == 1:
            parts = 1

        def work(number: int) -> None:
            loops.holdfast_chain(
                self._orders.ctypes.data, len(self._orders), addresses.ctypes.data, self._arrays,
                self._numbers.ctypes.data, len(self._numbers), size * number // parts,
                size * (number + 1) // parts, threads.scratch.of(scratch).ctypes.data, each,
            )  # fmt: skip

        threads.share_out(work, parts)
        return True


def _can_run(array: Any, shape: tuple[int, ...]) -> bool:
    if array is None or array.shape != shape or array.dtype != dtypes.FLOAT32:
        return False
    return array.flags.c_contiguous and array.flags.aligned
