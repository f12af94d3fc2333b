"""Gradient of attention for a learned mask."""

from __future__ import annotations

from typing import Any

from holdfast.compute.ops.layers import attention as _ops


def attention_mask_gradient(
    grad: Any, query: Any, key: Any, value: Any, causal: bool, mask: Any, scale: float | None
) -> Any:
    """The mask's gradient is that of the scores, to which it is added."""
    return _ops.slopes_of(grad, query, key, value, causal, mask, scale)[1]
