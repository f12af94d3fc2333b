"""Turn torch's out-of-memory errors into OutOfMemory."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

from holdfast.base.errors import OutOfMemory


@contextlib.contextmanager
def explain_out_of_memory(doing: str, device: str) -> Iterator[None]:
    """Raise OutOfMemory where torch runs out of memory; other errors pass unchanged."""
    try:
        yield
    except RuntimeError as exc:
        if not is_out_of_memory(exc):
            raise
        raise OutOfMemory(
            f"ran out of memory on {device} while {doing}: {str(exc).strip().splitlines()[0]}",
            expected="a picture and a model that fit together",
            hint="a smaller --height and --width, --precision bf16, or another --device",
        ) from exc


def is_out_of_memory(exc: BaseException) -> bool:
    """Whether torch raised `exc` because memory ran out."""
    # The CPU allocator raises a plain RuntimeError.
    says_so = "DefaultCPUAllocator" in str(exc) or "out of memory" in str(exc)
    return isinstance(exc, torch.OutOfMemoryError) or (isinstance(exc, RuntimeError) and says_so)
