"""Complex numbers: parts, angles, conjugates."""

from __future__ import annotations

from typing import Any

import numpy

from holdfast.compute import dtype as dtypes
from holdfast.compute import functional as F
from holdfast.compute.ops.rules import POINTWISE, Meta, pointwise, rule
from holdfast.compute.ops.table import Op, composite, op


def is_complex(value: Any) -> bool:
    """Whether a tensor or a scalar is complex."""
    if hasattr(value, "dtype"):
        return dtypes.is_complex(value.dtype)
    return isinstance(value, complex)


def conjugate(value: Any) -> Any:
    """The complex conjugate of a tensor or a scalar; a real argument is returned as is."""
    if not is_complex(value):
        return value
    return value.conjugate() if isinstance(value, complex) else F._conj(value)


op("_conj(Tensor self) -> Tensor", POINTWISE, {"self": "conj(grad)"})
op("_conj_physical(Tensor self) -> Tensor", POINTWISE, {"self": "conj(grad)"})
composite("conj(Tensor(a) self) -> Tensor(a)")(conjugate)
op("angle(Tensor self) -> Tensor", pointwise("float_real"), {"self": "angle_grad(grad, self)"})
op("sgn(Tensor self) -> Tensor", POINTWISE, {"self": "sgn_grad(grad, self, result)"})


def _infer_complex_part(op: Op, bound: dict[str, Any]) -> Meta:
    return Meta(tuple(bound["self"].shape), dtypes.real_of(bound["self"].dtype))


op("real(Tensor(a) self) -> Tensor(a)", rule(_infer_complex_part), {"self": "grad"})


def _infer_complex(op: Op, bound: dict[str, Any]) -> Meta:
    one, other = (bound[p.name] for p in op.schema.parameters)
    shape = numpy.broadcast_shapes(one.shape, other.shape)
    return Meta(shape, dtypes.complex_of(one.dtype))


def _check_imag(self: Any) -> None:
    if self.dtype.kind != "c":
        raise TypeError("real numbers have no imaginary part")


def _check_parts(one: Any, other: Any) -> None:
    if one.dtype != other.dtype:
        raise TypeError(f"{one.dtype} and {other.dtype} are different dtypes")
    if one.dtype not in (dtypes.FLOAT16, dtypes.FLOAT32, dtypes.FLOAT64):
        raise TypeError(f"there are no complex numbers whose parts are {one.dtype}")


op("imag(Tensor(a) self) -> Tensor(a)",
   rule(_infer_complex_part, "complex numbers", _check_imag), {"self": "grad * 1j"})  # fmt: skip
_PARTS = rule(_infer_complex, "two tensors of one dtype, float32 or float64", _check_parts)
op("complex(Tensor real, Tensor imag) -> Tensor", _PARTS,
   {"real": "complex_part(grad, False)", "imag": "complex_part(grad, True)"})  # fmt: skip
op("polar(Tensor abs, Tensor angle) -> Tensor", _PARTS,
   {"abs": "complex_part(grad, False) * cos(angle) + complex_part(grad, True) * sin(angle)",
    "angle": "complex_part(grad * conj(result * 1j), False)"})  # fmt: skip
