"""Chains of pointwise ops by the C loop: no Python between two ops.

Covers: float32 arrays of one shape that lie alike, the ops in `CODES`.
Leaves to others: recording a chain and giving out registers (`fused`), every other chain.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from typing import Any

import numpy

from holdfast.compute import dtype as formats
from holdfast.compute import threads
from holdfast.compute.compiled import kernels
from holdfast.compute.engines.numpy import activation, rows

_FUNCTIONS = 64  # what is added to the codes of rows.c
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
        getattr(activation, name): _FUNCTIONS + rows.CODES[name]
        for name in (
            *("sigmoid", "silu", "gelu"),
            *("sigmoid_backward", "silu_backward", "gelu_backward"),
        )
    },
}
_WORTH = 1 << 14  # numbers for a thread; below, waking another costs more than it saves


class Chain:
    """Ops with their registers: arrays first, then numbers, then buffers."""

    def __init__(
        self, orders: Sequence[tuple[int, int, int, int]], arrays: int, numbers: Any, buffers: int
    ) -> None:
        self._orders = numpy.array(orders, numpy.int32)
        self._numbers = numpy.array(numbers, numpy.float32)
        self._arrays, self._buffers = arrays, buffers
        self._functions = any(order[0] >= _FUNCTIONS for order in orders)
        self.used = sorted({r for order in orders for r in order[1:] if r < arrays})

    def run(self, arrays: list[Any], shape: tuple[int, ...]) -> bool:
        """Compute it, where these arrays are fit for it."""
        loops = kernels()
        if loops is None or not all(_fit(arrays[r], shape) for r in self.used):
            return False
        each = None
        if self._functions:
            # Of fewer numbers the op alone is not computed by a loop in C: results are to be equal.
            if math.prod(shape) < rows.LEAST or rows.loops() is None:
                return False
            each = ctypes.cast(rows.loops().holdfast_each, ctypes.c_void_p)
        places = numpy.zeros(self._arrays, numpy.uintp)
        for r in self.used:
            places[r] = arrays[r].ctypes.data
        size, room = (
            math.prod(shape),
            loops.holdfast_chain_scratch(len(self._numbers), self._buffers),
        )
        parts = max(1, min(size // _WORTH, 4 * threads.get_num_threads()))
        if threads.get_num_threads() == 1:
            parts = 1

        def work(number: int) -> None:
            loops.holdfast_chain(
                self._orders.ctypes.data, len(self._orders), places.ctypes.data, self._arrays,
                self._numbers.ctypes.data, len(self._numbers), size * number // parts,
                size * (number + 1) // parts, threads.scratch.of(room).ctypes.data, each,
            )  # fmt: skip

        threads.share_out(work, parts)
        return True


def _fit(array: Any, shape: tuple[int, ...]) -> bool:
    if array is None or array.shape != shape or array.dtype != formats.FLOAT32:
        return False
    return array.flags.c_contiguous and array.flags.aligned
