"""A tensor, and functions of tensors in torchax's environment and in ours."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import torch

from holdfast.xla.arrays import to_jax, to_torch
from holdfast.xla.compat import torchax
from holdfast.xla.compat.environment import Environment, Tensor

X = torch.arange(12.0).reshape(3, 4)


def plain() -> Any:
    """torchax's own environment, with its own operators."""
    return torchax().tensor.Environment()


def run(env: Any, function: Callable[..., Any], *given: torch.Tensor) -> torch.Tensor:
    """A function of tensors in an environment, at once."""
    with torch.no_grad(), env:
        answer = function(*(Tensor(to_jax(one), env) for one in given))
    return to_torch(answer.jax())


def jitted(env: Any, function: Callable[..., Any], *given: torch.Tensor) -> torch.Tensor:
    """The same inside jax.jit."""

    def inner(*arrays: jax.Array) -> jax.Array:
        with torch.no_grad(), env:
            return function(*(Tensor(one, env) for one in arrays)).jax()

    return to_torch(jax.jit(inner)(*map(to_jax, given)))


def fails(env: Any, function: Callable[..., Any], *given: torch.Tensor) -> bool:
    """Whether it raises or gives other numbers than torch, jitted."""
    try:
        found = jitted(env, function, *given)
    except Exception:  # noqa: BLE001  of JAX, torch or torchax
        return True
    return not torch.allclose(found, function(*(one.clone() for one in given)), equal_nan=True)


def right(function: Callable[..., Any], *given: torch.Tensor) -> None:
    """As torch, jitted and at once, in our environment."""
    expected = function(*(one.clone() for one in given))
    for way in (jitted, run):
        torch.testing.assert_close(way(Environment(), function, *given), expected)
