"""MultiheadAttention, TransformerEncoderLayer, TransformerEncoder; parameters and masks as in
torch.

In a boolean mask, True means "ignore"; a float mask is added to the scores. Unlike torch,
evaluation computes the same as training: padded positions are not filled with zeros.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from numbers import Integral
from typing import Any

from holdfast.base.errors import BadInput
from holdfast.compute import dtype as dtypes
from holdfast.compute import functional as F
from holdfast.compute.nn import init
from holdfast.compute.nn.container import ModuleList
from holdfast.compute.nn.dropout import Dropout, drop_elements
from holdfast.compute.nn.layer import Layer, layer
from holdfast.compute.nn.linear import Linear
from holdfast.compute.nn.module import Module
from holdfast.compute.nn.normalization import LayerNorm
from holdfast.compute.ops.schema import describe
from holdfast.compute.tensors.custom_tensor import CustomTensor

# Scores of one head up to which all heads at once, as products of stacks of matrices, are quicker
# than the op that saves memory and goes head by head.
_SMALL = 128 * 128
_APART = ("q_proj_weight", "k_proj_weight", "v_proj_weight")  # where kdim or vdim is another size
__all__ = ["MultiheadAttention", "TransformerEncoder", "TransformerEncoderLayer"]


class NonDynamicallyQuantizableLinear(Linear):
    """A Linear with the name that torch prints for attention's output layer."""


