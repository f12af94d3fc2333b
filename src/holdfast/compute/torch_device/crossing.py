"""Arrays of several engines in one call, and numbers from one engine to another.

Covers: ops on the engine that the arrays of a call belong to, copies between any two arrays.
Leaves to others: tensors (`storage`, `elsewhere`), which engine is chosen (`selecting`).
Promise: NumPy's arrays are uploaded where others take part, and get what an op has changed in them;
arrays of two devices are refused.
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
from holdfast.compute.schema import Parameter
from holdfast.compute.torch_device import selecting
from holdfast.compute.torch_device.errors import as_torch_has_it
from holdfast.compute.torch_device.places import place
from holdfast.compute.torch_device.selecting import HOST, choice

Array = Any
_ndarray = numpy.ndarray
_host: Any = ENGINES[HOST]


def chosen_for(device: torch.device | None) -> Any:
    """The engine for new tensors on a device, or on the current one. Raises Refused."""
    if choice.name == HOST and (device is None or not device.index):
        return _host
    return selecting.chosen(place(device))


def to_host(array: Array) -> Any:
    """The numbers as an array of NumPy's: itself if it is one."""
    return array if type(array) is _ndarray else engine_of(array).download(array)


def write(target: Array, source: Array) -> None:
    """Copy numbers between any two arrays. Raises ValueError for shapes that do not meet."""
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
    """Raises ValueError where numbers of a shape do not fill another one."""
    numpy.broadcast_to(numpy.broadcast_to(numpy.uint8(0), source), target)


def computed(op: Op, args: Any, kwargs: Any, engine: Callable[[], Any]) -> Any:
    """An op on the engine of its arrays; without arrays on the one that `engine` returns."""
    if not choice.elsewhere:
        return run(op, _host, args, kwargs)
    chosen, mixed = selecting.among([*args, *kwargs.values()] if kwargs else args)
    if chosen is None:
        chosen = _host if mixed else engine()
    if not mixed or chosen.name == HOST:
        return run(op, chosen, args, kwargs)
    there = [placed(a, chosen) for a in args]
    named = kwargs and {k: placed(v, chosen) for k, v in kwargs.items()}
    out = run(op, chosen, there, named)
    for parameter, before, after in zip(op.schema.parameters, args, there, strict=False):
        if before is not after and _changes(parameter):
            write(before, after)
    return out


def _changes(parameter: Parameter) -> bool:
    """Whether an op may change an argument; some signatures are silent of running statistics."""
    return "!" in (parameter.alias or "") or parameter.name in ("running_mean", "running_var")


def placed(value: Any, engine: Any) -> Any:
    """An argument with NumPy's arrays on an engine."""
    if isinstance(value, numpy.ndarray):
        return engine.upload(value)
    if isinstance(value, list | tuple):
        return [placed(one, engine) for one in value]
    return value


def by_name(name: str, *args: Any) -> Array:
    """What an op of the table makes of arrays."""
    try:
        return computed(OPS[name], list(args), {}, selecting.chosen)
    except HoldfastError as exc:
        raise as_torch_has_it(exc) from exc.__cause__
