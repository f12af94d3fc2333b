"""The environment in which a module is traced.

Handles values that are known while tracing, CPU tensors among torchax's own, device names, and
operators that torchax lacks or gets wrong. Each environment has its own table of operators.
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
from holdfast.xla.compat.dtypes import promote_as_in_torch, round_once
from holdfast.xla.compat.importing import torchax
from holdfast.xla.compat.inplace import missing
from holdfast.xla.compat.tensors import any_traced, is_ours, is_traced, resolve_slice_bounds

torchax()

from torchax import tensor as _tensor  # noqa: E402  (imports only with the mends)
from torchax.ops import jtorch, ops_registry  # noqa: E402

Tensor = _tensor.Tensor

_DEVICES = frozenset({"jax", "privateuseone", "meta"})


class Environment(_tensor.Environment):
    """torchax's, with what it lacks.

    `attending` goes to `attention`: the mesh that arrays are split over, the platform that it is
    compiled for.
    """

    def __init__(self, overrides: Mapping[Any, Any] | None = None, **attending: Any) -> None:
        super().__init__()
        self._names = _DEVICES | {torch._C._get_privateuse1_backend_name()}
        self._ops |= missing()
        self._ops |= round_once(self._ops)
        self._ops |= promote_as_in_torch(self._ops)
        self._decomps |= round_once(self._decomps)
        self._ops |= ops.builtin()
        self._ops |= _corrected_ops(attending)
        self._ops |= overrides or {}

    def dispatch(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        """Compute at once what depends on nothing that is traced."""
        kwargs = kwargs or {}
        args, kwargs = self._make_constants(args, kwargs)
        if _is_random(func) or any_traced((args, kwargs)):
            return super().dispatch(func, types, args, kwargs)
        with jax.ensure_compile_time_eval():
            return super().dispatch(func, types, args, kwargs)

    def _get_op_or_decomp(self, func: Any) -> Any:
        """Fall back to torch's own decomposition, which torch skips in inference mode."""
        try:
            return super()._get_op_or_decomp(func)
        except _tensor.OperatorNotFound:
            found = ops.decompose(func)
            if found is None:
                raise
            return found

    def _make_constants(self, args: Any, kwargs: Any) -> Any:
        leaves = [one for one in tree.tree_leaves((args, kwargs)) if isinstance(one, torch.Tensor)]
        ours = sum(map(is_ours, leaves))
        if ours in (0, len(leaves)):
            return args, kwargs
        return tree.tree_map_only(torch.Tensor, self.constant, (args, kwargs))

    def constant(self, value: torch.Tensor) -> Any:
        """Convert a CPU tensor to torchax's; others are returned unchanged."""
        if is_ours(value):
            return value
        with jax.ensure_compile_time_eval():
            return _tensor.Tensor(self.t2j_copy(value), self)

    def j2t_copy(self, args: Any) -> Any:
        """Copy: torchax returns JAX's own memory, which must not be written."""
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
    """Not evaluated at trace time: each run must draw anew."""
    if isinstance(func, torch._ops.OpOverload):
        return torch.Tag.nondeterministic_seeded in func.tags
    return func in _RANDOM_FUNCTIONS


_RANDOM_FUNCTIONS = frozenset(
    {torch.randn, torch.rand, torch.randint, torch.randn_like, torch.rand_like, torch.normal}
    | {torch.bernoulli, torch.multinomial, torch.randperm, torch.randint_like}
)


def _corrected_ops(attending: Mapping[str, Any]) -> Mapping[Any, Any]:
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
    indexes = resolve_slice_bounds(indexes)
    has_tensors = any(isinstance(one, torch.Tensor) for one in tree.tree_leaves(indexes))
    if has_tensors and hasattr(self, "view_info"):
        self = self.torch()
    return jtorch.getitem(self, indexes)
