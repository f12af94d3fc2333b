"""Comparisons, logical and bitwise ops, where, clamp."""

from __future__ import annotations

from typing import Any

import numpy

from holdfast.compute.engines.numpy.elementwise.blocked import select
from holdfast.compute.engines.numpy.kernels import kernel, register


def _refuse_complex(ufunc: Any) -> Any:
    """`ufunc`, raising TypeError for complex numbers as torch does; NumPy would order them."""

    def compare(self: Any, other: Any) -> Any:
        if self.dtype.kind == "c" or isinstance(other, complex):
            raise TypeError("complex numbers have no order")
        return ufunc(self, other)

    return compare


for _name, _ufunc in {
    "eq": numpy.equal,
    "ne": numpy.not_equal,
    "lt": _refuse_complex(numpy.less),
    "le": _refuse_complex(numpy.less_equal),
    "gt": _refuse_complex(numpy.greater),
    "ge": _refuse_complex(numpy.greater_equal),
}.items():
    register(f"{_name}.Tensor", _ufunc)
    register(f"{_name}.Scalar", _ufunc)
for _name, _ufunc in {
    "logical_and": numpy.logical_and,
    "logical_or": numpy.logical_or,
    "logical_xor": numpy.logical_xor,
    "logical_not": numpy.logical_not,
    "isnan": numpy.isnan,
    "isinf": numpy.isinf,
    "isfinite": numpy.isfinite,
    "isreal": numpy.isreal,
    "isposinf": numpy.isposinf,
    "isneginf": numpy.isneginf,
    "bitwise_not": numpy.invert,
    "maximum": numpy.maximum,
    "minimum": numpy.minimum,
    "fmax": numpy.fmax,
    "fmin": numpy.fmin,
}.items():
    register(_name, _ufunc)
for _name, _ufunc in {
    "bitwise_and": numpy.bitwise_and,
    "bitwise_or": numpy.bitwise_or,
    "bitwise_xor": numpy.bitwise_xor,
}.items():
    for _overload in ("Tensor", "Scalar", "Scalar_Tensor"):
        register(f"{_name}.{_overload}", _ufunc)
for _name, _ufunc in {
    "bitwise_left_shift": numpy.left_shift,
    "bitwise_right_shift": numpy.right_shift,
}.items():
    for _overload in ("Tensor", "Tensor_Scalar", "Scalar_Tensor"):
        register(f"{_name}.{_overload}", _ufunc)


@kernel("signbit")
def signbit(self: Any) -> Any:
    return numpy.less(self, 0) if self.dtype.kind in "biu" else numpy.signbit(self)


@kernel("where.self")
def where(condition: Any, self: Any, other: Any) -> Any:
    return select(condition.astype(bool, copy=False), self, other)


@kernel("clamp", "clamp.Tensor")
def clamp(self: Any, min: Any = None, max: Any = None) -> Any:
    if min is None and max is None:
        raise ValueError("neither min nor max is given")
    out = self if min is None else numpy.maximum(self, min)
    # Where min is above max, the result is max.
    return out if max is None else numpy.minimum(out, max)


register("clamp_min", numpy.maximum)
register("clamp_min.Tensor", numpy.maximum)
register("clamp_max", numpy.minimum)
register("clamp_max.Tensor", numpy.minimum)


@kernel("heaviside")
def heaviside(self: Any, values: Any) -> Any:
    return numpy.where(self == 0, values, (self > 0).astype(self.dtype))
