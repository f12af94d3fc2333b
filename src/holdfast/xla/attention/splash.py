"""Attention by Splash, the TPU kernel that comes with JAX (jax.experimental.pallas).

A padded or masked key is never attended; a query without keys gets zeros.
"""

from __future__ import annotations

import math
from contextlib import nullcontext

import jax
import jax.numpy as jnp
from jax.experimental.pallas.ops.tpu.splash_attention import (
    splash_attention_kernel as kernels,
)
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks

from holdfast.xla.attention.problem import Problem

LANES = 128
_LARGEST_BLOCK = 1024
_LARGEST_COMPUTED = 512
_PADDING_ALLOWED = 1 / 16


def splash(problem: Problem, interpret: bool = False) -> jax.Array:
    """[batch, heads, queries, value dim] for a problem with no mask or one of keys.

    `interpret` computes with XLA what the kernel would, on any platform, for tests.
    """
    heads, queries, dim = problem.query.shape[1:]
    keys, value_dim = problem.value.shape[2:]
    by_query, by_key = (block(length, max(dim, value_dim)) for length in (queries, keys))
    # The kernel has no scale of its own. Mosaic has no float16.
    computed = jnp.bfloat16 if problem.query.dtype == jnp.bfloat16 else jnp.float32
    scaled = problem.query.astype(jnp.float32) * problem.scale
    query = _pad(scaled.astype(computed), by_query)
    key = _pad(problem.key.astype(computed), by_key)
    value = _pad(problem.value.astype(computed), by_key)
    shape = (query.shape[2], key.shape[2])
    kernel = _kernel(heads, shape, (by_query, by_key), problem.is_causal, interpret)
    # On a TPU a product of float32 would otherwise be computed in bfloat16.
    exact = jax.default_matmul_precision("highest") if computed == jnp.float32 else nullcontext()
    with exact:
        out = jnp.asarray(jax.vmap(kernel)(query, key, value, _segments(problem, *shape)))
    out = out[:, :, :queries, :value_dim].astype(problem.query.dtype)
    keep = problem.key_mask
    return out if keep is None else jnp.where(jnp.any(keep, axis=1)[:, None, None, None], out, 0)


def block(length: int, dim: int = LANES) -> int:
    """The largest block that pads a length by little; wide heads get smaller ones."""
    largest = max(_LARGEST_BLOCK * LANES // (math.ceil(dim / LANES) * LANES), LANES)
    size = LANES
    least = math.ceil(length / LANES) * LANES
    for larger in (256, 512, 1024):
        padded = math.ceil(length / larger) * larger
        if larger <= largest and padded - least <= least * _PADDING_ALLOWED:
            size = larger
    return size


def _pad(array: jax.Array, length_block: int) -> jax.Array:
    lengths = -array.shape[2] % length_block
    return jnp.pad(array, ((0, 0), (0, 0), (0, lengths), (0, -array.shape[3] % LANES)))


def _kernel(
    heads: int, shape: tuple[int, int], blocks: tuple[int, int], is_causal: bool, interpret: bool
) -> kernels.SplashAttentionKernel:
    mask = masks.CausalMask(shape) if is_causal else masks.FullMask(shape)
    by_query, by_key = blocks
    sizes = kernels.BlockSizes(
        block_q=by_query, block_kv=by_key, block_kv_compute=min(by_key, _LARGEST_COMPUTED)
    )
    return kernels.make_splash_mha_single_device(
        masks.MultiHeadMask([mask] * heads), block_sizes=sizes, interpret=interpret
    )


def _segments(problem: Problem, padded_queries: int, padded_keys: int) -> kernels.SegmentIds | None:
    """Every query has segment 1, and so have the keys that count. None where all keys do."""
    batch, keys = problem.key.shape[0], problem.key.shape[2]
    keep = problem.key_mask
    if keep is None and padded_keys == keys:
        return None
    counts = jnp.ones((batch, keys), jnp.int32) if keep is None else keep.astype(jnp.int32)
    return kernels.SegmentIds(
        q=jnp.ones((batch, padded_queries), jnp.int32),
        kv=jnp.pad(counts, ((0, 0), (0, padded_keys - keys))),
    )
