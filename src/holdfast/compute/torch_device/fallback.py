"""What no op of the table computes: torch's own decomposition, else torch's CPU kernel.

Covers: computing an overload on the host, over the same memory; counting it, refusing it.
Leaves to others: ops of the table (`handlers`), layouts other than strided (`sparse`).
Promise: arguments that an overload writes to are written on the device; `HOLDFAST_STRICT=1` refuses
what only the host can compute; random numbers come from the device's generator.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

import torch

from holdfast.compute import engine as engines
from holdfast.compute.torch_device import seeds, storage
from holdfast.compute.torch_device.resolve import name_of

Tensor = torch.Tensor


class _Apart(threading.local):
    """Overloads that are being taken apart in this thread."""

    def __init__(self) -> None:
        self.overloads: set[Any] = set()


_apart = _Apart()


def handler(overload: Any) -> Callable[..., Any]:
    """What computes an overload that has no counterpart in the table."""
    outs = [a.name for a in overload._schema.arguments if a.is_out]

    def compute(*args: Any, **kwargs: Any) -> Any:
        # A decomposition that comes back to its own overload has nothing more to say.
        if outs or overload in _apart.overloads:
            return on_host(overload, args, kwargs)
        apart = decomposition(overload)
        if apart is None:
            return on_host(overload, args, kwargs)
        _apart.overloads.add(overload)
        try:
            return apart(*args, **kwargs)
        finally:
            _apart.overloads.discard(overload)

    return compute


@functools.cache
def decomposition(overload: Any) -> Callable[..., Any] | None:
    """How torch itself takes an overload apart into others."""
    from torch._decomp import decomposition_table

    return decomposition_table.get(overload)


def on_host(overload: Any, args: Any, kwargs: Any) -> Any:
    """Compute by torch on the CPU over the device's memory: counted, refused where it is strict."""
    engines.count_fallback(engines.ENGINES["numpy"], name_of(overload))
    return computed_by_torch(overload, args, kwargs)


def computed_by_torch(overload: Any, args: Any, kwargs: Any) -> Any:
    """The result of torch's CPU kernel on the device."""
    names = [a.name for a in overload._schema.arguments]
    if "generator" not in names:
        return _computed(overload, args, kwargs)
    given = dict(zip(names, args, strict=False)) | kwargs
    if given.get("generator") is not None:
        return _computed(overload, args, kwargs)
    generator = given["generator"] = torch.Generator().set_state(seeds.get_rng_state())
    try:
        return _computed(overload, (), given)
    finally:
        seeds.set_rng_state(generator.get_state())


def _computed(overload: Any, args: Any, kwargs: Any) -> Any:
    places: dict[int, Tensor] = {}
    targets = {a.name: kwargs[a.name] for a in overload._schema.arguments if a.is_out}
    lowered = {k: _lowered(v, places) for k, v in kwargs.items() if k not in targets}
    fresh = {k: _fresh(v) for k, v in targets.items()}
    out = overload(*(_lowered(a, places) for a in args), **lowered, **fresh)
    if targets:
        for name, target in targets.items():
            _assign(target, fresh[name])
        found = tuple(targets.values())
        return found[0] if len(found) == 1 else found
    return _raised(out, places)


def _fresh(target: Any) -> Any:
    if isinstance(target, list | tuple):
        return [_fresh(one) for one in target]
    return torch.empty(0, dtype=target.dtype)


def _assign(target: Any, value: Any) -> None:
    if isinstance(target, list | tuple):
        for one, other in zip(target, value, strict=True):
            _assign(one, other)
        return
    if target.shape != value.shape:
        storage.resize(target, tuple(value.shape))
    target.copy_(value)


def _lowered(value: Any, places: dict[int, Tensor]) -> Any:
    if isinstance(value, Tensor):
        if value.device.type != storage.DEVICE:
            if value.dim() and value.device.type != "meta":
                raise storage.apart(value)
            return value
        made = lowered(value)
        places[id(made)] = value
        places[id(value)] = made  # its id is not given to another while this runs
        return made
    if isinstance(value, list | tuple):
        return type(value)(_lowered(v, places) for v in value)
    if isinstance(value, torch.device):
        return torch.device("cpu")
    return value


def lowered(value: Tensor) -> Tensor:
    """A tensor of the device on the CPU, over the same memory."""
    if value.layout is torch.strided:
        return storage.on_cpu(storage.down(value))
    from holdfast.compute.torch_device import sparse

    return sparse.lowered(value)


def raised(value: Tensor) -> Tensor:
    """A tensor of the CPU on the device, over the same memory."""
    if value.layout is torch.strided:
        return storage.up(storage.from_cpu(value))
    from holdfast.compute.torch_device import sparse

    return sparse.raised(value)


def _raised(value: Any, places: dict[int, Tensor]) -> Any:
    if isinstance(value, Tensor):
        before = places.get(id(value))  # there if it was changed in place
        if before is None:
            return raised(value)
        return before if before.layout is torch.strided else before.copy_(raised(value))
    if isinstance(value, list | tuple):
        return type(value)(_raised(v, places) for v in value)
    return value
