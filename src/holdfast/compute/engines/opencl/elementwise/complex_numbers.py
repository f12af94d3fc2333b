"""Real and imaginary parts, as views, and complex arrays from parts or from polar coordinates."""

from __future__ import annotations

import numpy

from holdfast.compute import dtype as dtypes
from holdfast.compute.engines.opencl.runtime.array import Array
from holdfast.compute.engines.opencl.runtime.engine_protocol import CLEngine
from holdfast.compute.engines.opencl.runtime.kernel_table import KERNELS, kernel


def _part_views(array: Array) -> tuple[Array, Array]:
    """Views of the real and the imaginary part."""
    kind = dtypes.real_of(array.dtype)
    first = array.view(kind, array.shape, array.strides)
    return first, array.view(kind, array.shape, array.strides, array.offset + kind.itemsize)


@kernel("real")
def real(engine: CLEngine, self: Array) -> Array:
    if self.dtype.kind == "c":
        return _part_views(self)[0]
    return self.view(self.dtype, self.shape, self.strides)


@kernel("imag")
def imag(engine: CLEngine, self: Array) -> Array:
    return _part_views(self)[1]


def _alloc_complex(engine: CLEngine, one: Array, other: Array) -> Array:
    shape = numpy.broadcast_shapes(one.shape, other.shape)
    return engine.alloc(shape, dtypes.complex_of(one.dtype))


@kernel("complex")
def complex_(engine: CLEngine, real: Array, imag: Array) -> Array:
    made = _alloc_complex(engine, real, imag)
    for part, value in zip(_part_views(made), (real, imag), strict=True):
        engine.write(part, value)
    return made


@kernel("polar")
def polar(engine: CLEngine, abs: Array, angle: Array) -> Array:
    made = _alloc_complex(engine, abs, angle)
    for part, name in zip(_part_views(made), ("cos", "sin"), strict=True):
        turned = KERNELS[name].function(engine, angle)
        engine.write(part, KERNELS["mul.Tensor"].function(engine, abs, turned))
    return made
