"""flex_attention on torchax's tensors.

torch's own refuses most devices before it dispatches. torchax's tensors go to plain attention with
the mask written out; all others are unchanged.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch.nn import functional

from holdfast.base.errors import Unsupported
from holdfast.xla.compat.tensors import is_ours


def detour() -> None:
    """Put it in front of torch's function, once."""
    from torch.nn.attention import flex_attention as module

    original = module.flex_attention
    if not hasattr(original, "before_holdfast"):
        module.flex_attention = _wrap(original)


@contextmanager
def everywhere() -> Iterator[None]:
    """Tensors of torch take the detour as well: eagerly, torch itself ignores lists of blocks."""
    with patch("torch.nn.attention.flex_attention.flex_attention", _plain):
        yield


def _wrap(original: Any) -> Any:
    @functools.wraps(original)
    def flex_attention(query: Any, key: Any, value: Any, *args: Any, **kwargs: Any) -> Any:
        if not is_ours(query):
            return original(query, key, value, *args, **kwargs)
        return _plain(query, key, value, *args, **kwargs)

    vars(flex_attention)["before_holdfast"] = original
    return flex_attention


def _plain(
    query: Any,
    key: Any,
    value: Any,
    score_mod: Any = None,
    block_mask: Any = None,
    scale: float | None = None,
    enable_gqa: bool = False,
    return_lse: bool = False,
    **_: Any,
) -> Any:
    if score_mod is not None or return_lse:
        raise Unsupported(
            "cannot run flex_attention on XLA with a score_mod or return_lse",
            expected="a block mask at most",
            hint="another attention processor for this model",
        )
    mask = None if block_mask is None else _make_dense_mask(block_mask, query, key)
    return functional.scaled_dot_product_attention(
        query, key, value, attn_mask=mask, scale=scale, enable_gqa=enable_gqa
    )


def _make_dense_mask(block_mask: Any, query: Any, key: Any) -> Any:
    """Every query against every key; axes that the mask does not look at have the length 1."""
    batch, heads, queries = query.shape[:3]
    counts = (batch, heads, queries, key.shape[2])
    places = [
        torch.arange(count, device=query.device).reshape([-1 if i == axis else 1 for i in range(4)])
        for axis, count in enumerate(counts)
    ]
    kept = block_mask.mask_mod(*places)
    # In blocks that are listed as full nobody asks mask_mod, and what is listed nowhere is skipped.
    kept = kept & _find_listed(block_mask, "kv", counts)
    if block_mask.full_kv_num_blocks is None:
        return kept
    return kept | _find_listed(block_mask, "full_kv", counts)


def _find_listed(block_mask: Any, kind: str, counts: tuple[int, ...]) -> Any:
    number = getattr(block_mask, f"{kind}_num_blocks")
    indices = getattr(block_mask, f"{kind}_indices")
    blocks = indices.shape[-1]
    listed = torch.arange(blocks, device=indices.device) < number[..., None]
    columns = torch.arange(blocks, device=indices.device)
    dense = ((indices[..., None] == columns) & listed[..., None]).any(-2)
    for axis, size in zip((-2, -1), block_mask.BLOCK_SIZE, strict=True):
        place = torch.arange(counts[axis], device=indices.device) // size
        dense = dense.index_select(axis, place)
    return dense
