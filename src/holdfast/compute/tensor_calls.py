"""How lower modules call ops on tensors without importing `tensors`, which imports them.

`tensors.custom_tensor` registers its functions here when it is imported; a call before that
imports it.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any


class _TensorCalls:
    """Functions of `tensors`, registered when it is imported."""

    apply: Callable[..., Any]  # (op, args, kwargs): compute an op on tensors
    into: Callable[..., Any]  # (out, op, args, kwargs): the same, and write the result to `out`
    in_place: Callable[..., Any]  # (name): the in-place form of an op
    decompose: Callable[..., Any]  # (op, engine, args, kwargs): compute on arrays without a kernel

    def register(self, **functions: Callable[..., Any]) -> None:
        self.__dict__.update(functions)

    def __getattr__(self, name: str) -> Any:  # only called while a name is not registered
        if name.startswith("_"):
            raise AttributeError(name)
        importlib.import_module("holdfast.compute.tensors.custom_tensor")
        return self.__dict__[name]


tensor_calls = _TensorCalls()
