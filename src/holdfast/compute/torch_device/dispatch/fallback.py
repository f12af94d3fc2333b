"""What no op of the table computes: torch's own decomposition, else torch's CPU kernel.

The CPU kernel runs over the same memory where the host can read it, else on copies; arguments that
an overload writes to are written on the device. Fallbacks are counted, and `HOLDFAST_STRICT=1`
refuses them. Random elements come from the device's generator.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch

from holdfast.compute import engine as engines
from holdfast.compute.torch_device.api import current_device, engine_choice, seeds
from holdfast.compute.torch_device.dispatch import engine_dispatch
from holdfast.compute.torch_device.dispatch.resolve import name_of
from holdfast.compute.torch_device.storage import tensor_bridge

Tensor = torch.Tensor


class _Apart(threading.local):
    """Overloads whose decomposition runs in this thread."""

    def __init__(self) -> None:
        self.overloads: set[Any] = set()


_apart = _Apart()


def handler(overload: Any) -> Callable[..., Any]:
    """A function that computes an overload without an op in the table."""
    outs = any(a.is_out for a in overload._schema.arguments)

    def compute(*args: Any, **kwargs: Any) -> Any:
        # A decomposition that calls its own overload cannot go further.
        ends = outs or overload in _apart.overloads
        apart = None if ends else decomposition(overload)
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
    """torch's own decomposition of an overload."""
    from torch._decomp import decomposition_table

    return decomposition_table.get(overload)


def on_host(overload: Any, args: Any, kwargs: Any) -> Any:
    """Compute by torch on the CPU; counted as a fallback, refused in strict mode."""
    engines.count_fallback(_engine(args, kwargs), name_of(overload))
    return compute_by_torch(overload, args, kwargs)


def _engine(args: Any, kwargs: Any) -> Any:
    """The engine of a call's tensors, or that of new ones."""
    host = engines.ENGINES[engine_choice.HOST]
    if not engine_choice.choice.elsewhere:
        return host
    held = [getattr(t.untyped_storage(), "held", None) for t in _parts((args, kwargs))]
    found, mixed = engine_choice.engine_of_arrays(held)
    if found is None:
        return host if mixed else engine_dispatch.engine_for(kwargs.get("device"))
    return found


def _parts(value: Any) -> Iterator[Tensor]:
    """All strided tensors of the device among arguments; of sparse ones their values."""
    if isinstance(value, Tensor):
        if value.device.type == tensor_bridge.DEVICE:
            yield value if value.layout is torch.strided else _values(value)
    elif isinstance(value, dict):
        yield from _parts(list(value.values()))
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _parts(one)


def _values(value: Tensor) -> Tensor:
    return value._values() if value.layout is torch.sparse_coo else value.values()


def compute_by_torch(overload: Any, args: Any, kwargs: Any) -> Any:
    """Run torch's CPU kernel; the result is on the device."""
    names = [a.name for a in overload._schema.arguments]
    if "generator" not in names:
        return _compute(overload, args, kwargs)
    given = dict(zip(names, args, strict=False)) | kwargs
    own = given.get("generator")
    if own is not None and own.device.type == "cpu":
        return _compute(overload, args, kwargs)
    # A generator of the device has the state of a CPU generator.
    state = seeds.get_rng_state() if own is None else own.get_state()
    generator = given["generator"] = torch.Generator().set_state(state)
    try:
        return _compute(overload, (), given)
    finally:
        if own is None:
            seeds.set_rng_state(generator.get_state())
        else:
            own.set_state(generator.get_state())


def _compute(overload: Any, args: Any, kwargs: Any) -> Any:
    engine = _engine(args, kwargs)
    taken: dict[int, Tensor] = {}
    targets = {a.name: kwargs[a.name] for a in overload._schema.arguments if a.is_out}
    given = [_lower(a, taken) for a in args]
    named = {k: _lower(v, taken) for k, v in kwargs.items() if k not in targets}
    fresh = {k: _fresh(v) for k, v in targets.items()}
    out = overload(*given, **named, **fresh)
    if targets:
        for name, target in targets.items():
            _assign(target, fresh[name])
        found = tuple(targets.values())
        return found[0] if len(found) == 1 else found
    if engine_choice.choice.elsewhere:
        _write_back(overload, (args, kwargs), (given, named))
    return _raise_error(out, taken, engine)


