"""Complex numbers: their parts, conjugates, angles, and making them."""

from __future__ import annotations

from typing import Any

import numpy

from holdfast.compute import dtype as dtypes
from holdfast.compute.engines.numpy.elementwise.pointwise import sign
from holdfast.compute.engines.numpy.kernels import kernel, register

register("_conj", numpy.conjugate)
register("_conj_physical", numpy.conjugate)
register("real", lambda self: self.real if self.dtype.kind == "c" else self.view())
register("imag", lambda self: self.imag)
register("sgn", lambda self: numpy.sign(self) if self.dtype.kind == "c" else sign(self))


@kernel("angle")
def angle(self: Any) -> Any:
    if self.dtype.kind == "c":
        return numpy.angle(self)
    angles = numpy.where(self < 0, self.dtype.type(numpy.pi), self.dtype.type(0))
    return numpy.where(numpy.isnan(self), self, angles)


def _empty_complex(one: Any, other: Any) -> Any:
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
