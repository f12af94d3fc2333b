"""Running out of memory, told in Holdfast's words."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

from holdfast.base.errors import OutOfMemory


@contextlib.contextmanager
def translated(doing: str, device: str) -> Iterator[None]:
    """Turn what torch raises when memory runs out into OutOfMemory; let everything else pass."""
    try:
        yield
    except RuntimeError as exc:
        if not is_out_of_memory(exc):
            raise
        raise _error(doing, device, str(exc)) from exc


def is_out_of_memory(exc: BaseException) -> bool:
    """Whether that is what torch raises when memory runs out."""
    # The CPU allocator has no exception of its own.
    told = "DefaultCPUAllocator" in str(exc) or "out of memory" in str(exc)
    return isinstance(exc, torch.OutOfMemoryError) or (isinstance(exc, RuntimeError) and told)


def _error(doing: str, device: str, reason: str) -> OutOfMemory:
    first = reason.strip().splitlines()[0]
    return OutOfMemory(
        f"ran out of memory on {device} while {doing}: {first}",
        expected="a picture and a model that fit together",
        hint="a smaller --height and --width, --precision bf16, or another --device",
    )
