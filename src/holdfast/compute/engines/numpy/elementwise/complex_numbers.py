"""Complex numbers: their parts, conjugates, angles, and making them."""

from __future__ import annotations

from typing import Any

import numpy

from holdfast.compute import dtype as dtypes
from holdfast.compute.engines.numpy.elementwise.pointwise import sign
from holdfast.compute.engines.numpy.kernels import kernel, register

register("_conj", numpy.conjugate)
register("_conj_physical", numpy.conjugate)


@kernel("real")
def real(self: Any) -> Any:
    return self.real if self.dtype.kind == "c" else self.view()


@kernel("imag")
def imag(self: Any) -> Any:
    if self.dtype.kind != "c":
        raise TypeError("real numbers have no imaginary part")
    return self.imag


@kernel("angle")
def angle(self: Any) -> Any:
    if self.dtype.kind == "c":
        return numpy.angle(self)
    angles = numpy.where(self < 0, self.dtype.type(numpy.pi), self.dtype.type(0))
    return numpy.where(numpy.isnan(self), self, angles)


@kernel("sgn")
def sgn(self: Any) -> Any:
    return numpy.sign(self) if self.dtype.kind == "c" else sign(self)


def _empty_complex(one: Any, other: Any) -> Any:
    if one.dtype != other.dtype:
        raise TypeError(f"{one.dtype} and {other.dtype} are different dtypes")
    if one.dtype not in (dtypes.FLOAT16, dtypes.FLOAT32, dtypes.FLOAT64):
        raise TypeError(f"there are no complex numbers whose parts are {one.dtype}")
    shape = numpy.broadcast_shapes(one.shape, other.shape)
    return numpy.empty(shape, dtypes.complex_of(one.dtype))


@kernel("complex")
def complex_(real: Any, imag: Any) -> Any:
    out = _empty_complex(real, imag)
    out.real, out.imag = real, imag
    return out


@kernel("polar")
def polar(abs: Any, angle: Any) -> Any:
    out = _empty_complex(abs, angle)
    out.real, out.imag = abs * numpy.cos(angle), abs * numpy.sin(angle)
    return out
