"""Attention by cuDNN on an NVIDIA card, through JAX.

A masked key is never attended; a query without keys gets zeros.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from holdfast.base.errors import Unsupported
from holdfast.xla.attention.problem import Problem

_DIM_STEP = 8


def cudnn(problem: Problem) -> jax.Array:
    """[batch, heads, queries, value dim]. Raises Unsupported where there is no cuDNN."""
    query, key, value, mask = problem.query, problem.key, problem.value, problem.mask
    lengths, bias = None, None
    keep = problem.key_mask
    if keep is not None:
        key, value, lengths = _move_kept_first(key, value, keep)
    elif mask is not None:
        bias = _bias(mask, query)
    widest = max(query.shape[3], value.shape[3])
    turned = (_transpose(one, widest + -widest % _DIM_STEP) for one in (query, key, value))
    try:
        out = jax.nn.dot_product_attention(
            *turned,
            bias=bias,
            scale=problem.scale,
            is_causal=problem.is_causal,
            key_value_seq_lengths=lengths,
            implementation="cudnn",
        )
    except RuntimeError as exc:
        raise Unsupported(
            f"attention by cuDNN: {exc}",
            expected="a JAX for CUDA, and cuDNN",
            hint='pip install "jax[cuda13]", or engine="xla"',
        ) from exc
    out = jnp.swapaxes(out, 1, 2)[..., : value.shape[3]]
    if mask is None:
        return out
    used = mask if mask.dtype == jnp.bool_ else mask > -jnp.inf
    return jnp.where(jnp.any(used, axis=-1, keepdims=True), out, 0)


def _transpose(array: jax.Array, dim: int) -> jax.Array:
    """[batch, heads, length, dim] as [batch, length, heads, dim]."""
    padded = jnp.pad(array, ((0, 0), (0, 0), (0, 0), (0, dim - array.shape[3])))
    return jnp.swapaxes(padded, 1, 2)


def _move_kept_first(
    key: jax.Array, value: jax.Array, keep: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Keys to use before those to leave out, and how many: the order of keys means nothing.

    cuDNN would want a whole matrix of queries x keys for a mask; a length costs nothing. Where
    no key is to be used, it says one: cuDNN's answer to none is not defined.
    """
    order = jnp.argsort(~keep, axis=1, stable=True)[:, None, :, None]
    counts = jnp.maximum(jnp.sum(keep, axis=1, dtype=jnp.int32), 1)
    key, value = (jnp.take_along_axis(one, order, axis=2) for one in (key, value))
    return key, value, counts


def _bias(mask: jax.Array, query: jax.Array) -> jax.Array:
    """What is added to the scores, finite: a row of -inf would come out as NaN."""
    lowest = float(jnp.finfo(query.dtype).min) / 2
    if mask.dtype == jnp.bool_:
        mask = jnp.where(mask, 0, lowest)
    bias = jnp.maximum(mask, lowest).astype(query.dtype)
    return jnp.broadcast_to(bias, (*mask.shape[:2], query.shape[2], mask.shape[3]))
