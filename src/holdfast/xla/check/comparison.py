"""A tiny model on torch and on XLA: how far apart the results are.

Errors are relative to the largest value of torch's float32 result, so that 1e-4 means the same for
every model.
"""

from __future__ import annotations

import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import jax
import numpy as np
import torch
from torch.utils._pytree import tree_map_only

from holdfast.xla import tiny
from holdfast.xla.arrays import to_jax, to_numpy
from holdfast.xla.compat import flex
from holdfast.xla.module.calls import ModuleCall


def on_torch(made: tiny.Made, dtype: torch.dtype = torch.float32) -> list[np.ndarray]:
    """The floating arrays of torch's output, in order."""
    with torch.no_grad(), _quiet(), flex.everywhere():
        return floats(made(**_cast(made.inputs(), dtype)))


def on_xla(made: tiny.Made, dtype: torch.dtype = torch.float32) -> list[np.ndarray]:
    """The floating arrays of XLA's output on one device, in order."""
    call = ModuleCall(made.module, made.tiny.method)
    function, given = make_traceable(call, _cast(made.inputs(), dtype), made.tiny.static)
    weights = {name: to_jax(tensor) for name, tensor in call.weights.items()}
    # What runs once need not be fast: the CPU's code comes in half the time.
    is_cpu = jax.default_backend() == "cpu"
    options = {"xla_backend_optimization_level": "0"} if is_cpu else None
    with _quiet():
        return floats(jax.jit(function, compiler_options=options)(weights, given))


def make_traceable(
    call: ModuleCall, inputs: Mapping[str, Any], static: Sequence[str] = ()
) -> tuple[Callable[[Any, Any], Any], list[jax.Array]]:
    """A function of (weights, arrays), and the arrays: every tensor that is not in a static input.

    The inputs themselves are left alone: each trace gets its own containers.
    """
    changing = {key: value for key, value in inputs.items() if key not in static}
    leaves, tree = jax.tree.flatten(changing, is_leaf=lambda one: one is None)
    places = [i for i, one in enumerate(leaves) if isinstance(one, torch.Tensor)]

    def function(weights: Any, given: Sequence[jax.Array]) -> Any:
        filled = list(leaves)
        for place, one in zip(places, given, strict=True):
            filled[place] = one
        return call(weights, {**inputs, **jax.tree.unflatten(tree, filled)})

    return function, [to_jax(leaves[place]) for place in places]


def floats(answer: Any) -> list[np.ndarray]:
    """The floating and complex arrays of an output of torch or JAX."""
    if isinstance(answer, Mapping):  # JAX sorts them
        answer = [answer[key] for key in sorted(answer)]
    if isinstance(answer, list | tuple):
        return [one for part in answer for one in floats(part)]
    if isinstance(answer, torch.Tensor):
        answer = to_numpy(answer)
    if not isinstance(answer, np.ndarray | jax.Array):
        return []
    if jax.numpy.issubdtype(answer.dtype, jax.numpy.floating):
        return [np.asarray(answer).astype(np.float32)]
    return [np.asarray(answer)] if jax.numpy.iscomplexobj(answer) else []


def distance(found: Sequence[np.ndarray], truth: Sequence[np.ndarray]) -> float:
    """The largest difference relative to the largest element; infinite for other shapes and NaN."""
    if [one.shape for one in found] != [one.shape for one in truth]:
        return float("inf")
    return max((_apart(*pair) for pair in zip(found, truth, strict=True)), default=float("inf"))


def _apart(found: np.ndarray, truth: np.ndarray) -> float:
    if not truth.size:
        return 0.0
    difference = float(np.abs(found - truth).max())
    largest = float(np.abs(truth).max())
    if not np.isfinite(difference):
        return float("inf")
    return difference / largest if largest else difference


def _cast(inputs: Any, dtype: torch.dtype) -> Any:
    def cast(one: torch.Tensor) -> torch.Tensor:
        return one.to(dtype) if one.is_floating_point() else one

    return tree_map_only(torch.Tensor, cast, inputs)


def failure_of(exc: Exception) -> str:
    """What was raised, and the last line of a model or of Holdfast that led to it."""
    text = next(iter(str(exc).splitlines()), "")
    frames = traceback.extract_tb(exc.__traceback__)
    for part in ("/diffusers/models/", "/transformers/models/", "/holdfast/"):
        for frame in reversed(frames):
            if part in frame.filename:
                place = f"{frame.filename.rpartition('/')[2]}:{frame.lineno}"
                return f"{type(exc).__name__}: {text} ({place}: {frame.line})"
    return f"{type(exc).__name__}: {text}"


@contextmanager
def _quiet() -> Iterator[None]:
    """Models warn of what they will drop, and of slow ways: nothing that changes an answer."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
