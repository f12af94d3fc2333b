"""Attention in XLA's own operations: everywhere, every mask, every length.

Queries are computed in chunks where the scores would be large: besides inputs and result about
`score_bytes` are live, or one row of scores.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp

from holdfast.xla.attention.problem import Problem

SCORE_BYTES = 256 << 20
# On a CPU scores that stay in its caches are computed twice as fast.
CPU_SCORE_BYTES = 8 << 20
_ROUND = 8  # rows of a run: a multiple of what vector units take


def plain(problem: Problem, score_bytes: int = SCORE_BYTES) -> jax.Array:
    """[batch, heads, queries, value dim] in the dtype of the query."""
    batch, heads, queries, _ = problem.query.shape
    keys = problem.key.shape[2]
    if math.prod((batch, heads, queries, keys)) == 0:
        shape = (batch, heads, queries, problem.value.shape[3])
        return jnp.zeros(shape, problem.query.dtype)
    rows = rows_at_once(queries, batch * heads * keys * 4, score_bytes)
    if rows >= queries:
        return _rows(problem, problem.query, problem.mask, 0)
    return _run_in_chunks(problem, rows)


def rows_at_once(queries: int, row_bytes: int, score_bytes: int) -> int:
    """How many queries to take at a time: runs of about equal size, none larger than allowed."""
    most = max(score_bytes // row_bytes, 1)
    if most >= queries:
        return queries
    runs = math.ceil(queries / most)
    rows = math.ceil(queries / runs)
    rounded = math.ceil(rows / _ROUND) * _ROUND
    return rounded if rounded <= most else rows


def _run_in_chunks(problem: Problem, rows: int) -> jax.Array:
    batch, heads, queries, _ = problem.query.shape
    runs = math.ceil(queries / rows)
    mask = problem.mask
    by_row = mask is not None and mask.shape[2] > 1

    def run(part: tuple[jax.Array, jax.Array, jax.Array | None]) -> jax.Array:
        first, query, of_mask = part
        return _rows(problem, query, of_mask if by_row else mask, first)

    firsts = jnp.arange(runs) * rows
    parts = (firsts, _cut(problem.query, runs, rows), _cut(mask, runs, rows) if by_row else None)
    out = jnp.moveaxis(jax.lax.map(run, parts), 0, 2)
    return out.reshape(batch, heads, runs * rows, -1)[:, :, :queries]


def _cut(array: Any, runs: int, rows: int) -> jax.Array:
    """[batch, heads, queries, any] as [runs, batch, heads, rows, any], filled up with zeros."""
    batch, heads, queries, last = array.shape
    padded = jnp.pad(array, ((0, 0), (0, 0), (0, runs * rows - queries), (0, 0)))
    return jnp.moveaxis(padded.reshape(batch, heads, runs, rows, last), 2, 0)


def _rows(
    problem: Problem, query: jax.Array, mask: jax.Array | None, first: int | jax.Array
) -> jax.Array:
    """Attention of some of the queries, beginning at index `first`."""
    batch, heads, rows, dim = query.shape
    key_heads = problem.key.shape[1]
    grouped = query.reshape(batch, key_heads, heads // key_heads, rows, dim)
    scores = _product("bkgqd,bksd->bkgqs", grouped, problem.key) * problem.scale
    scores = _apply_mask(scores, mask)
    if problem.is_causal:
        number = first + jnp.arange(rows)[:, None]
        scores = jnp.where(number >= jnp.arange(scores.shape[-1]), scores, -jnp.inf)
    weights, total = _exponents(scores, guarded=mask is not None)
    out = _product("bkgqs,bksd->bkgqd", weights.astype(query.dtype), problem.value) / total
    return out.reshape(batch, heads, rows, -1).astype(query.dtype)


def _product(what: str, left: jax.Array, right: jax.Array) -> jax.Array:
    """A product that adds up in float32, or wider if its factors are."""
    wide = jnp.promote_types(left.dtype, jnp.float32)
    exact = jax.lax.Precision.HIGHEST if left.dtype == wide else None
    return jnp.einsum(what, left, right, preferred_element_type=wide, precision=exact)


def _apply_mask(scores: jax.Array, mask: jax.Array | None) -> jax.Array:
    if mask is None:
        return scores
    key_heads, group = scores.shape[1:3]
    split = (key_heads, group) if mask.shape[1] > 1 else (1, 1)
    mask = mask.reshape(mask.shape[0], *split, *mask.shape[2:])
    if mask.dtype == jnp.bool_:
        return jnp.where(mask, scores, -jnp.inf)
    return scores + mask.astype(scores.dtype)


def _exponents(scores: jax.Array, guarded: bool) -> tuple[jax.Array, jax.Array]:
    """Weights up to a factor, and that factor. Guarded: a row of -inf weighs nothing."""
    highest = jnp.max(scores, axis=-1, keepdims=True)
    if guarded:
        highest = jnp.where(highest == -jnp.inf, 0, highest)
    weights = jnp.exp(scores - highest)
    total = jnp.sum(weights, axis=-1, keepdims=True)
    return weights, jnp.where(total == 0, 1, total) if guarded else total
