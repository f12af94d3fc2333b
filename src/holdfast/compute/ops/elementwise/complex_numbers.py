"""Complex numbers: parts, angles, conjugates."""

from __future__ import annotations

from typing import Any

import numpy

from holdfast.compute import dtype as dtypes
from holdfast.compute import functional as F
from holdfast.compute.ops.rules import POINTWISE, Meta, Rule, pointwise
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
    of = bound["self"]
    return Meta(tuple(of.shape), dtypes.real_of(of.dtype))


op("real(Tensor(a) self) -> Tensor(a)", Rule(_infer_complex_part), {"self": "grad"})
op("imag(Tensor(a) self) -> Tensor(a)", Rule(_infer_complex_part, expects="complex numbers"),
   {"self": "grad * 1j"})  # fmt: skip


def _infer_complex(op: Op, bound: dict[str, Any]) -> Meta:
    one, other = (bound[p.name] for p in op.schema.parameters)
    shape = numpy.broadcast_shapes(one.shape, other.shape)
    return Meta(shape, dtypes.complex_of(one.dtype))


_PARTS = Rule(_infer_complex, expects="two tensors of one dtype, float32 or float64")
op("complex(Tensor real, Tensor imag) -> Tensor", _PARTS,
   {"real": "complex_part(grad, False)", "imag": "complex_part(grad, True)"})  # fmt: skip
op("polar(Tensor abs, Tensor angle) -> Tensor", _PARTS,
   {"abs": "complex_part(grad, False) * cos(angle) + complex_part(grad, True) * sin(angle)",
    "angle": "complex_part(grad * conj(result * 1j), False)"})  # fmt: skip
