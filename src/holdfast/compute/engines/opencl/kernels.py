"""Where the OpenCL engine's kernels are put together.

Covers: the engine's kernels by op, C's names for number formats.
Leaves to others: calling kernels (the engine), formats in C (kernels/numbers.cl).
Promise: a kernel function gets the engine and arrays of its device; what it cannot compute it
leaves to the host by raising NotHere.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy

from holdfast.compute import dtype as formats
from holdfast.compute.engines.opencl.array import NotHere
from holdfast.compute.engines.registering import Kernels


class Kernel:
    """What computes an op: `function(engine, *args)` under the op's name."""

    __slots__ = ("function", "name")

    def __init__(self, name: str, function: Callable[..., Any]) -> None:
        self.name = name
        self.function = function

    def __repr__(self) -> str:
        return f"<opencl kernel {self.name}>"


KERNELS = Kernels("OpenCL", Kernel)
kernel, register = KERNELS.kernel, KERNELS.register


# ---- formats

_C = {
    "bool": "uchar",
    "uint8": "uchar",
    "int8": "char",
    "int16": "short",
    "uint16": "ushort",
    "int32": "int",
    "uint32": "uint",
    "int64": "long",
    "uint64": "ulong",
    "float32": "float",
    "float64": "double",
}


@functools.cache  # NumPy makes the name of a format anew each time
def storage(kind: numpy.dtype[Any]) -> str:
    """The word for a format in `LOAD_word(p, i)`, `STORE_word(p, i, v)` and `TYPE_word`."""
    if kind.kind == "c":
        raise NotHere(f"the OpenCL engine does not compute with {kind}")
    return kind.name


@functools.cache
def working(kind: numpy.dtype[Any]) -> str:
    """The C type that numbers of a format are computed in: float for the narrow ones."""
    found = _C.get(formats.working(kind).name)
    if found is None:
        raise NotHere(f"the OpenCL engine does not compute with {kind}")
    return found
