"""Run an op on the engine that its arrays belong to; copy between arrays of any two engines.

NumPy's arrays are uploaded where an argument is of another engine, and get back what an op changed
in them. Arrays of two devices are refused.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy
import torch

from holdfast.base.errors import HoldfastError
from holdfast.compute.engine import ENGINES, engine_of, run
from holdfast.compute.ops import OPS
from holdfast.compute.ops.table import Op
from holdfast.compute.torch_device.api import engine_choice
from holdfast.compute.torch_device.api.current_device import device_index
from holdfast.compute.torch_device.api.engine_choice import HOST, choice
from holdfast.compute.torch_device.error_translation import to_torch_error

Array = Any
_ndarray = numpy.ndarray
_host: Any = ENGINES[HOST]


def engine_for(device: torch.device | None) -> Any:
    """The engine for new tensors on a device; None is the current one. Raises Refused."""
    if choice.name == HOST and (device is None or not device.index):
        return _host
    return engine_choice.engine_on(device_index(device))


def to_host(array: Array) -> Any:
    """The array as one of NumPy's: itself if it is one."""
    return array if type(array) is _ndarray else engine_of(array).download(array)


def write(target: Array, source: Array) -> None:
    """Copy between any two arrays. Raises ValueError where the source does not broadcast."""
    if type(target) is _ndarray and type(source) is _ndarray:
        _host.write(target, source)
        return
    engine: Any = engine_of(target)
    if target.shape != source.shape:
        check_broadcast(source.shape, target.shape)
    if engine_of(source) is not engine:
        source = to_host(source)
        if engine.name != HOST and not getattr(engine, "reads_host", False):
            source = engine.upload(source)
    engine.write(target, source)


def check_broadcast(source: tuple[int, ...], target: tuple[int, ...]) -> None:
    """Raises ValueError where a shape does not broadcast to the target's."""
    numpy.broadcast_to(numpy.broadcast_to(numpy.uint8(0), source), target)


def compute_op(op: Op, args: Any, kwargs: Any, engine: Callable[[], Any]) -> Any:
    """Run an op on the engine of its arrays; without arrays, on the one that `engine` returns."""
    if not choice.elsewhere:
        return run(op, _host, args, kwargs)
    chosen, mixed = engine_choice.engine_of_arrays([*args, *kwargs.values()] if kwargs else args)
    if chosen is None:
        chosen = _host if mixed else engine()
    if not mixed or chosen.name == HOST:
        return run(op, chosen, args, kwargs)
    there = [place_on(a, chosen) for a in args]
    named = kwargs and {k: place_on(v, chosen) for k, v in kwargs.items()}
    out = run(op, chosen, there, named)
    for parameter, before, after in zip(op.schema.parameters, args, there, strict=False):
        # Some schemas do not mark running statistics, which are written to.
        changes = parameter.name in ("running_mean", "running_var") or "!" in (
            parameter.alias or ""
        )
        if before is not after and changes:
            write(before, after)
    return out


def place_on(value: Any, engine: Any) -> Any:
    """Upload NumPy's arrays in an argument to an engine."""
    if isinstance(value, numpy.ndarray):
        return engine.upload(value)
    if isinstance(value, list | tuple):
        return [place_on(one, engine) for one in value]
    return value


def by_name(name: str, *args: Any) -> Array:
    """Run an op of the table on arrays, by name."""
    try:
        return compute_op(OPS[name], list(args), {}, engine_choice.engine_on)
    except HoldfastError as exc:
        raise to_torch_error(exc) from exc.__cause__