@layer
class MultiheadAttention(Layer):
    """softmax(q kᵀ / √d) v in several heads, with linear projections."""

    embed_dim: int
    num_heads: int
    dropout: float = 0.0
    bias: bool = True
    add_bias_kv: bool = False
    add_zero_attn: bool = False
    kdim: Any = None  # an integer; embed_dim if None
    vdim: Any = None
    batch_first: bool = False
    device: Any = None
    dtype: Any = None

    def build(self, kind: dict[str, Any]) -> None:
        bias, extra = self.take("bias", "add_bias_kv")
        size, heads = self.embed_dim, self.num_heads
        whole = isinstance(size, Integral) and isinstance(heads, Integral)
        if not whole or size <= 0 or heads <= 0 or size % heads:
            raise BadInput(
                f"MultiheadAttention cannot split embed_dim={size} into {heads} heads",
                expected="num_heads that divide embed_dim, both above 0",
            )
        self.head_dim = size // heads
        self.kdim = size if self.kdim is None else self.kdim
        self.vdim = size if self.vdim is None else self.vdim
        self._same = self.kdim == size == self.vdim
        self._add_weights(kind)
        self.add_weight("in_proj_bias", (3 * size,) if bias else None, kind)
        self.out_proj = NonDynamicallyQuantizableLinear(size, size, bias, **kind)
        for name in ("bias_k", "bias_v"):
            self.add_weight(name, (1, 1, size) if extra else None, kind)
        self._reset_parameters()

    def _add_weights(self, kind: Any) -> None:
        size = self.embed_dim
        self.add_weight("in_proj_weight", (3 * size, size) if self._same else None, kind)
        for name, width in zip(_APART, (size, self.kdim, self.vdim), strict=True):
            self.add_weight(name, None if self._same else (size, width), kind)

    def _reset_parameters(self) -> None:
        for name in ("in_proj_weight",) if self._same else _APART:
            init.xavier_uniform_(getattr(self, name))
        if self.in_proj_bias is not None:
            init.zeros_(self.in_proj_bias)
            init.zeros_(self.out_proj.bias)
        for extra in (self.bias_k, self.bias_v):
            if extra is not None:
                init.xavier_normal_(extra)

    # ---- forward

    def forward(
        self,
        query: CustomTensor,
        key: CustomTensor,
        value: CustomTensor,
        key_padding_mask: CustomTensor | None = None,
        need_weights: bool = True,
        attn_mask: CustomTensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[CustomTensor, CustomTensor | None]:
        batched = self._check(query, key, value)
        q, k, v = self._project(query, key, value, batched)
        count, length, _ = q.shape
        mask = self._mask(q, k, key_padding_mask, attn_mask, is_causal, batched)
        k, v, mask = self._extend(k, v, mask)
        heads = [self._heads(t) for t in (q, k, v)]
        p = self.dropout if self.training else 0.0
        weights = None
        if need_weights:
            out, weights = _attend(heads, mask, p, safe=False)
            weights = F.mean(weights, [1]) if average_attn_weights else weights
        elif length * k.shape[1] <= _SMALL:
            out, _ = _attend(heads, mask, p, safe=mask is not None)
        else:
            out = F.scaled_dot_product_attention(*heads, mask, p)
        merged = F.reshape(F.transpose(out, 1, 2), [count, length, self.embed_dim])
        result = self.out_proj(merged)
        if not batched:
            first = None if weights is None else F.squeeze(weights, 0)
            return F.squeeze(result, 0), first
        return (result if self.batch_first else F.transpose(result, 0, 1)), weights

    def _check(self, query: CustomTensor, key: CustomTensor, value: CustomTensor) -> bool:
        """Whether the input has a batch dimension. Raises BadInput."""
        given = (query, key, value)
        widths = (self.embed_dim, self.kdim, self.vdim)
        for one in given:
            self.check_kind(one, self.out_proj.weight)
        ranks = {t.ndim for t in given}
        fits = len(ranks) == 1 and ranks <= {2, 3}
        if fits:
            first = self.batch_first or query.ndim == 2
            fits = key.shape[-2 if first else 0] == value.shape[-2 if first else 0]
        if fits and query.ndim == 3:
            at = 0 if self.batch_first else 1
            fits = query.shape[at] == key.shape[at] == value.shape[at]
        if not fits or tuple(t.shape[-1] for t in given) != widths:
            order = "batch, length" if self.batch_first else "length, batch"
            sizes = ", ".join(f"[{order}, {width}]" for width in widths)
            raise self._refuse(
                list(given), "query, key and value do not fit", f"{sizes}, or all without batch"
            )
        return query.ndim == 3

    def _refuse(self, given: Any, reason: str, expected: str) -> BadInput:
        name = f"MultiheadAttention({self.embed_dim}, {self.num_heads})"
        return BadInput(f"{name} cannot take {describe(given)}: {reason}", expected=expected)

    def _project(
        self, query: CustomTensor, key: CustomTensor, value: CustomTensor, batched: bool
    ) -> list[CustomTensor]:
        """Queries, keys and values as [batch, length, embed_dim]."""
        size = self.embed_dim
        if self._same and query is key and key is value:
            joined = F.linear(query, self.in_proj_weight, self.in_proj_bias)
            found = list(F.split(joined, size, -1))
        else:
            weights = (
                F.split(self.in_proj_weight, size, 0)
                if self._same
                else [getattr(self, name) for name in _APART]
            )
            biases = [None] * 3 if self.in_proj_bias is None else F.split(self.in_proj_bias, size)
            found = [
                F.linear(t, w, b)
                for t, w, b in zip((query, key, value), weights, biases, strict=True)
            ]
        if not batched:
            return [F.unsqueeze(t, 0) for t in found]
        return found if self.batch_first else [F.transpose(t, 0, 1) for t in found]

    def _heads(self, tensor: CustomTensor) -> CustomTensor:
        """Reshape [batch, length, embed_dim] to [batch, heads, length, head_dim]."""
        count, length, _ = tensor.shape
        return F.transpose(F.reshape(tensor, [count, length, self.num_heads, self.head_dim]), 1, 2)

    def _extend(self, k: Any, v: Any, mask: Any) -> tuple[Any, Any, Any]:
        """Append the learned key and value, and one of zeros, if configured."""
        count, added = k.shape[0], 0
        if self.bias_k is not None:
            k, v = (
                F.cat([t, F.expand(extra, [count, 1, self.embed_dim])], 1)
                for t, extra in ((k, self.bias_k), (v, self.bias_v))
            )
            added += 1
        if self.add_zero_attn:
            k, v = (F.constant_pad_nd(t, [0, 0, 0, 1]) for t in (k, v))
            added += 1
        if mask is not None and added:
            mask = F.constant_pad_nd(mask, [0, added])
        return k, v, mask

    def _mask(
        self, q: Any, k: Any, padding: Any, given: Any, causal: bool, batched: bool
    ) -> CustomTensor | None:
        """Combine all masks into an additive one that broadcasts to [batch, heads, query, key]."""
        count, length, span = q.shape[0], q.shape[1], k.shape[1]
        masks = []
        if given is not None:
            shapes = ([length, span], [count * self.num_heads, length, span])
            self._check_mask("attn_mask", given, shapes)
            added = to_additive_mask(given, q)
            if given.ndim == 3:
                added = F.reshape(added, [count, self.num_heads, length, span])
            masks.append(added)
        elif causal:
            masks.append(causal_mask(length, span, q))
        if padding is not None:
            shapes = ([count, span],) if batched else ([span],)
            self._check_mask("key_padding_mask", padding, shapes)
            masks.append(F.reshape(to_additive_mask(padding, q), [count, 1, 1, span]))
        if len(masks) == 2:
            return F.add(*masks)
        return masks[0] if masks else None

    def _check_mask(self, name: str, mask: CustomTensor, shapes: Any) -> None:
        if list(mask.shape) not in shapes:
            expected = " or ".join(str(list(s)) for s in shapes)
            raise self._refuse(mask, f"{name} does not fit", expected)


def to_additive_mask(mask: CustomTensor, like: CustomTensor) -> CustomTensor:
    """Convert a boolean mask to one that is added to scores: -inf where True."""
    if mask.dtype != dtypes.BOOL:
        return mask
    zeros = init.zeros_(init.empty(*mask.shape, device=like.device, dtype=like.dtype))
    return F.masked_fill(zeros, mask, -math.inf)


def causal_mask(length: int, span: int, like: CustomTensor) -> CustomTensor:
    """-inf above the diagonal."""
    filled = init.empty(length, span, device=like.device, dtype=like.dtype)
    return F.triu(init.constant_(filled, -math.inf), 1)


def _attend(heads: list[Any], mask: Any, p: float, safe: bool) -> tuple[CustomTensor, CustomTensor]:
    """The result and the weights; `safe`: zeros, not NaN, for fully masked rows, as the fused op
    has them.
    """
    q, k, v = heads
    scores = F.matmul(F.mul(q, 1 / math.sqrt(q.shape[-1])), F.transpose(k, -2, -1))
    if mask is not None:
        scores = F.add(scores, mask)
    shares = F._safe_softmax(scores, -1) if safe else F._softmax(scores, -1, False)
    weights = drop_elements(shares, p)
    return F.matmul(weights, v), weights


# ---- transformers

_ACTIVATIONS: dict[str, Callable[[Any], Any]] = {
    "relu": lambda x: F.relu(x),
    "gelu": lambda x: F.gelu(x),
}


class TransformerEncoderLayer(Module):
    """Self-attention, then two linear layers, each with a residual and a norm."""

    def __init__(
        self,
        d_model: int,
        nhead: int,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: str | Callable[[Any], Any] = "relu",
        layer_norm_eps: float = 1e-5,
        batch_first: bool = False,
        norm_first: bool = False,
        bias: bool = True,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        if isinstance(activation, str) and activation not in _ACTIVATIONS:
            raise BadInput(
                f"TransformerEncoderLayer has no activation {activation!r}",
                expected="relu, gelu, or a function of a tensor",
            )
        kind = {"device": device, "dtype": dtype}
        self.self_attn = MultiheadAttention(
            d_model, nhead, dropout, bias, batch_first=batch_first, **kind
        )
        self.linear1 = Linear(d_model, dim_feedforward, bias, **kind)
        self.dropout = Dropout(dropout)
        self.linear2 = Linear(dim_feedforward, d_model, bias, **kind)
        self.norm_first = norm_first
        self.norm1 = LayerNorm(d_model, layer_norm_eps, bias=bias, **kind)
        self.norm2 = LayerNorm(d_model, layer_norm_eps, bias=bias, **kind)
        self.dropout1, self.dropout2 = Dropout(dropout), Dropout(dropout)
        self.activation = activation

    def forward(
        self,
        src: CustomTensor,
        src_mask: CustomTensor | None = None,
        src_key_padding_mask: CustomTensor | None = None,
        is_causal: bool = False,
    ) -> CustomTensor:
        masks = (src_mask, src_key_padding_mask, is_causal)
        if self.norm_first:
            src = F.add(src, self._attend(self.norm1(src), *masks))
            return F.add(src, self._feed_forward(self.norm2(src)))
        src = self.norm1(F.add(src, self._attend(src, *masks)))
        return self.norm2(F.add(src, self._feed_forward(src)))

    def _attend(self, x: CustomTensor, mask: Any, padding: Any, causal: bool) -> CustomTensor:
        out = self.self_attn(
            *(x, x, x), attn_mask=mask, key_padding_mask=padding, need_weights=False,
            is_causal=causal,
        )[0]  # fmt: skip
        return self.dropout1(out)

    def _feed_forward(self, x: CustomTensor) -> CustomTensor:
        act = self.activation
        act = _ACTIVATIONS[act] if isinstance(act, str) else act
        return self.dropout2(self.linear2(self.dropout(act(self.linear1(x)))))


class TransformerEncoder(Module):
    """A stack of copies of a layer, with an optional final norm."""

    def __init__(
        self,
        encoder_layer: Module,
        num_layers: int,
        norm: Module | None = None,
        enable_nested_tensor: bool = True,
        mask_check: bool = True,
    ) -> None:
        super().__init__()
        self.layers = ModuleList(copy.deepcopy(encoder_layer) for _ in range(num_layers))
        self.num_layers = num_layers
        self.norm: Any = norm

    def forward(
        self,
        src: CustomTensor,
        mask: CustomTensor | None = None,
        src_key_padding_mask: CustomTensor | None = None,
        is_causal: bool | None = None,
    ) -> CustomTensor:
        for one in self.layers:
            src = one(src, mask, src_key_padding_mask, bool(is_causal))
        return src if self.norm is None else self.norm(src)
