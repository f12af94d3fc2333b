"""What no op of the table computes: torch's own decomposition, else torch's CPU kernel.

Covers: computing an overload on the host, over the same memory where it sees that, else on a copy;
counting it, refusing it.
Leaves to others: ops of the table (`handlers`), layouts other than strided (`sparse`).
Promise: arguments that an overload writes to are written on the device; `HOLDFAST_STRICT=1` refuses
what only the host can compute; random numbers come from the device's generator.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch

from holdfast.compute import engine as engines
from holdfast.compute.torch_device import crossing, seeds, selecting, storage
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
    """Compute by torch on the CPU for the device: counted, refused where it is strict."""
    engines.count_fallback(_engine(args, kwargs), name_of(overload))
    return computed_by_torch(overload, args, kwargs)


def _engine(args: Any, kwargs: Any) -> Any:
    """Who would have computed a call: the engine of its tensors, or that of new ones."""
    if not selecting.choice.elsewhere:
        return engines.ENGINES[selecting.HOST]
    held = [getattr(t.untyped_storage(), "held", None) for t in _parts((args, kwargs))]
    found, mixed = selecting.among(held)
    if found is not None:
        return found
    host = engines.ENGINES[selecting.HOST]
    return host if mixed else crossing.chosen_for(kwargs.get("device"))


def _parts(value: Any) -> Iterator[Tensor]:
    """All strided tensors of the device among arguments; of sparse ones their values."""
    if isinstance(value, Tensor):
        if value.device.type == storage.DEVICE:
            yield value if value.layout is torch.strided else _values(value)
    elif isinstance(value, dict):
        yield from _parts(list(value.values()))
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _parts(one)


def _values(value: Tensor) -> Tensor:
    return value._values() if value.layout is torch.sparse_coo else value.values()


def computed_by_torch(overload: Any, args: Any, kwargs: Any) -> Any:
    """The result of torch's CPU kernel on the device."""
    names = [a.name for a in overload._schema.arguments]
    if "generator" not in names:
        return _computed(overload, args, kwargs)
    given = dict(zip(names, args, strict=False)) | kwargs
    own = given.get("generator")
    if own is not None and own.device.type == "cpu":
        return _computed(overload, args, kwargs)
    # The device's generators are the CPU's, under another name.
    state = seeds.get_rng_state() if own is None else own.get_state()
    generator = given["generator"] = torch.Generator().set_state(state)
    try:
        return _computed(overload, (), given)
    finally:
        if own is None:
            seeds.set_rng_state(generator.get_state())
        else:
            own.set_state(generator.get_state())


def _computed(overload: Any, args: Any, kwargs: Any) -> Any:
    engine = _engine(args, kwargs)
    taken: dict[int, Tensor] = {}
    targets = {a.name: kwargs[a.name] for a in overload._schema.arguments if a.is_out}
    given = [_lowered(a, taken) for a in args]
    named = {k: _lowered(v, taken) for k, v in kwargs.items() if k not in targets}
    fresh = {k: _fresh(v) for k, v in targets.items()}
    out = overload(*given, **named, **fresh)
    if targets:
        for name, target in targets.items():
            _assign(target, fresh[name])
        found = tuple(targets.values())
        return found[0] if len(found) == 1 else found
    if selecting.choice.elsewhere:
        _write_back(overload, (args, kwargs), (given, named))
    return _raised(out, taken, engine)


def _write_back(overload: Any, ours: Any, theirs: Any) -> None:
    """Give arguments that an overload has written to their new numbers, where it had copies."""
    for place, argument in enumerate(overload._schema.arguments):
        if argument.alias_info is None or not argument.alias_info.is_write:
            continue
        pair = [
            args[place] if place < len(args) else kwargs.get(argument.name)
            for args, kwargs in (ours, theirs)
        ]
        for target, value in zip(*map(_listed, pair), strict=True):
            if target.layout is torch.strided and not storage.is_on_host(target):
                _assign(target, value)


def _listed(value: Any) -> list[Tensor]:
    if isinstance(value, list | tuple):
        return [one for one in value if isinstance(one, Tensor)]
    return [value] if isinstance(value, Tensor) else []


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


def _lowered(value: Any, taken: dict[int, Tensor]) -> Any:
    if isinstance(value, Tensor):
        if value.device.type != storage.DEVICE:
            if value.dim() and value.device.type != "meta":
                raise storage.apart(value)
            return value
        made = lowered(value)
        taken[id(made)] = value
        taken[id(value)] = made  # its id is not given to another while this runs
        return made
    if isinstance(value, list | tuple):
        return type(value)(_lowered(v, taken) for v in value)
    if isinstance(value, torch.device):
        return torch.device("cpu")
    return value


def lowered(value: Tensor) -> Tensor:
    """A tensor of the device on the CPU, over the same memory where the host sees that."""
    if value.layout is torch.strided:
        made = storage.on_cpu(storage.down(value))
        return made if storage.is_on_host(value) else _ordered(made, value)
    from holdfast.compute.torch_device import sparse

    return sparse.lowered(value)


def _ordered(made: Tensor, like: Tensor) -> Tensor:
    """A copy in the order that a tensor has in memory: kernels give their results the same."""
    if like.is_contiguous() or not torch.ops.aten.is_non_overlapping_and_dense(like):
        return made
    return torch.empty_strided(like.shape, like.stride(), dtype=like.dtype).copy_(made)


def raised(value: Tensor, engine: Any) -> Tensor:
    """A tensor of the CPU on the device: over the same memory where NumPy computes, else a copy."""
    if value.layout is not torch.strided:
        from holdfast.compute.torch_device import sparse

        return sparse.raised(value, engine)
    if engine.name == selecting.HOST:
        return storage.up(storage.from_cpu(value))
    return _in_order(engine.upload(storage.from_cpu(value)), value)


def _in_order(array: Any, like: Tensor) -> Tensor:
    made = storage.up(array)
    if like.is_contiguous() or not torch.ops.aten.is_non_overlapping_and_dense(like):
        return made
    return torch.empty_strided(
        like.shape, like.stride(), dtype=like.dtype, device=made.device
    ).copy_(made)


def _raised(value: Any, taken: dict[int, Tensor], engine: Any) -> Any:
    if isinstance(value, Tensor):
        before = taken.get(id(value))  # there if it was changed in place
        if before is None:
            return raised(value, engine)
        return before if before.layout is torch.strided else before.copy_(raised(value, engine))
    if isinstance(value, list | tuple):
        return type(value)(_raised(v, taken, engine) for v in value)
    return value
