"""The registry of the NumPy engine's kernels, and casts to the dtypes they compute in.

A kernel gets arrays, never NumPy scalars. It may return NumPy scalars: the engine makes arrays
of them.
"""

from __future__ import annotations

from typing import Any

import numpy

from holdfast.compute import dtype as dtypes
from holdfast.compute.engines.kernel_registry import Kernels

KERNELS = Kernels("NumPy")
kernel, register = KERNELS.kernel, KERNELS.register


def widen(array: Any) -> Any:
    """Cast floats narrower than float32 to float32; others are returned as they are."""
    return array.astype(dtypes.FLOAT32) if array.dtype in dtypes.NARROW else array


def cast(array: Any, kind: Any) -> Any:
    """Cast to dtype `kind`; always an array. Complex to real keeps the real part."""
    array = numpy.asarray(array)
    if array.dtype.kind == "c" and kind.kind not in "cb":
        array = array.real
    return array.astype(kind, copy=False)


def to_floating(array: Any) -> Any:
    """Cast integers, booleans and floats narrower than float32 to float32; others stay."""
    return array.astype(dtypes.working(dtypes.with_fractions(array.dtype)), copy=False)
