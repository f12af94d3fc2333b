"""Words that gradient lines of all families use.

Promise: each takes tensors and plain numbers alike.
"""

from __future__ import annotations

import math
from typing import Any

import numpy

from holdfast.base.errors import Unsupported
from holdfast.compute import dtype as formats
from holdfast.compute import functional
from holdfast.compute.ops.rules import normalized_dim, normalized_dims

# Names from elsewhere, as lines call them.
NUMBERS = {
    "pi": math.pi,
    "inf": math.inf,
    "nan": math.nan,
    "prod_of": math.prod,
    "length": len,
    "dims_of": normalized_dims,
    "dim_of": normalized_dim,
    "broadcast_shape": numpy.broadcast_shapes,
}


def is_complex(value: Any) -> bool:
    """Whether a tensor or a number is complex."""
    if hasattr(value, "dtype"):
        return formats.is_complex(value.dtype)
    return isinstance(value, complex)


def conj(value: Any) -> Any:
    """The complex conjugate; real numbers are their own."""
    if not is_complex(value):
        return value
    return value.conjugate() if isinstance(value, complex) else functional._conj(value)


def unreduced(grad: Any, shape: tuple[int, ...], dim: Any, keepdim: bool) -> Any:
    """A reduction's gradient spread over what was reduced."""
    if not keepdim and len(shape):
        for d in sorted(normalized_dims(dim, len(shape))):
            grad = grad.unsqueeze(d)
    return grad.expand(shape)


def no_second_gradient(of: str) -> Any:
    """Raises Unsupported: this gradient cannot be differentiated once more."""
    raise Unsupported(
        f"the gradient of {of} has no gradient of its own",
        expected="backward() or grad() without create_graph=True",
    )
