"""Attention, where torch asks a device for it: in blocks, by the table's own op.

The fused op never makes the whole matrix of attention weights. Calls that it cannot serve, and
calls under `torch.nn.attention.sdpa_kernel(SDPBackend.MATH)`, are matrix products and a softmax.

torch asks `_fused_sdp_choice` of devices that are written in C++ alone, so the function that users
call has a kernel of its own here, above autograd: the ops it calls have gradients.
"""

from __future__ import annotations

from typing import Any

import torch

from holdfast.base.errors import Unsupported
from holdfast.compute.torch_device.overrides.tensor_overloads import compute_op, special

Tensor = torch.Tensor
_MATH, _FUSED = 0, 4  # SDPBackend.MATH and OVERRIDEABLE
_FORWARD = "_scaled_dot_product_flash_attention_for_cpu"
_C: Any = torch._C  # untyped: the stubs lack these names
_aten: Any = torch.ops.aten


def register(aten: Any) -> None:
    """Have the device compute `scaled_dot_product_attention`."""
    for key in ("PrivateUse1", "AutogradPrivateUse1"):
        aten.impl("scaled_dot_product_attention", scaled_dot_product_attention, key)


def scaled_dot_product_attention(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None,
    dropout_p: float = 0.0, is_causal: bool = False, *, scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:  # fmt: skip
    """The fused op, or torch's products and softmax."""
    named = {"scale": scale, "enable_gqa": enable_gqa}
    if choice(query, key, value, attn_mask, dropout_p, is_causal, **named) == _FUSED:
        fused = _aten._scaled_dot_product_flash_attention_for_cpu.default
        return fused(query, key, value, 0.0, is_causal, attn_mask=attn_mask, scale=scale)[0]
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        bias = torch.zeros_like(attn_mask, dtype=query.dtype)
        attn_mask = bias.masked_fill_(attn_mask.logical_not(), float("-inf"))
    plain = _aten._scaled_dot_product_attention_math.default
    return plain(query, key, value, attn_mask, dropout_p, is_causal, **named)[0]


@special("_fused_sdp_choice")
def choice(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None,
    dropout_p: float = 0.0, is_causal: bool = False, *, scale: float | None = None,
    enable_gqa: bool = False,
) -> int:  # fmt: skip
    """Which SDPBackend serves a call."""
    serves = (
        dropout_p == 0
        and not (is_causal and attn_mask is not None)  # the other path raises the error
        # whether `sdpa_kernel` allows a fused backend: one that a CPU may have, or ours
        and (
            _C._get_overrideable_sdp_enabled()
            or _C._get_flash_sdp_enabled()
            or _C._get_mem_efficient_sdp_enabled()
        )
        and _shapes_fit(query, key, value, enable_gqa)
        and (attn_mask is None or _serves_mask(attn_mask, query, key))
    )
    return _FUSED if serves else _MATH


def _shapes_fit(query: Tensor, key: Tensor, value: Tensor, grouped: bool) -> bool:
    if not query.dim() == key.dim() == value.dim() == 4 or not query.is_floating_point():
        return False
    if not query.dtype == key.dtype == value.dtype or key.shape[:3] != value.shape[:3]:
        return False
    (many, heads, _, width), (others, near, _, same) = query.shape, key.shape
    if many != others or width != same or not all((*query.shape, *key.shape, value.shape[3])):
        return False
    return heads == near or (grouped and heads % near == 0)


def _serves_mask(mask: Tensor, query: Tensor, key: Tensor) -> bool:
    """Whether the fused op takes a mask: not a learned one, whose gradient needs the weights."""
    if mask.requires_grad or mask.dim() not in (2, 4):
        return False
    whole = (*query.shape[:3], key.shape[2])[4 - mask.dim() :]
    return all(size in (1, all_of) for size, all_of in zip(mask.shape, whole, strict=True))


@special("_scaled_dot_product_fused_attention_overrideable")
def attention(
    query: Tensor, key: Tensor, value: Tensor, attn_bias: Tensor | None = None,
    dropout_p: float = 0.0, is_causal: bool = False, return_debug_mask: bool = False, *,
    scale: float | None = None,
) -> Any:  # fmt: skip
    """The result and what its gradient needs; the other values are for GPUs alone."""
    out, sums = compute_op(
        _FORWARD, query, key, value, dropout_p, is_causal, attn_mask=attn_bias, scale=scale
    )
    nothing = torch.empty(0, dtype=torch.int64, device=query.device)
    lengths = query.shape[2], key.shape[2]
    return out, sums, nothing, nothing, *lengths, nothing, nothing, nothing


@special("_scaled_dot_product_fused_attention_overrideable_backward")
def attention_backward(
    grad_out: Tensor, query: Tensor, key: Tensor, value: Tensor, attn_bias: Tensor | None,
    grad_input_mask: list[bool], out: Tensor, logsumexp: Tensor, cum_seq_q: Tensor,
    cum_seq_k: Tensor, max_q: int, max_k: int, dropout_p: float, is_causal: bool,
    philox_seed: Tensor, philox_offset: Tensor, *, scale: float | None = None,
) -> Any:  # fmt: skip
    """Gradients of query, key and value."""
    if grad_input_mask[3]:
        raise Unsupported(
            "the fused attention has no gradient for its mask",
            expected="a mask without requires_grad",
            hint="torch.nn.functional.scaled_dot_product_attention, which chooses another way",
        )
    found = compute_op(
        f"{_FORWARD}_backward", grad_out, query, key, value, out, logsumexp, dropout_p, is_causal,
        attn_mask=attn_bias, scale=scale,
    )  # fmt: skip
    return *found, None


@special(f"{_FORWARD}_backward")
def flash_backward(grad_out: Tensor | None, *args: Any, **named: Any) -> Any:
    """Gradients of query, key and value; None where the result has none."""
    if grad_out is None:
        return None, None, None
    return compute_op(f"{_FORWARD}_backward", grad_out, *args, **named)
