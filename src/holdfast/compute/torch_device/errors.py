"""Errors of the op table as code that uses torch expects them.

Promise: what torch would raise as RuntimeError or IndexError can be caught as that; the three parts
stay.
"""

from __future__ import annotations

import torch

from holdfast.base.errors import BadInput, HoldfastError, OutOfMemory
from holdfast.base.units import format_bytes


class Refused(BadInput, RuntimeError):
    """An op was called with tensors that it cannot take."""


class BadIndex(BadInput, IndexError, RuntimeError):
    """A dimension or a place that is not there: torch raises either, depending on the op."""


class NoMemory(OutOfMemory, torch.OutOfMemoryError):
    """The device has no room for a result."""


def as_torch_has_it(exc: HoldfastError) -> HoldfastError:
    """The same error, of a class that is also the one torch would have raised."""
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
    """The error of a full device: where a limit was set, that is what it is full to."""
    from holdfast.compute.torch_device import memory_figures

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
