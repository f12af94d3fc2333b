"""Python's operators for tensors.

Small float32 operands of one shape skip dispatch and go straight to NumPy.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy

from holdfast.compute import dtype as dtypes
from holdfast.compute.functional import packet

_F32 = dtypes.FLOAT32
_ndarray = numpy.ndarray
_new: Any = object.__new__
_SMALL = 4096  # elements: an array of 16 KB or more comes from the pool, through the engine
_Tensor: Any = None  # CustomTensor, set by `bind`


def bind(tensor: type) -> None:
    """Set the class of results."""
    global _Tensor
    _Tensor = tensor


def _binary(name: str, ufunc: Any) -> Callable[[Any, Any], Any]:
    op = packet(name)

    def method(self: Any, other: Any) -> Any:
        if type(other) is _Tensor and not (self.requires_grad or other.requires_grad):
            a, b = self._array, other._array
            if (
                type(a) is _ndarray is type(b)
                and a.dtype is _F32 is b.dtype
                and a.shape == b.shape
                and 0 < a.size < _SMALL
                and a.ndim
                and (self.device is other.device or self.device.matches(other.device))
            ):
                made = _new(_Tensor)
                made._array = ufunc(a, b)
                made.device = self.device
                return made
        return _operate(op, self, other)

    return method


_NUMBERS = (int, float, complex)


def _operate(op: Callable[..., Any], self: Any, other: Any) -> Any:
    if isinstance(other, numpy.generic):
        other = other.item()  # a scalar, which does not decide the dtype
    if isinstance(other, (_Tensor, *_NUMBERS)):
        return op(self, other)
    if isinstance(other, _ndarray | list):
        return op(self, _Tensor(other, self.device, _dtype_of(other, self.dtype)))
    return NotImplemented


def _dtype_of(other: Any, kind: Any) -> Any:
    """An array's own dtype; for a list the tensor's, unless that cannot hold its elements."""
    if isinstance(other, _ndarray):
        return other.dtype
    listed = numpy.asarray(other).dtype
    if listed.kind not in "biufc":
        return kind  # not numeric: making a tensor of it raises
    higher = dtypes.category(listed) > dtypes.category(kind)
    return dtypes.of_scalar(listed.type(0).item()) if higher else kind


def _reflect(name: str) -> Callable[[Any, Any], Any]:
    op = packet(name)

    def method(self: Any, other: Any) -> Any:
        if isinstance(other, _ndarray | list):
            return op(_Tensor(other, self.device, _dtype_of(other, self.dtype)), self)
        if isinstance(other, numpy.generic):
            other = other.item()
        if isinstance(other, _NUMBERS):
            return op(other, self)
        return NotImplemented

    return method


def _in_place(name: str) -> Callable[[Any, Any], Any]:
    return lambda self, other: getattr(self, f"{name}_")(other)


def _plain(name: str) -> Callable[[Any, Any], Any]:
    op = packet(name)
    return lambda self, other: _operate(op, self, other)


def _matrices(reflected: bool) -> Callable[[Any, Any], Any]:
    """The @ operator, which takes no scalars; float32 matrices go straight to the engine."""
    product = _reflect("matmul") if reflected else _plain("matmul")

    def method(self: Any, other: Any) -> Any:
        if type(other) is _Tensor and not (self.requires_grad or other.requires_grad):
            a, b = self._array, other._array
            if (
                type(a) is _ndarray is type(b)
                and a.dtype is _F32 is b.dtype
                and a.ndim == 2 == b.ndim
                and a.shape[1] == b.shape[0]
                and (self.device is other.device or self.device.matches(other.device))
            ):
                made = _new(_Tensor)
                made._array = self.device.engine.call(numpy.matmul, (a, b), {})
                made.device = self.device
                return made
        number = isinstance(other, (*_NUMBERS, numpy.generic))
        return NotImplemented if number else product(self, other)

    return method


def _unary(name: str) -> Callable[[Any], Any]:
    op = packet(name)
    return lambda self: op(self)


class Operators:
    """The operators that `CustomTensor` inherits."""

    __add__ = _binary("add", numpy.add)
    __sub__ = _binary("sub", numpy.subtract)
    __mul__ = _binary("mul", numpy.multiply)
    __truediv__ = _plain("div")
    __radd__ = _plain("add")
    __rmul__ = _plain("mul")
    __rsub__ = _reflect("sub")
    __rtruediv__ = _reflect("div")
    __floordiv__ = _plain("floor_divide")
    __rfloordiv__ = _reflect("floor_divide")
    __mod__ = _plain("remainder")
    __rmod__ = _reflect("remainder")
    __pow__ = _plain("pow")
    __rpow__ = _reflect("pow")
    __matmul__ = _matrices(reflected=False)
    __rmatmul__ = _matrices(reflected=True)
    __divmod__ = lambda self, other: (self // other, self % other)  # noqa: E731
    __rdivmod__ = lambda self, other: (other // self, other % self)  # noqa: E731
    __lshift__ = _plain("bitwise_left_shift")
    __rlshift__ = _reflect("bitwise_left_shift")
    __rshift__ = _plain("bitwise_right_shift")
    __rrshift__ = _reflect("bitwise_right_shift")
    __and__ = _plain("bitwise_and")
    __rand__ = _plain("bitwise_and")
    __or__ = _plain("bitwise_or")
    __ror__ = _plain("bitwise_or")
    __xor__ = _plain("bitwise_xor")
    __rxor__ = _plain("bitwise_xor")
    __lt__ = _plain("lt")
    __le__ = _plain("le")
    __gt__ = _plain("gt")
    __ge__ = _plain("ge")
    __eq__ = _plain("eq")
    __ne__ = _plain("ne")
    __neg__ = _unary("neg")
    __abs__ = _unary("abs")
    __invert__ = _unary("bitwise_not")
    __pos__ = lambda self: self  # noqa: E731
    __iadd__ = _in_place("add")
    __isub__ = _in_place("sub")
    __imul__ = _in_place("mul")
    __itruediv__ = _in_place("div")
    __ifloordiv__ = _in_place("floor_divide")
    __imod__ = _in_place("remainder")
    __ipow__ = _in_place("pow")
    __ilshift__ = _in_place("bitwise_left_shift")
    __irshift__ = _in_place("bitwise_right_shift")
    __iand__ = _in_place("bitwise_and")
    __ior__ = _in_place("bitwise_or")
    __ixor__ = _in_place("bitwise_xor")
    __hash__ = object.__hash__
