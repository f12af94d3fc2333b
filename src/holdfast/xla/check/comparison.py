"""A tiny model on torch and on XLA: how far apart the results are.

Runs both in float32 and bfloat16, on one device and on several. A model that fails raises nothing:
`Comparison.failure` has the reason and place. Errors are relative to the largest value of torch's
float32 result, so that 1e-4 means the same for every model.
"""

from __future__ import annotations

import copy
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np
import torch
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from torch import nn

from holdfast.base.errors import BadInput
from holdfast.topology.amx import disable_broken_amx
from holdfast.xla import tiny
from holdfast.xla.arrays import to_jax, to_numpy
from holdfast.xla.cluster.mesh import AXIS
from holdfast.xla.compat import flex
from holdfast.xla.module.calls import ModuleCall
from holdfast.xla.sharding.rules import rules_for

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}


@dataclass(frozen=True)
class Comparison:
    """The result of a comparison. Errors are None where there is nothing to compare."""

    name: str
    dtype: str
    devices: int
    static: tuple[str, ...]  # inputs that are constants of the program
    error: float | None = None  # of XLA on one device, against torch in float32
    reference_error: float | None = None  # of torch in this dtype, against torch in float32
    reference_failure: str | None = None  # what torch itself raised in this dtype
    apart: float | None = None  # several devices against one
    seconds: float = 0.0  # tracing, compiling and the first run
    failure: str | None = None  # what was raised, and by which line of the model


def compare(name: str, dtype: str = "f32", devices: int = 1) -> Comparison:
    """Run the tiny model `library:ClassName` on torch and on XLA.

    `devices`: also on so many, with weights split by the derived rules, against one.
    Raises BadInput for an unknown dtype or too many devices, NotFound for the name.
    """
    _check(dtype, devices)
    disable_broken_amx()
    made = tiny.make(name)
    begun = Comparison(name, dtype, devices, made.tiny.static)
    try:
        truth = on_torch(made)
        if dtype != "f32":
            made = _to_dtype(made, DTYPES[dtype])
            begun = _add_reference(begun, made, truth)
        return _run_on_xla(begun, made, truth)
    except Exception as exc:  # noqa: BLE001  whatever a model raises is the answer
        return replace(begun, failure=failure_of(exc))


def _check(dtype: str, devices: int) -> None:
    if dtype not in DTYPES:
        raise BadInput(f"cannot compare in {dtype!r}", expected=f"one of {', '.join(DTYPES)}")
    if not 1 <= devices <= jax.device_count():
        raise BadInput(
            f"cannot compare on {devices} devices: JAX has {jax.device_count()}",
            hint=f"XLA_FLAGS=--xla_force_host_platform_device_count={max(devices, 1)}",
        )


def _to_dtype(made: tiny.Made, dtype: torch.dtype) -> tiny.Made:
    module = nn.Module.to(copy.deepcopy(made.module), dtype)  # diffusers' own `to` warns
    return replace(made, module=module)


def _add_reference(begun: Comparison, made: tiny.Made, truth: Sequence[np.ndarray]) -> Comparison:
    """Not every model runs in bfloat16 on torch's CPU."""
    try:
        found = on_torch(made, DTYPES[begun.dtype])
    except Exception as exc:  # noqa: BLE001  whatever a model raises is the answer
        return replace(begun, reference_failure=failure_of(exc))
    return replace(begun, reference_error=distance(found, truth))


def _run_on_xla(begun: Comparison, made: tiny.Made, truth: Sequence[np.ndarray]) -> Comparison:
    start = time.perf_counter()
    program = TinyProgram(made, DTYPES[begun.dtype])
    found = program.run()
    seconds = time.perf_counter() - start
    several = program.run(begun.devices) if begun.devices > 1 else None
    return replace(
        begun,
        error=distance(found, truth),
        apart=None if several is None else distance(several, found),
        seconds=seconds,
    )


# ---- the two sides


def on_torch(made: tiny.Made, dtype: torch.dtype = torch.float32) -> list[np.ndarray]:
    """The floating arrays of torch's output, in order."""
    with torch.no_grad(), _quiet(), flex.everywhere():
        return floats(made(**_cast(made.inputs(), dtype)))


def on_xla(
    made: tiny.Made, dtype: torch.dtype = torch.float32, devices: int = 1
) -> list[np.ndarray]:
    """The floating arrays of XLA's output, in order."""
    return TinyProgram(made, dtype).run(devices)


class TinyProgram:
    """A tiny model for XLA. It is traced once, and compiled for each number of devices."""

    def __init__(self, made: tiny.Made, dtype: torch.dtype) -> None:
        self._module = made.module
        self._call = ModuleCall(made.module, made.tiny.method)
        inputs = _cast(made.inputs(), dtype)
        function, self._given = make_traceable(self._call, inputs, made.tiny.static)
        self._function = jax.jit(function, compiler_options=_run_once())

    def run(self, devices: int = 1) -> list[np.ndarray]:
        """With the weights split by the derived rules, everything else whole on each device."""
        mesh = Mesh(np.array(jax.devices()[:devices]), (AXIS,))
        rules = rules_for(self._module, size=devices)
        weights = {
            name: jax.device_put(to_jax(tensor), NamedSharding(mesh, rules[name].spec))
            for name, tensor in self._call.weights.items()
        }
        given = jax.device_put(self._given, NamedSharding(mesh, PartitionSpec()))
        with _quiet():
            return floats(self._function(weights, given))


def _run_once() -> dict[str, str] | None:
    """What runs once need not be fast: the CPU's code comes in half the time."""
    is_cpu = jax.default_backend() == "cpu"
    return {"xla_backend_optimization_level": "0"} if is_cpu else None


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


# ---- comparing arrays


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


def _cast(value: Any, dtype: torch.dtype) -> Any:
    """Cast floating tensors."""
    if isinstance(value, torch.Tensor):
        return value.to(dtype) if value.is_floating_point() else value
    if isinstance(value, dict):
        return {key: _cast(one, dtype) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_cast(one, dtype) for one in value)
    return value


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
