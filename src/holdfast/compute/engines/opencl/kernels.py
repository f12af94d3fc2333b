"""Where the OpenCL engine's kernels are put together.

Covers: the decorator, C's names for number formats.
Leaves to others: calling kernels (the engine), formats in C (kernels/numbers.cl).
Promise: a kernel function gets the engine and arrays of its device; what it cannot compute it
leaves to the host by raising NotHere.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy

from holdfast.base.errors import AlreadyRegistered
from holdfast.compute import dtype as formats
from holdfast.compute.engines.opencl.array import NotHere


class Kernel:
    """What computes an op: `function(engine, *args)` under the op's name."""

    __slots__ = ("function", "name")

    def __init__(self, name: str, function: Callable[..., Any]) -> None:
        self.name = name
        self.function = function

    def __repr__(self) -> str:
        return f"<opencl kernel {self.name}>"


KERNELS: dict[str, Any] = {}


def kernel(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A decorator: the function below computes these ops. Its first argument is the engine."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        for name in names:
            register(name, function)
        return function

    return decorate


def register(name: str, function: Callable[..., Any]) -> None:
    """Let `function` compute the op `name`. Raises AlreadyRegistered."""
    if name in KERNELS:
        raise AlreadyRegistered(f"the OpenCL engine has two kernels for {name}")
    KERNELS[name] = Kernel(name, function)


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