def _write_back(overload: Any, ours: Any, theirs: Any) -> None:
    """Copy results into the arguments that an overload writes to, where it had copies."""
    for position, argument in enumerate(overload._schema.arguments):
        if argument.alias_info is None or not argument.alias_info.is_write:
            continue
        pair = [
            args[position] if position < len(args) else kwargs.get(argument.name)
            for args, kwargs in (ours, theirs)
        ]
        listed = [one if isinstance(one, list | tuple) else [one] for one in pair]
        for target, value in zip(*listed, strict=True):
            written = isinstance(target, Tensor) and target.layout is torch.strided
            if written and not tensor_bridge.is_on_host(target):
                _assign(target, value)


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
        tensor_bridge.resize(target, tuple(value.shape))
    target.copy_(value)


def _lower(value: Any, taken: dict[int, Tensor]) -> Any:
    if isinstance(value, Tensor):
        if value.device.type != tensor_bridge.DEVICE:
            if value.dim() and value.device.type != "meta":
                raise tensor_bridge.device_mismatch(value)
            return value
        made = to_cpu(value)
        taken[id(made)] = value
        taken[id(value)] = made  # keeps both alive: their ids stay theirs
        return made
    if isinstance(value, list | tuple):
        return type(value)(_lower(v, taken) for v in value)
    if isinstance(value, torch.device):
        return torch.device("cpu")
    return value


def to_cpu(value: Tensor) -> Tensor:
    """A tensor of the device on the CPU, over the same memory where the host can read it."""
    if value.layout is torch.strided:
        made = tensor_bridge.as_cpu_tensor(tensor_bridge.as_array(value))
        return made if tensor_bridge.is_on_host(value) else _copy_in_order(made, value)
    # torch's kernels ask whether a gradient will follow: what it needs they keep only then.
    return _rebuild_sparse(value, to_cpu).requires_grad_(value.requires_grad)


def _copy_in_order(made: Tensor, like: Tensor) -> Tensor:
    """A copy with the memory order of `like`: kernels give their results the same."""
    if like.is_contiguous() or not torch.ops.aten.is_non_overlapping_and_dense(like):
        return made
    kind = {"dtype": like.dtype, "device": made.device}
    return torch.empty_strided(like.shape, like.stride(), **kind).copy_(made)


def to_device(value: Tensor, engine: Any) -> Tensor:
    """A tensor of the CPU on the device: over the same memory where NumPy computes, else a copy."""
    if value.layout is not torch.strided:
        with current_device.device(getattr(engine, "index", -1)):
            return _rebuild_sparse(value, lambda part: to_device(part, engine))
    if engine.name == engine_choice.HOST:
        return tensor_bridge.as_tensor(tensor_bridge.from_cpu(value))
    return _copy_in_order(
        tensor_bridge.as_tensor(engine.upload(tensor_bridge.from_cpu(value))), value
    )


def _rebuild_sparse(value: Tensor, move: Callable[[Tensor], Tensor]) -> Tensor:
    """A sparse tensor with the same indices and values, each of them moved."""
    if value.layout is torch.sparse_coo:
        indices, values = move(value._indices()), move(value._values())
        whole = value.is_coalesced()
        made = torch.ops.aten._sparse_coo_tensor_unsafe
        return made(indices, values, value.shape, is_coalesced=whole, device=values.device)
    by_rows = value.layout in (torch.sparse_csr, torch.sparse_bsr)
    ends = value.crow_indices() if by_rows else value.ccol_indices()
    indices = value.col_indices() if by_rows else value.row_indices()
    make: Any = torch.ops.aten._sparse_compressed_tensor_unsafe
    parts = move(ends), move(indices), move(value.values())
    return make(*parts, value.shape, dtype=value.dtype, layout=value.layout, device=parts[2].device)


def _raise_error(value: Any, taken: dict[int, Tensor], engine: Any) -> Any:
    if isinstance(value, Tensor):
        before = taken.get(id(value))  # set if it was changed in place
        if before is None:
            return to_device(value, engine)
        return before if before.layout is torch.strided else before.copy_(to_device(value, engine))
    if isinstance(value, list | tuple):
        return type(value)(_raise_error(v, taken, engine) for v in value)
    return value
