"""Kernels: the parts of complex numbers.

Covers: taking them apart, and making them of parts or of an angle.
Leaves to others: computing with complex numbers (the host).
Promise: parts are views; formats are refused as the NumPy engine refuses them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy

from holdfast.compute import dtype as formats
from holdfast.compute.engines.opencl.array import Array
from holdfast.compute.engines.opencl.kernels import KERNELS, kernel

if TYPE_CHECKING:
    from holdfast.compute.engines.opencl.engine import OpenCLEngine


def _parts(array: Array) -> tuple[Array, Array]:
    """Views of the real and of the imaginary part."""
    kind = formats.real_of(array.dtype)
    first = array.viewed(kind, array.shape, array.strides)
    return first, array.viewed(kind, array.shape, array.strides, array.offset + kind.itemsize)


@kernel("real")
def real(engine: OpenCLEngine, self: Array) -> Array:
    if self.dtype.kind == "c":
        return _parts(self)[0]
    return self.viewed(self.dtype, self.shape, self.strides)


@kernel("imag")
def imag(engine: OpenCLEngine, self: Array) -> Array:
    if self.dtype.kind != "c":
        raise TypeError("real numbers have no imaginary part")
    return _parts(self)[1]


def _joined(engine: OpenCLEngine, one: Array, other: Array) -> Array:
    if one.dtype != other.dtype:
        raise TypeError(f"{one.dtype} and {other.dtype} are two formats")
    if one.dtype not in (formats.FLOAT16, formats.FLOAT32, formats.FLOAT64):
        raise TypeError(f"there are no complex numbers whose parts are {one.dtype}")
    shape = numpy.broadcast_shapes(one.shape, other.shape)
    return engine.alloc(shape, formats.complex_of(one.dtype))


@kernel("complex")
def complex_(engine: OpenCLEngine, real: Array, imag: Array) -> Array:
    made = _joined(engine, real, imag)
    for part, value in zip(_parts(made), (real, imag), strict=True):
        engine.write(part, value)
    return made


@kernel("polar")
def polar(engine: OpenCLEngine, abs: Array, angle: Array) -> Array:
    made = _joined(engine, abs, angle)
    for part, name in zip(_parts(made), ("cos", "sin"), strict=True):
        turned = KERNELS[name].function(engine, angle)
        engine.write(part, KERNELS["mul.Tensor"].function(engine, abs, turned))
    return made
