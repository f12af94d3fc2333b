"""Where the NumPy engine's kernels are put together.

Covers: the engine's kernels by op, and the formats that are computed in.
Promise: a kernel gets arrays (never NumPy scalars) and may return NumPy scalars; the engine makes
arrays of them.
"""

from __future__ import annotations

from typing import Any

import numpy

from holdfast.compute import dtype as formats
from holdfast.compute.engines.registering import Kernels

KERNELS = Kernels("NumPy")
kernel, register = KERNELS.kernel, KERNELS.register


# ---- formats


def widened(array: Any) -> Any:
    """In the format that is computed in: float32 for the narrow floats."""
    return array.astype(formats.FLOAT32) if array.dtype in formats.NARROW else array


def cast(array: Any, kind: Any) -> Any:
    """In another format, a number as an array too; complex numbers give their real parts."""
    array = numpy.asarray(array)
    if array.dtype.kind == "c" and kind.kind not in "cb":
        array = array.real
    return array.astype(kind, copy=False)


def floating(array: Any) -> Any:
    """As floating-point numbers that are computed in: whole numbers become float32."""
    return array.astype(formats.working(formats.with_fractions(array.dtype)), copy=False)
