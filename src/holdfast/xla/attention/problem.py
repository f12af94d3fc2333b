"""The arguments of torch's attention, checked and brought into one form.

A `Problem` has four dimensions everywhere; every engine relies on its comments.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from holdfast.base.errors import BadInput
from holdfast.xla.attention.choosing import Form, MaskKind


@dataclass(frozen=True, slots=True)
class Problem:
    """One attention. Key heads divide the heads: key head i serves a run of neighbouring heads."""

    query: jax.Array  # [batch, heads, queries, dim]
    key: jax.Array  # [batch, key heads, keys, dim]
    value: jax.Array  # [batch, key heads, keys, value dim]
    mask: jax.Array | None  # [batch or 1, heads or 1, queries or 1, keys]
    scale: float
    is_causal: bool
    shape: tuple[int, ...]
    """What torch's answer has, before its batch dimensions were put together."""

    @property
    def key_mask(self) -> jax.Array | None:
        """[batch, keys], where the mask is of that kind."""
        if self.mask is None or _kind(self.mask) != "keys":
            return None
        batch, keys = self.query.shape[0], self.key.shape[2]
        return jnp.broadcast_to(self.mask[:, 0, 0], (batch, keys))

    @property
    def form(self) -> Form:
        """What the choice of an engine depends on."""
        return Form(
            queries=self.query.shape[2],
            keys=self.key.shape[2],
            dim=self.query.shape[3],
            value_dim=self.value.shape[3],
            dtype=str(self.query.dtype),
            mask=None if self.mask is None else _kind(self.mask),
            mask_dtype=None if self.mask is None else str(self.mask.dtype),
            is_causal=self.is_causal,
        )


def problem(
    query: Any,
    key: Any,
    value: Any,
    mask: Any = None,
    *,
    scale: float | None = None,
    is_causal: bool = False,
    enable_gqa: bool = False,
) -> Problem:
    """Arguments as torch takes them, as a `Problem`. Raises BadInput for those that do not fit."""
    query, key, value = (jnp.asarray(one) for one in (query, key, value))
    _check(query, key, value)
    heads = query.shape[-3] if query.ndim > 2 else 1
    key, value = _match_heads(heads, key, value, enable_gqa)
    batch = _batch(query, key, value)
    has_heads = max(query.ndim, key.ndim, value.ndim) > 2
    shape = (*batch, *((heads,) if has_heads else ()), query.shape[-2])
    scores = (*batch, heads, query.shape[-2], key.shape[-2])
    return Problem(
        query=_flatten_batch(query, batch),
        key=_flatten_batch(key, batch),
        value=_flatten_batch(value, batch),
        mask=None if mask is None else _mask(jnp.asarray(mask), scores, query.dtype),
        scale=1 / math.sqrt(max(query.shape[-1], 1)) if scale is None else float(scale),
        is_causal=is_causal,
        shape=(*shape, value.shape[-1]),
    )


def _shapes(query: jax.Array, key: jax.Array, value: jax.Array) -> str:
    return f"query {query.shape}, key {key.shape}, value {value.shape}"


def _check(query: jax.Array, key: jax.Array, value: jax.Array) -> None:
    found, expected = _shapes(query, key, value), None
    if min(query.ndim, key.ndim, value.ndim) < 2:
        expected = "two dimensions at least: [..., length, dim]"
    elif not query.dtype == key.dtype == value.dtype or not jnp.issubdtype(
        query.dtype, jnp.floating
    ):
        found = f"query {query.dtype}, key {key.dtype}, value {value.dtype}"
        expected = "one floating type for all three"
    elif query.shape[-1] != key.shape[-1]:
        expected = "the last dimension of query and key alike"
    elif key.shape[-2] != value.shape[-2]:
        expected = "as many keys as values"
    if expected is not None:
        raise BadInput(f"attention over {found}", expected=expected)


def _match_heads(
    heads: int, key: jax.Array, value: jax.Array, enable_gqa: bool
) -> tuple[jax.Array, jax.Array]:
    """Key and value with equal heads that divide those of the query."""
    of_key, of_value = (one.shape[-3] if one.ndim > 2 else 1 for one in (key, value))
    fits = heads % of_key == 0 == heads % of_value if of_key and of_value else heads == 0
    if not fits or not (enable_gqa or {of_key, of_value} <= {1, heads}):
        raise BadInput(
            f"attention of {heads} heads over {of_key} heads of keys and {of_value} of values",
            expected="heads of keys and values that divide those of the query"
            if enable_gqa
            else "as many heads of keys and values, or one",
            hint=None if enable_gqa or not fits else "enable_gqa=True",
        )
    if of_key == of_value:
        return key, value
    return _repeat_heads(key, heads), _repeat_heads(value, heads)


def _repeat_heads(array: jax.Array, heads: int) -> jax.Array:
    array = array if array.ndim > 2 else array[None]
    return jnp.repeat(array, heads // array.shape[-3], axis=-3)


def _batch(query: jax.Array, key: jax.Array, value: jax.Array) -> tuple[int, ...]:
    try:
        return jnp.broadcast_shapes(*(one.shape[:-3] for one in (query, key, value)))
    except ValueError as exc:
        raise BadInput(
            f"attention over {_shapes(query, key, value)}",
            expected="batch dimensions that broadcast",
        ) from exc


def _flatten_batch(array: jax.Array, batch: tuple[int, ...]) -> jax.Array:
    """[*batch or fewer, heads, length, dim] as four dimensions."""
    array = array if array.ndim > 2 else array[None]
    rest = array.shape[-3:]
    return jnp.broadcast_to(array, (*batch, *rest)).reshape(math.prod(batch), *rest)


def _mask(mask: jax.Array, scores: tuple[int, ...], dtype: Any) -> jax.Array:
    """The mask with four dimensions; those that it leaves to broadcasting stay 1, but keys."""
    if mask.dtype != jnp.bool_ and mask.dtype not in (jnp.float32, dtype):
        raise BadInput(
            f"an attention mask of {mask.dtype} for a query of {dtype}",
            expected="bool or float32" if dtype == jnp.float32 else f"bool, float32 or {dtype}",
            hint="mask.astype(bool), where True keeps a key",
        )
    wide = mask.reshape((1,) * (len(scores) - mask.ndim) + mask.shape)
    fits = all(got in (1, size) for got, size in zip(wide.shape, scores, strict=False))
    if wide.ndim != len(scores) or not fits:
        raise BadInput(
            f"an attention mask of {mask.shape} for scores of {scores}",
            expected="a mask that broadcasts to the scores",
        )
    *batch, heads, queries, _ = wide.shape
    batch = [1] * len(batch) if math.prod(batch) == 1 else scores[:-3]
    wide = jnp.broadcast_to(wide, (*batch, heads, queries, scores[-1]))
    return wide.reshape(math.prod(batch), heads, queries, scores[-1])


def _kind(mask: jax.Array) -> MaskKind:
    if mask.dtype != jnp.bool_:
        return "float"
    return "keys" if mask.shape[1:3] == (1, 1) else "bool"
