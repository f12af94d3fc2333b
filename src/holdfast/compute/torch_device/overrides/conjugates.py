"""Lazy conjugate and negative bits of tensors.

torch resolves them before it calls the device, but for copies and matrix products: those are here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

Tensor = torch.Tensor
KEYS = ("Conjugate", "Negative")

# torch would resolve the bits first, by a copy, which would resolve them first.
COPIES = ("_copy_from", "_copy_from_and_resize")

# BLAS takes conjugates as they are, so torch does not resolve them for these.
PRODUCTS = frozenset(
    (
        *("mm", "mm.out", "bmm", "bmm.out", "dot", "vdot"),
        *("addmm", "addmm.out", "addmm_", "baddbmm", "baddbmm.out", "baddbmm_"),
        *("linalg_solve_triangular", "linalg_solve_triangular.out"),
    )
)


def let_copies_through(aten: Any) -> None:
    """Have copies called with unresolved bits."""
    for name in COPIES:
        for key in KEYS:
            aten.impl(name, torch.library.fallthrough_kernel, key)


def resolve_for(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The handler of an overload, which resolves bits itself where torch does not."""
    if name not in PRODUCTS:
        return function
    return (resolve_in_place if name.endswith("_") else resolve_arguments)(function)


def resolve_arguments(function: Callable[..., Any]) -> Callable[..., Any]:
    """A handler that resolves its arguments first; a target with bits set is copied to."""

    def call(*args: Any, **kwargs: Any) -> Any:
        for value in (*args, *kwargs.values()) if kwargs else args:
            if isinstance(value, Tensor) and (value.is_conj() or value.is_neg()):
                break
        else:
            return function(*args, **kwargs)
        out = function(*map(_resolve, args), **{k: _resolve(v) for k, v in kwargs.items()})
        target = kwargs.get("out")
        if target is not None:
            return target if out is target else target.copy_(out)
        return out

    return call


def resolve_in_place(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same for a handler that writes to its first argument."""
    inner = resolve_arguments(function)

    def call(self: Tensor, *args: Any, **kwargs: Any) -> Any:
        if not (self.is_conj() or self.is_neg()):
            return inner(self, *args, **kwargs)
        return self.copy_(inner(_resolve(self), *args, **kwargs))

    return call


def _resolve(value: Any) -> Any:
    return value.resolve_conj().resolve_neg() if isinstance(value, Tensor) else value
