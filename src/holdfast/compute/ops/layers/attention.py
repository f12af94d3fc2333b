"""Scaled dot-product attention: ATen's fused CPU op with its gradient, and torch's public function.

The fused op never stores the whole matrix of weights; second gradients use a decomposition that
does.
"""

from __future__ import annotations

import math
from typing import Any

from holdfast.compute import dtype as dtypes
from holdfast.compute import functional as F
from holdfast.compute.ops.rules import Meta, like, rule
from holdfast.compute.ops.table import Op, composite, op

_EXPECTS = (
    "query [B, H, L, E], key [B, H or a divisor of it, S, E], value [B, as key, S, D], "
    "a mask that broadcasts to [B, H, L, S]"
)


def _infer_attention(op: Op, bound: dict[str, Any]) -> tuple[Meta, ...]:
    query, value = bound["query"], bound["value"]
    whole = Meta((*query.shape[:-1], value.shape[-1]), query.dtype)
    return whole, Meta(tuple(query.shape[:-1]), dtypes.working(query.dtype))


def plan_attention(
    query: Any, key: Any, value: Any, dropout: float, scale: float | None
) -> tuple[float, int]:
    """The factor of the scores, and how many query heads share a key head. Raises ValueError."""
    if dropout > 0:
        raise ValueError("this op has no dropout")
    if not query.ndim == key.ndim == value.ndim == 4:
        raise ValueError("query, key and value have four dimensions")
    if key.shape[:3] != value.shape[:3] or query.shape[3] != key.shape[3]:
        raise ValueError("query, key and value do not fit each other")
    if query.shape[0] != key.shape[0] or query.shape[1] % max(key.shape[1], 1):
        raise ValueError("the batch or the heads of query and key do not fit each other")
    return _factor(query, scale), query.shape[1] // max(key.shape[1], 1)


def slopes_of(
    grad: Any, query: Any, key: Any, value: Any, causal: bool, mask: Any, scale: float | None
) -> tuple[Any, Any]:
    """The attention weights, and the gradient of the scores; made of ops, so differentiable."""
    share = query.shape[1] // key.shape[1]
    keys, values = _repeat_heads(key, share), _repeat_heads(value, share)
    weights = _weights(query, keys, mask, causal, _factor(query, scale))
    toward = F.matmul(grad, values.transpose(-2, -1))
    return weights, weights * (toward - F.sum(weights * toward, [-1], keepdim=True))


def _backward(
    grad_out: Any, query: Any, key: Any, value: Any, out: Any, logsumexp: Any,
    dropout_p: float, is_causal: bool, attn_mask: Any = None, scale: float | None = None,
) -> Any:  # fmt: skip
    share = query.shape[1] // key.shape[1]
    weights, slopes = slopes_of(grad_out, query, key, value, is_causal, attn_mask, scale)
    slopes = slopes * _factor(query, scale)
    return (
        F.matmul(slopes, _repeat_heads(key, share)),
        _sum_heads(F.matmul(slopes.transpose(-2, -1), query), share),
        _sum_heads(F.matmul(weights.transpose(-2, -1), grad_out), share),
    )


op("_scaled_dot_product_flash_attention_for_cpu(Tensor query, Tensor key, Tensor value, "
   "float dropout_p=0., bool is_causal=False, *, Tensor? attn_mask=None, float? scale=None) "
   "-> (Tensor output, Tensor logsumexp)", rule(_infer_attention, _EXPECTS),
   {"query, key, value": "_scaled_dot_product_flash_attention_for_cpu_backward(grad, query, key, "
    "value, result0, result1, dropout_p, is_causal, attn_mask=attn_mask, scale=scale)",
    "attn_mask": "attention_mask_gradient(grad, query, key, value, is_causal, attn_mask, scale)"
    })  # fmt: skip
