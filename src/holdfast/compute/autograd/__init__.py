"""Automatic differentiation: calls are recorded, `backward` runs their gradient formulas.

Modules:

    formulas            gradient formulas of more than one line, by op family
    gradient_formulas   the gradient lines of the op table, compiled
    tape                recorded calls, `backward`, `grad`, `no_grad`
"""

from holdfast.compute.autograd import formulas  # noqa: F401  (registers the formulas)
from holdfast.compute.autograd.tape import (
    backward,
    enable_grad,
    grad,
    is_grad_enabled,
    no_grad,
    set_grad_enabled,
)

__all__ = ["backward", "enable_grad", "grad", "is_grad_enabled", "no_grad", "set_grad_enabled"]
