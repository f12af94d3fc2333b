"""Write into a part of an array, as a new array.

`array.at[key].set(value)` becomes a scatter, and `dynamic_update_slice` is no better: where a part
of the tokens is rotated and written back, and the heads are split over more devices than there are
heads, XLA gave wrong results (jax 0.10.2: scores of CogVideoX are off by their own size).
Concatenated from the parts before, in and after the slice, the result is right.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def write_slice(array: jax.Array, key: Any, value: Any) -> jax.Array:
    """The array with `value` at `key`. Leading axes of length 1 of the value are dropped."""
    value = jnp.asarray(value, array.dtype)
    parts = _slices(array.shape, key)
    room = jax.eval_shape(lambda one: one[key], jax.ShapeDtypeStruct(array.shape, array.dtype))
    while value.ndim > len(room.shape) and value.shape[0] == 1:
        value = value[0]
    if parts is None:
        return array.at[key].set(value)
    whole = tuple(stop - start for start, stop in parts)
    return _put(array, parts, jnp.broadcast_to(value, room.shape).reshape(whole))


def _put(array: jax.Array, parts: list[tuple[int, int]], value: jax.Array) -> jax.Array:
    """Axis after axis: what is before the slice, the slice with the others written, the rest."""
    axis = next((i for i, part in enumerate(parts) if part != (0, array.shape[i])), None)
    if axis is None:
        return value
    start, stop = parts[axis]
    inner = jax.lax.slice_in_dim(array, start, stop, axis=axis)
    others = [*parts[:axis], (0, stop - start), *parts[axis + 1 :]]
    pieces = [
        jax.lax.slice_in_dim(array, 0, start, axis=axis),
        _put(inner, others, value),
        jax.lax.slice_in_dim(array, stop, array.shape[axis], axis=axis),
    ]
    return jnp.concatenate([one for one in pieces if one.shape[axis]], axis)


def _slices(shape: tuple[int, ...], key: Any) -> list[tuple[int, int]] | None:
    """Start and stop along each axis; None where it is not as simple as that."""
    keys = list(key) if isinstance(key, tuple) else [key]
    if not all(one is Ellipsis or isinstance(one, slice) or _is_number(one) for one in keys):
        return None
    if Ellipsis in keys:
        place = keys.index(Ellipsis)
        keys[place : place + 1] = [slice(None)] * (len(shape) - len(keys) + 1)
    keys += [slice(None)] * (len(shape) - len(keys))
    found = [_bounds(one, length) for one, length in zip(keys, shape, strict=True)]
    simple = [one for one in found if one is not None]
    return simple if len(simple) == len(found) else None


def _bounds(key: Any, length: int) -> tuple[int, int] | None:
    if _is_number(key):
        place = int(key) + (length if key < 0 else 0)
        return (place, place + 1) if 0 <= place < length else None
    start, stop, step = key.indices(length)
    return (start, max(start, stop)) if step == 1 else None


def _is_number(value: Any) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)
