"""Formulas that all families use."""

from __future__ import annotations

import math
from typing import Any

import numpy

from holdfast.base.errors import Unsupported
from holdfast.compute import functional as F
from holdfast.compute.ops.elementwise.complex_numbers import conjugate

# Names from elsewhere, as lines call them.
BORROWED = {
    "conj": conjugate,
    "prod_of": math.prod,
    "length": len,
    "broadcast_shape": numpy.broadcast_shapes,
}


def shape_only(like: Any, shape: tuple[int, ...]) -> Any:
    """A tensor of that shape over a single element, for backward ops that read only sizes."""
    return F.expand(F.new_empty(like, []), shape)


def no_second_gradient(of: str) -> Any:
    """Raises Unsupported: this gradient cannot be differentiated again."""
    raise Unsupported(
        f"the gradient of {of} has no gradient of its own",
        expected="backward() or grad() without create_graph=True",
    )
