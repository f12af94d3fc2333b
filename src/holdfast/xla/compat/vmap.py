"""torch.vmap on torchax's tensors.

torch wraps its inputs into tensors of its own, which torchax does not know. torchax's tensors go to
jax.vmap; all others are unchanged.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import torch
from torch.utils import _pytree as tree

from holdfast.xla.compat.tensors import is_ours


def detour() -> None:
    """Put it in front of torch's function, once."""
    original = torch.vmap
    if not hasattr(original, "before_holdfast"):
        torch.vmap = torch.func.vmap = _wrap(original)


def _wrap(original: Any) -> Any:
    @functools.wraps(original)
    def vmap(func: Callable[..., Any], in_dims: Any = 0, out_dims: Any = 0, **others: Any) -> Any:
        torchs = original(func, in_dims, out_dims, **others)

        @functools.wraps(func)
        def mapped(*args: Any, **kwargs: Any) -> Any:
            ours = [one for one in tree.tree_leaves((args, kwargs)) if is_ours(one)]
            if not ours:
                return torchs(*args, **kwargs)
            return _map_in_jax(ours[0]._env, func, in_dims, out_dims, args, kwargs)

        return mapped

    vars(vmap)["before_holdfast"] = original
    return vmap


def _map_in_jax(
    environment: Any, func: Any, in_dims: Any, out_dims: Any, args: Any, kwargs: Any
) -> Any:
    """As torch does it: what stands in `kwargs` is mapped over its first axis."""

    def inner(args: Any, kwargs: Any) -> Any:
        args, kwargs = environment.j2t_iso((args, kwargs))
        return environment.t2j_iso(func(*args, **kwargs))

    args, kwargs = tree.tree_map_only(torch.Tensor, environment.constant, (args, kwargs))
    given = environment.t2j_iso((args, kwargs))
    dims = tuple(in_dims) if isinstance(in_dims, list | tuple) else in_dims
    return environment.j2t_iso(jax.vmap(inner, (dims, 0), out_dims)(*given))
