"""Layers that torch fuses in evaluation, and gradients of a few others.

None of them falls back to the host.
"""

from __future__ import annotations

import functools
import math

import torch
from torch.nn import functional as F

from holdfast.compute.torch_device.overrides.tensor_overloads import compute_op, special
from holdfast.compute.torch_device.storage.tensor_bridge import as_array

Tensor = torch.Tensor


@special("_weight_norm_interface_backward")
def weight_norm_backward(
    grad_w: Tensor, saved_v: Tensor, saved_g: Tensor, saved_norms: Tensor, dim: int
) -> tuple[Tensor, Tensor]:
    others = [d for d in range(saved_v.dim()) if d != dim]
    norms = saved_norms.to(saved_g.dtype)
    along = (grad_w * saved_v).sum(others, keepdim=True)
    grad_v = (saved_g / norms) * (grad_w - saved_v * (along / (norms * norms)))
    return grad_v, along / norms


@special("_masked_softmax_backward")
def masked_softmax_backward(
    grad_output: Tensor, output: Tensor, mask: Tensor, dim: int | None = None
) -> Tensor:
    along = output.dim() - 1 if dim is None else dim
    found = compute_op("_softmax_backward_data", grad_output, output, along, as_array(output).dtype)
    return found.masked_fill_(mask.reshape(output.shape), 0)


@special("_transform_bias_rescale_qkv")
def split_heads(qkv: Tensor, qkv_bias: Tensor, num_heads: int) -> tuple[Tensor, ...]:
    """Queries (over the root of the head size), keys, values: (batch, head, position, …)."""
    batch, length, width = qkv.shape
    size = width // 3 // num_heads
    parts = (qkv + qkv_bias).view(batch, length, 3, num_heads, size).permute(2, 0, 3, 1, 4)
    query, key, value = (part.contiguous() for part in parts.unbind(0))
    return query.div_(math.sqrt(size)), key, value


@special("_native_multi_head_attention")
def multi_head_attention(
    query: Tensor, key: Tensor, value: Tensor, embed_dim: int, num_head: int, qkv_weight: Tensor,
    qkv_bias: Tensor, proj_weight: Tensor, proj_bias: Tensor, mask: Tensor | None = None,
    need_weights: bool = True, average_attn_weights: bool = True, mask_type: int | None = None,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    weights = qkv_weight.chunk(3)
    qkv = torch.cat([F.linear(x, w) for x, w in zip((query, key, value), weights, strict=True)], -1)
    q, k, v = split_heads(qkv, qkv_bias, num_head)
    scores = q @ k.transpose(-2, -1)
    if mask is None:
        near = scores.softmax(-1)
    else:
        # Masks are additive: every nonzero element masks its score.
        near = compute_op("_masked_softmax", scores, mask.bool(), scores.dim() - 1, mask_type)
    found = (near @ v).transpose(1, 2).reshape(query.shape[0], query.shape[1], embed_dim)
    out = F.linear(found, proj_weight, proj_bias)
    if not need_weights:
        return out, None
    return out, near.mean(1) if average_attn_weights else near


@special("_nested_tensor_from_mask_left_aligned")
def can_be_nested(t: Tensor, mask: Tensor) -> bool:
    """False: the device has no nested tensors, so encoders compute padding too."""
    return False


@special("_transformer_encoder_layer_fwd")
def encoder_layer(
    src: Tensor, embed_dim: int, num_heads: int, qkv_weight: Tensor, qkv_bias: Tensor,
    proj_weight: Tensor, proj_bias: Tensor, use_gelu: bool, norm_first: bool, eps: float,
    norm_weight_1: Tensor, norm_bias_1: Tensor, norm_weight_2: Tensor, norm_bias_2: Tensor,
    ffn_weight_1: Tensor, ffn_bias_1: Tensor, ffn_weight_2: Tensor, ffn_bias_2: Tensor,
    mask: Tensor | None = None, mask_type: int | None = None,
) -> Tensor:  # fmt: skip
    first, second = (
        functools.partial(F.layer_norm, normalized_shape=(embed_dim,), weight=w, bias=b, eps=eps)
        for w, b in ((norm_weight_1, norm_bias_1), (norm_weight_2, norm_bias_2))
    )
    x = first(src) if norm_first else src
    projections = (qkv_weight, qkv_bias, proj_weight, proj_bias)
    found, _ = multi_head_attention(
        x, x, x, embed_dim, num_heads, *projections, mask, False, True, mask_type
    )
    x = src + found
    x = x if norm_first else first(x)
    wide = F.linear(second(x) if norm_first else x, ffn_weight_1, ffn_bias_1)
    wide = F.gelu(wide) if use_gelu else F.relu(wide)
    x = x + F.linear(wide, ffn_weight_2, ffn_bias_2)
    return x if norm_first else second(x)
