"""Corrected methods of torchax's tensors and views.

Device names, values that are known while tracing, `type_as`, assignment. `ORIGINALS` keeps the
replaced methods, for the probes of the tests.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import torch
from jax.core import Tracer
from torch.utils import _pytree as tree

from holdfast.xla.compat.writing import write_slice

ORIGINALS: dict[str, Any] = {}


def mend() -> None:
    """Change the two classes, once."""
    from torchax.ops import mappings
    from torchax.tensor import Tensor
    from torchax.view import NarrowInfo, View

    if ORIGINALS:
        return
    device = torch.device(torch._C._get_privateuse1_backend_name(), 0)
    for cls in (Tensor, View):
        # torchax says "jax", which torch does not know once the device has another name.
        _put(cls, "device", property(lambda _: device))
        # type_as changed the tensor it was asked of, and views had none.
        _put(cls, "type_as", lambda self, other: self.to(other.dtype))
    # Operations that look into a tensor also get views.
    _put(View, "_elem", property(lambda self: self.jax()))
    _put(View, "tolist", lambda self: self.jax().tolist())
    _put(Tensor, "__setitem__", _assign(Tensor.__setitem__))
    _put(View, "__setitem__", _assign_through)
    _put(NarrowInfo, "update_tensor", lambda self, new, old: write_slice(old, self.slices, new))
    # JAX warned of every float64 and int64 that it makes 32 bits wide, as in rotary tables.
    ORIGINALS["mappings.t2j_dtype"] = mappings.t2j_dtype
    mappings.t2j_dtype = _canonicalize(mappings.t2j_dtype)
    # These compute without asking the environment, which would know that they can be computed now.
    for cls, name in (
        *((Tensor, name) for name in ("flatten", "__setitem__", "tolist", "detach")),
        *((View, name) for name in ("jax", "__setitem__", "tolist")),
    ):
        setattr(cls, name, compute_now(getattr(cls, name)))


def _put(cls: Any, name: str, value: Any) -> None:
    ORIGINALS[f"{cls.__name__}.{name}"] = cls.__dict__.get(name)
    setattr(cls, name, value)


def _canonicalize(original: Callable[[torch.dtype], Any]) -> Callable[[torch.dtype], Any]:
    def t2j_dtype(dtype: torch.dtype) -> Any:
        return jax.dtypes.canonicalize_dtype(original(dtype))

    return t2j_dtype


def is_ours(value: Any) -> bool:
    """Whether torchax made this tensor."""
    return isinstance(value, torch.Tensor) and hasattr(value, "_env")


def is_traced(value: Any) -> bool:
    """Whether a value is known only when the compiled program runs."""
    while hasattr(value, "view_info"):
        value = value.parent
    if is_ours(value):
        value = value._elem
    return isinstance(value, Tracer)


def any_traced(values: Any) -> bool:
    """Whether one of the leaves is."""
    return any(is_traced(one) for one in tree.tree_leaves(values))


def compute_now(function: Callable[..., Any]) -> Callable[..., Any]:
    """Evaluate at trace time where no input is traced: shapes may depend on the result."""

    @functools.wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        if any_traced((args, kwargs)):
            return function(*args, **kwargs)
        with jax.ensure_compile_time_eval():
            return function(*args, **kwargs)

    return wrapped


def resolve_slice_bounds(key: Any) -> Any:
    """Convert tensors that bound slices of an index to integers."""
    if isinstance(key, tuple):
        return tuple(resolve_slice_bounds(one) for one in key)
    if isinstance(key, slice):
        return slice(*(_to_int(one) for one in (key.start, key.stop, key.step)))
    return key


def _to_int(value: Any) -> Any:
    return int(value) if isinstance(value, torch.Tensor) else value


def _assign(original: Callable[..., None]) -> Callable[..., None]:
    """torch drops leading axes of length 1 from what is assigned, and takes tensors of the CPU."""

    def setitem(self: Any, key: Any, value: Any) -> None:
        inside, found = _arrays(self._env, (resolve_slice_bounds(key), value))
        if _picks_by_mask(inside):
            original(self, *self._env.j2t_iso((inside, found)))
        else:
            self._elem = write_slice(self._elem, inside, found)

    return setitem


def _assign_through(self: Any, key: Any, value: Any) -> None:
    """Assign through a view, where torchax took a mask for an index."""
    whole = self.torch()
    whole[key] = value
    self.update(whole)


def _arrays(env: Any, values: Any) -> Any:
    constant = getattr(env, "constant", lambda one: one)
    return env.t2j_iso(tree.tree_map_only(torch.Tensor, constant, values))


def _picks_by_mask(key: Any) -> bool:
    keys = key if isinstance(key, tuple) else (key,)
    return any(isinstance(one, jax.Array) and one.dtype == bool for one in keys)
