"""Gradients of elementwise ops."""

from __future__ import annotations

import cmath
import math
from typing import Any

from holdfast.compute import functional as F
from holdfast.compute.ops.elementwise.complex_numbers import conjugate, is_complex


def scale_grad(grad: Any, by: Any) -> Any:
    """Multiply a gradient by the conjugate of the scalar `by`."""
    return grad if by == 1 else grad * conjugate(by)


def unclamped_mask(self: Any, low: Any, high: Any) -> Any:
    """A mask of the elements that a clamp did not change."""
    if low is None or high is None:
        return self >= low if high is None else self <= high
    return (self >= low) & (self <= high)


def power_grad(grad: Any, self: Any, exponent: Any) -> Any:
    """Of `self ** exponent` for `self`: zero where the exponent is zero, for any `self`."""
    if not hasattr(exponent, "dtype") and exponent == 0:
        return F.zeros_like(grad)
    slope = grad * conjugate(exponent * F.pow(self, exponent - 1))
    return F.where(exponent == 0, 0, slope) if hasattr(exponent, "dtype") else slope


def exponent_grad(grad: Any, self: Any, exponent: Any, result: Any) -> Any:
    """Of `self ** exponent` for `exponent`: zero where `self` is zero and the power is finite."""
    positive = (F.real(exponent) if is_complex(exponent) else exponent) >= 0
    if hasattr(self, "dtype"):
        slope = grad * conjugate(result * F.log(self))
        return F.where((self == 0) & positive, 0, slope)
    if self == 0:
        return F.where(positive, 0, grad * conjugate(result * float("-inf")))
    factor = cmath.log(self) if isinstance(self, complex) or self < 0 else math.log(self)
    if isinstance(factor, complex) and not (is_complex(result) or isinstance(self, complex)):
        factor = math.nan  # the real logarithm of a negative number
    return grad * conjugate(result * factor)


def sinc_grad(grad: Any, self: Any) -> Any:
    """Of sin(pi x) / (pi x)."""
    angle = self * math.pi
    slope = (angle * F.cos(angle) - F.sin(angle)) / (angle * self)
    return F.where(self == 0, 0, grad * conjugate(slope))


def angle_grad(grad: Any, self: Any) -> Any:
    """Of the angle of a complex number; zero for real numbers."""
    if not is_complex(self):
        return F.zeros_like(grad)
    length = F.abs(self)
    return F.where(self == 0, 0, (self * 1j) / (length * length) * grad)


def sgn_grad(grad: Any, self: Any, result: Any) -> Any:
    """Of z / |z|: the part orthogonal to z, divided by its length."""
    if not is_complex(self):
        return F.zeros_like(grad)
    along = F.real(grad * conjugate(result))
    return F.where(self == 0, 0, (grad - result * along) / F.abs(self))


def complex_part(grad: Any, turned: bool) -> Any:
    """The imaginary part of a gradient if `turned`, else the real part; it may be real."""
    if is_complex(grad):
        return F.imag(grad) if turned else F.real(grad)
    return F.zeros_like(grad) if turned else grad


def log_of(number: Any) -> float:
    """The logarithm of a scalar; -inf for 0 and NaN for negative numbers."""
    if number > 0:
        return math.log(number)
    return -math.inf if number == 0 else math.nan


def logit_double_backward(grad: Any, grad_output: Any, self: Any, eps: float | None) -> Any:
    """Of logit's backward for its input: zero where the first gradient was clamped."""
    room = self * (1 - self)
    slope = grad * grad_output * (2 * self - 1) / (room * room)
    low, high = (0.0, 1.0) if eps is None else (eps, 1 - eps)
    return F.where((self >= low) & (self <= high), slope, 0)
