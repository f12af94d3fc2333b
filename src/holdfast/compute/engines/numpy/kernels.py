"""The registry of the NumPy engine's kernels, and casts to the dtypes they compute in.

A kernel gets arrays, never NumPy scalars. It may return NumPy scalars: the engine makes arrays
of them.
"""

from __future__ import annotations

from typing import Any

import numpy

from holdfast.compute import dtype as dtypes
from holdfast.compute.engines.kernel_registry import Kernels
from holdfast.compute.engines.layout import assemble as assemble
from holdfast.compute.engines.layout import views as views
from holdfast.compute.engines.layout.arrays import SHARED

KERNELS = Kernels("NumPy")
kernel, register = KERNELS.kernel, KERNELS.register
for _name, _function in SHARED.items():
    register(_name, _function)


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
