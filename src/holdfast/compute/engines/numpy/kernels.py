"""Where the NumPy engine's kernels are put together.

Covers: the decorator, and what most kernels share.
Promise: a kernel gets arrays (never NumPy scalars) and may return NumPy scalars; the engine makes
arrays of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from holdfast.base.errors import AlreadyRegistered

KERNELS: dict[str, Callable[..., Any]] = {}


def kernel(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A decorator: the function below computes these ops."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        for name in names:
            register(name, function)
        return function

    return decorate


def register(name: str, function: Callable[..., Any]) -> None:
    """Let `function` compute the op `name`. Raises AlreadyRegistered."""
    if name in KERNELS:
        raise AlreadyRegistered(f"the NumPy engine has two kernels for {name}")
    KERNELS[name] = function
