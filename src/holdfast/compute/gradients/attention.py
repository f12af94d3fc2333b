"""Gradients of attention that take more than a line.

Promise: each takes tensors and is made of ops, so that it can be differentiated again.
"""

from __future__ import annotations

from typing import Any

from holdfast.compute.ops import attention as _ops


def attention_mask_gradient(
    grad: Any, query: Any, key: Any, value: Any, causal: bool, mask: Any, scale: float | None
) -> Any:
    """The gradient for a mask that is learned: that of the scores, to which it is added."""
    return _ops.slopes_of(grad, query, key, value, causal, mask, scale)[1]
