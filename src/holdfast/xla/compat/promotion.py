"""Tensors without dimensions do not promote the dtype.

For torch, a bfloat16 tensor times a float32 tensor without dimensions is bfloat16: a time step, a
sigma of a table. For JAX it is float32, and the next layer has no weights of that dtype. Computed
with the scalar as it is, and rounded once.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import torch

_NAMES = frozenset(
    {"add", "sub", "rsub", "mul", "div", "true_divide", "floor_divide", "remainder", "fmod", "pow"}
    | {"where", "maximum", "minimum", "lerp", "addcmul", "addcdiv", "clamp", "atan2"}
)


def promote_as_in_torch(table: Mapping[Any, Any]) -> Mapping[Any, Any]:
    """Wrap the operators of torchax's table whose result dtype differs from torch's."""
    return {
        key: replace(entry, func=_keep_torch_dtype(entry.func))
        for key, entry in table.items()
        if entry.is_jax_function and _name(key) in _NAMES
    }


def _name(key: Any) -> str:
    packet = getattr(key, "overloadpacket", key)
    return packet.__name__ if isinstance(packet, torch._ops.OpOverloadPacket) else ""


def _keep_torch_dtype(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def minding(*args: Any, **kwargs: Any) -> Any:
        answer = function(*args, **kwargs)
        arrays = [one for one in (*args, *kwargs.values()) if isinstance(one, jax.Array)]
        deciding = [one.dtype for one in arrays if one.ndim and _is_float(one)]
        if not deciding or not any(not one.ndim and _is_float(one) for one in arrays):
            return answer
        wanted = functools.reduce(jnp.promote_types, deciding)
        return answer.astype(wanted) if _is_float(answer) else answer

    return minding


def _is_float(value: Any) -> bool:
    return isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jnp.floating)
