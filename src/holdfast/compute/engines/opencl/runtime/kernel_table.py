"""The engine's kernels by op name, and the C types of dtypes.

A kernel function takes the engine and arrays of its device. It raises NotHere for a call that the
host must compute.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy

from holdfast.compute import dtype as dtypes
from holdfast.compute.engines.kernel_registry import Kernels
from holdfast.compute.engines.layout import assemble as assemble
from holdfast.compute.engines.layout import views as views
from holdfast.compute.engines.layout.arrays import SHARED
from holdfast.compute.engines.opencl.runtime.array import NotHere
from holdfast.compute.engines.opencl.runtime.engine_protocol import CLEngine


class Kernel:
    """The kernel of an op: `function(engine, *args)`."""

    __slots__ = ("function", "name")

    def __init__(self, name: str, function: Callable[..., Any]) -> None:
        self.name = name
        self.function = function

    def __repr__(self) -> str:
        return f"<opencl kernel {self.name}>"


KERNELS = Kernels("OpenCL", Kernel)
kernel, register = KERNELS.kernel, KERNELS.register


def _without_engine(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda engine, *args, **kwargs: function(*args, **kwargs)


for _name, _function in SHARED.items():
    register(_name, _without_engine(_function))


# ---- dtypes

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


@functools.cache  # numpy.dtype.name is computed on each access
def storage(kind: numpy.dtype[Any]) -> str:
    """The suffix of a dtype's macros in numbers.cl: `LOAD_float16(p, i)`, `TYPE_float16` …"""
    if kind.kind == "c":
        raise NotHere(f"the OpenCL engine does not compute with {kind}")
    return kind.name


@functools.cache
def working(kind: numpy.dtype[Any]) -> str:
    """The C type to compute in: float for narrow floats."""
    found = _C.get(dtypes.working(kind).name)
    if found is None:
        raise NotHere(f"the OpenCL engine does not compute with {kind}")
    return found


def check_double(engine: CLEngine, *kinds: numpy.dtype[Any] | str) -> None:
    """Raise NotHere if one of the dtypes or C types is float64 and the device lacks it."""
    if not engine.has_double and any(kind == "double" for kind in kinds):
        raise NotHere("no float64 on this device")
