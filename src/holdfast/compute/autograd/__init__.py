"""Automatic differentiation: calls are recorded, `backward` runs their gradient formulas.

Modules:

    formulas/       gradient formulas longer than a line, by op family
    gradient_lines  compiles the gradient lines that stand beside each op in `ops`
    tape            recorded calls, `backward`, `grad`, `no_grad`
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