op("_scaled_dot_product_flash_attention_for_cpu_backward(Tensor grad_out, Tensor query, "
   "Tensor key, Tensor value, Tensor out, Tensor logsumexp, float dropout_p, bool is_causal, *, "
   "Tensor? attn_mask=None, float? scale=None) -> (Tensor grad_query, Tensor grad_key, "
   "Tensor grad_value)", like("query", "key", "value", expects=_EXPECTS), None,
   _backward)  # fmt: skip


# ---- composite


@composite(
    "scaled_dot_product_attention(Tensor query, Tensor key, Tensor value, "
    "Tensor? attn_mask=None, float dropout_p=0., bool is_causal=False, *, float? scale=None, "
    "bool enable_gqa=False) -> Tensor"
)
def _attention(
    query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0,
    is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False,
) -> Any:  # fmt: skip
    if is_causal and attn_mask is not None:
        raise ValueError("attn_mask and is_causal exclude each other")
    mask = _additive(attn_mask, query)
    if _fusable(query, key, value, mask, dropout_p, enable_gqa):
        fused: Any = F.packet("_scaled_dot_product_flash_attention_for_cpu")
        four = [_four(t) for t in (query, key, value)]
        out = fused(*four, 0.0, is_causal, attn_mask=mask, scale=scale)[0]
        shape = (*query.shape[:-1], value.shape[-1])
        return out if out.shape == shape else F.reshape(out, shape)
    share = query.shape[-3] // key.shape[-3] if enable_gqa else 1
    weights = _weights(query, _repeat_heads(key, share), mask, is_causal, _factor(query, scale))
    if dropout_p > 0:
        weights = F.native_dropout(weights, dropout_p, True)[0]
    return F.matmul(weights, _repeat_heads(value, share))


def _fusable(query: Any, key: Any, value: Any, mask: Any, dropout: float, grouped: bool) -> bool:
    if dropout > 0 or not dtypes.is_floating(query.dtype):
        return False
    if mask is not None and mask.ndim != 2 and (mask.ndim != query.ndim or query.ndim != 4):
        return False
    leading = [tuple(t.shape[:-2]) for t in (query, key, value)]
    if not 2 <= query.ndim <= 4 or leading[1] != leading[2]:
        return False
    if grouped and query.ndim == 4 and key.shape[1]:
        same = leading[0][0] == leading[1][0]
        return same and query.shape[1] % key.shape[1] == 0
    return leading[0] == leading[1]


def _four(tensor: Any) -> Any:
    """Add leading dimensions of size 1 to get 4 dimensions."""
    return tensor if tensor.ndim == 4 else tensor.reshape((1, 1, *tensor.shape)[-4:])


def _additive(mask: Any, query: Any) -> Any:
    """A boolean mask as one that is added: -inf where False."""
    if mask is None or mask.dtype != dtypes.BOOL:
        return mask
    zero = F.zeros_like(mask, dtype=query.dtype)
    return F.masked_fill(zero, F.logical_not(mask), -math.inf)


def _weights(query: Any, key: Any, mask: Any, causal: bool, factor: float) -> Any:
    scores = F.matmul(query * factor, key.transpose(-2, -1))
    if causal:
        seen = F.tril(F.ones_like(scores, dtype=dtypes.BOOL))
        scores = F.masked_fill(scores, F.logical_not(seen), -math.inf)
    if mask is not None:
        scores = scores + mask
    return F._safe_softmax(scores, -1)


def _factor(query: Any, scale: float | None) -> float:
    return 1 / math.sqrt(query.shape[-1] or 1) if scale is None else float(scale)


def _repeat_heads(tensor: Any, times: int) -> Any:
    """Repeat each head `times` times, for queries that share it."""
    return tensor if times == 1 else F.repeat_interleave(tensor, times, -3)


def _sum_heads(gradient: Any, times: int) -> Any:
    """The transpose of `_repeat_heads`: sum the heads that share a key."""
    if times == 1:
        return gradient
    *front, heads, length, width = gradient.shape
    apart = gradient.reshape((*front, heads // times, times, length, width))
    return apart.sum([-3])
