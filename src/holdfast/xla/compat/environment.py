"""The environment in which a module is traced.

Covers: values that are known while tracing, CPU tensors among torchax's own, names of devices,
operators that torchax lacks or does wrongly.
Leaves to others: overrides of a port (ops), attention itself (attention), pausing (env).
Promise: each environment has its own table of operators; nothing of another one changes.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import jax
import torch
from torch.utils import _mode_utils as modes
from torch.utils import _pytree as tree

from holdfast.xla import attention, ops
from holdfast.xla.arrays import to_torch
from holdfast.xla.compat.convolution import convolution
from holdfast.xla.compat.importing import torchax
from holdfast.xla.compat.inplace import missing
from holdfast.xla.compat.promotion import promoted_as_in_torch
from holdfast.xla.compat.rounding import rounded_once
from holdfast.xla.compat.tensors import any_traced, is_ours, is_traced, whole_numbers

torchax()

from torchax import tensor as _tensor  # noqa: E402  (imports only with the mends)
from torchax.ops import jtorch, ops_registry  # noqa: E402

Tensor = _tensor.Tensor

_DEVICES = frozenset({"jax", "privateuseone", "meta"})
# They answer differently each time, which a value computed while tracing would not.
_RANDOM = (torch.Tag.nondeterministic_seeded,)


class Environment(_tensor.Environment):
    """torchax's, with what it lacks.

    `attending` goes to `attention`: the mesh that arrays are split over, the platform that it is
    compiled for.
    """

    def __init__(self, overrides: Mapping[Any, Any] | None = None, **attending: Any) -> None:
        super().__init__()
        self._names = _DEVICES | {torch._C._get_privateuse1_backend_name()}
        self._ops |= missing()
        self._ops |= rounded_once(self._ops)
        self._ops |= promoted_as_in_torch(self._ops)
        self._decomps |= rounded_once(self._decomps)
        self._ops |= ops.builtin()
        self._ops |= _mended(attending)
        self._ops |= overrides or {}

    def dispatch(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        """Compute at once what depends on nothing that is traced."""
        kwargs = kwargs or {}
        args, kwargs = self._together(args, kwargs)
        if _is_random(func) or any_traced((args, kwargs)):
            return super().dispatch(func, types, args, kwargs)
        with jax.ensure_compile_time_eval():
            return super().dispatch(func, types, args, kwargs)

    def _get_op_or_decomp(self, func: Any) -> Any:
        """Also what torch puts together from others, which it leaves to us in inference mode."""
        try:
            return super()._get_op_or_decomp(func)
        except _tensor.OperatorNotFound:
            found = ops.decomposed(func)
            if found is None:
                raise
            return found

    def _together(self, args: Any, kwargs: Any) -> Any:
        """Tensors of the CPU become constants where they meet torchax's own."""
        leaves = [one for one in tree.tree_leaves((args, kwargs)) if isinstance(one, torch.Tensor)]
        ours = sum(map(is_ours, leaves))
        if ours in (0, len(leaves)):
            return args, kwargs
        return tree.tree_map_only(torch.Tensor, self.constant, (args, kwargs))

    def constant(self, value: torch.Tensor) -> Any:
        """A tensor of the CPU as one of torchax; its own stay."""
        if is_ours(value):
            return value
        with jax.ensure_compile_time_eval():
            return _tensor.Tensor(self.t2j_copy(value), self)

    def j2t_copy(self, args: Any) -> Any:
        """A copy indeed: torchax gives JAX's own memory, which nobody may write into."""
        with modes.no_dispatch(), torch._C.DisableTorchFunction():
            return tree.tree_map_only(jax.Array, to_torch, args)

    def _should_use_torchax_tensor(self, device: Any) -> bool:
        name = str(device).partition(":")[0]
        if device is not None and name in self._names - {"meta"}:
            return True
        return super()._should_use_torchax_tensor(device)

    def _is_same_device(self, the_tensor: Any, new_device: Any) -> bool:
        if new_device is None:
            return True
        if is_ours(the_tensor) and str(new_device).partition(":")[0] in self._names:
            return True
        # What is traced is nowhere yet: a model that moves it to the CPU computes on all the same.
        return is_traced(the_tensor) or super()._is_same_device(the_tensor, new_device)


def _is_random(func: Any) -> bool:
    if isinstance(func, torch._ops.OpOverload):
        return any(tag in func.tags for tag in _RANDOM)
    return func in _RANDOM_FUNCTIONS


_RANDOM_FUNCTIONS = frozenset(
    {torch.randn, torch.rand, torch.randint, torch.randn_like, torch.rand_like, torch.normal}
    | {torch.bernoulli, torch.multinomial, torch.randperm, torch.randint_like}
)


def _mended(attending: Mapping[str, Any]) -> Mapping[Any, Any]:
    """Operators that torchax does wrongly."""
    attend = functools.partial(attention.scaled_dot_product_attention, **attending)
    own = {
        torch.Tensor.__getitem__: (_getitem, False, True),
        torch.ops.aten.convolution: (convolution, True, False),
        torch.nn.functional.scaled_dot_product_attention: (attend, True, False),
        torch.ops.aten.scaled_dot_product_attention: (attend, True, False),
    }
    return {
        key: ops_registry.Operator(key, function, in_jax, False, False, view)
        for key, (function, in_jax, view) in own.items()
    }


def _getitem(self: Any, indexes: Any) -> Any:
    """Slices may be bounded by tensors; a view may be asked with tensors."""
    indexes = whole_numbers(indexes)
    has_tensors = any(isinstance(one, torch.Tensor) for one in tree.tree_leaves(indexes))
    if has_tensors and hasattr(self, "view_info"):
        self = self.torch()
    return jtorch.getitem(self, indexes)
