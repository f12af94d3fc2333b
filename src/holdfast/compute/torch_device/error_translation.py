"""Translate errors of the op table into classes that code written for torch catches."""

from __future__ import annotations

from holdfast.base.errors import BadInput, HoldfastError, OutOfMemory
from holdfast.base.units import format_bytes
from holdfast.compute.torch_device.errors import BadIndex, NoMemory, Refused


def to_torch_error(exc: HoldfastError) -> HoldfastError:
    """The same error and text, of a class that is also the one torch would have raised."""
    kind: type[HoldfastError]
    if isinstance(exc, OutOfMemory):
        return _no_memory(exc)
    if isinstance(exc.__cause__, IndexError):
        kind = BadIndex
    elif isinstance(exc, BadInput):
        kind = Refused
    else:
        return exc
    return kind(exc.what, expected=exc.expected, hint=exc.hint)


def _no_memory(exc: OutOfMemory) -> NoMemory:
    """Name the memory limit where one was set: the device is full up to that."""
    from holdfast.compute.torch_device.api import memory_figures  # loads pools: not at start-up

    pool = memory_figures.pool().pool
    limit = pool.core.limit
    if not (limit and pool.core.hard):
        return NoMemory(exc.what, expected=exc.expected, hint=exc.hint)
    used = format_bytes(pool.allocated_bytes)
    return NoMemory(
        f"{exc.what}; {used} of the limit of {format_bytes(limit)} are in use",
        expected="tensors that fit into the limit together",
        hint="del tensors that are done with, or "
        "torch.holdfast.set_per_process_memory_fraction(1.0), which takes the limit away",
    )
