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
for _name in (
    *("logical_and", "logical_or", "logical_xor", "logical_not", "isnan", "isinf", "isfinite"),
    *("isreal", "isposinf", "isneginf", "bitwise_not", "maximum", "minimum", "fmax", "fmin"),
):
    register(_name, getattr(numpy, _name))
for _name, _scalar in (
    *((f"bitwise_{word}", "Scalar") for word in ("and", "or", "xor")),
    *((f"bitwise_{side}_shift", "Tensor_Scalar") for side in ("left", "right")),
):
    for _overload in ("Tensor", _scalar, "Scalar_Tensor"):
        register(f"{_name}.{_overload}", getattr(numpy, _name))


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


for _overload in ("", ".Tensor"):
    register(f"clamp_min{_overload}", numpy.maximum)
    register(f"clamp_max{_overload}", numpy.minimum)


@kernel("heaviside")
def heaviside(self: Any, values: Any) -> Any:
    return numpy.where(self == 0, values, (self > 0).astype(self.dtype))
