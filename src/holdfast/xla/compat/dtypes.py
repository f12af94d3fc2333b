"""Operators whose dtypes torchax gets wrong.

For torch, a bfloat16 tensor times a float32 tensor without dimensions is bfloat16: a time step, a
sigma of a table. For JAX it is float32, and the next layer has no weights of that dtype. Here it is
computed with the scalar as it is, and rounded once.

Other operators torch computes in float32 and rounds once, whatever the dtype. torchax computes them
in bfloat16 step by step: the error of a sigmoid is 1.7 times torch's, that of a cumulative sum 2.4
times, that of a bicubic resize 27 times. Norms are in `ops`. Result dtypes stay; float32 and wider
is left alone.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import torch
from torch.utils import _pytree as tree

_PROMOTING = frozenset(
    {"add", "sub", "rsub", "mul", "div", "true_divide", "floor_divide", "remainder", "fmod", "pow"}
    | {"where", "maximum", "minimum", "lerp", "addcmul", "addcdiv", "clamp", "atan2"}
)
_ROUNDING = frozenset(
    {"_softmax", "softmax", "_log_softmax", "log_softmax", "sigmoid", "log_sigmoid", "silu", "glu"}
    | {"cumsum", "logcumsumexp", "avg_pool1d", "avg_pool2d", "avg_pool3d"}
    | {"_adaptive_avg_pool2d", "_adaptive_avg_pool3d", "native_batch_norm"}
    | {"_native_batch_norm_legit", "_native_batch_norm_legit_no_training"}
    | {"upsample_bicubic2d", "upsample_linear1d", "upsample_trilinear3d", "var_mean"}
)
_TORCHS = (torch.bfloat16, torch.float16)
_JAXS = (jnp.bfloat16, jnp.float16)


def promote_as_in_torch(table: Mapping[Any, Any]) -> Mapping[Any, Any]:
    """Wrap the operators of torchax's table whose result dtype differs from torch's."""
    return {
        key: replace(entry, func=_keep_torch_dtype(entry.func))
        for key, entry in table.items()
        if entry.is_jax_function and _name(key) in _PROMOTING
    }


def round_once(table: Mapping[Any, Any]) -> Mapping[Any, Any]:
    """Wrap the operators of torchax's table that must compute in float32."""
    return {
        key: replace(entry, func=_widen(entry.func))
        for key, entry in table.items()
        if key is torch.nn.functional.interpolate or _name(key) in _ROUNDING
    }


def _name(key: Any) -> str:
    packet = getattr(key, "overloadpacket", key)
    return packet.__name__ if isinstance(packet, torch._ops.OpOverloadPacket) else ""


def _keep_torch_dtype(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def keep(*args: Any, **kwargs: Any) -> Any:
        answer = function(*args, **kwargs)
        arrays = [one for one in (*args, *kwargs.values()) if isinstance(one, jax.Array)]
        deciding = [one.dtype for one in arrays if one.ndim and _is_float(one)]
        if not deciding or not any(not one.ndim and _is_float(one) for one in arrays):
            return answer
        wanted = functools.reduce(jnp.promote_types, deciding)
        return answer.astype(wanted) if _is_float(answer) else answer

    return keep


def _is_float(value: Any) -> bool:
    return isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jnp.floating)


def _widen(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wide(*args: Any, **kwargs: Any) -> Any:
        given = [one for one in tree.tree_leaves((args, kwargs)) if _is_narrow(one)]
        if not given or kwargs.get("dtype") is not None:
            return function(*args, **kwargs)
        narrow = given[0].dtype
        args, kwargs = tree.tree_map(_float32, (args, kwargs))
        return tree.tree_map(lambda one: _narrow(one, narrow), function(*args, **kwargs))

    return wide


def _is_narrow(value: Any) -> bool:
    if isinstance(value, jax.Array):
        return value.dtype in _JAXS
    return isinstance(value, torch.Tensor) and value.dtype in _TORCHS


def _float32(value: Any) -> Any:
    if not _is_narrow(value):
        return value
    return value.astype(jnp.float32) if isinstance(value, jax.Array) else value.to(torch.float32)


def _narrow(value: Any, narrow: Any) -> Any:
    if isinstance(value, jax.Array) and value.dtype == jnp.float32:
        return value.astype(narrow)
    if isinstance(value, torch.Tensor) and value.dtype == torch.float32:
        return value.to(narrow)
    return value
