"""Gradient formulas that take more than one line, as functions by op family.

Gradient lines (in `ops`) call every public function of these modules by its name. A name may be
defined once only.

    convolution     the gradient of convolution's gradient; max-pooling indices
    index           indexing, scatter, sorting
    linalg          decompositions, solvers, determinants
    loss            losses
    matrix          matrix products and distances; attention with a learned mask
    normalize       the gradients of normalization gradients
    pointwise       elementwise ops
    reduce          sums, products, norms, cumulative ops
    shared          helpers for all families, and names from other modules
    views           views, cat, as_strided
"""

from __future__ import annotations

from holdfast.base.errors import AlreadyRegistered
from holdfast.compute.autograd.formulas import (
    convolution,
    index,
    linalg,
    loss,
    matrix,
    normalize,
    pointwise,
    reduce,
    shared,
    views,
)
from holdfast.compute.autograd.gradient_lines import FORMULAS

FORMULAS.update(shared.BORROWED)
for _module in (
    *(convolution, index, linalg, loss, matrix, normalize, pointwise, reduce, shared, views),
):
    for _name, _value in vars(_module).items():
        if _name.startswith("_") or getattr(_value, "__module__", None) != _module.__name__:
            continue
        if _name in FORMULAS:
            raise AlreadyRegistered(f"two gradient formulas are named {_name!r}")
        FORMULAS[_name] = _value
