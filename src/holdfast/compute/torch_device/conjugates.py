"""Conjugates and minus signs that torch has noted but not computed.

Covers: copies that read such a note, products that torch hands on with one.
Leaves to others: everything else: torch computes a note before it calls the device.
Promise: an op never takes the numbers in memory for those that a note stands over.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

Tensor = torch.Tensor
KEYS = ("Conjugate", "Negative")

# torch would compute the note first, by a copy, which would compute the note first.
COPIES = ("_copy_from", "_copy_from_and_resize")

# BLAS takes conjugates as they are, so torch does not compute them for these.
PRODUCTS = frozenset(
    (
        *("mm", "mm.out", "bmm", "bmm.out", "dot", "vdot"),
        *("addmm", "addmm.out", "addmm_", "baddbmm", "baddbmm.out", "baddbmm_"),
        *("linalg_solve_triangular", "linalg_solve_triangular.out"),
    )
)


def let_copies_through(aten: Any) -> None:
    """Have copies see a note."""
    for name in COPIES:
        for key in KEYS:
            aten.impl(name, torch.library.fallthrough_kernel, key)


def resolving(function: Callable[..., Any]) -> Callable[..., Any]:
    """A handler that computes notes first; a noted target is written through its note."""

    def call(*args: Any, **kwargs: Any) -> Any:
        for value in (*args, *kwargs.values()) if kwargs else args:
            if isinstance(value, Tensor) and (value.is_conj() or value.is_neg()):
                break
        else:
            return function(*args, **kwargs)
        out = function(*map(_resolved, args), **{k: _resolved(v) for k, v in kwargs.items()})
        target = kwargs.get("out")
        if target is not None:
            return target if out is target else target.copy_(out)
        return out

    return call


def resolving_in_place(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same for a handler that writes to its first argument."""
    inner = resolving(function)

    def call(self: Tensor, *args: Any, **kwargs: Any) -> Any:
        if not (self.is_conj() or self.is_neg()):
            return inner(self, *args, **kwargs)
        return self.copy_(inner(_resolved(self), *args, **kwargs))

    return call


def _resolved(value: Any) -> Any:
    return value.resolve_conj().resolve_neg() if isinstance(value, Tensor) else value
