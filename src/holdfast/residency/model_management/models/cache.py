"""Frees the unused memory of torch's caching allocator."""

from __future__ import annotations

import gc
from typing import Any


def soft_empty_cache(force: bool = False) -> None:
    """Free the unused cached memory of the current platform; `force` collects garbage first."""
    import torch

    from holdfast.residency.model_management.rules import current
    from holdfast.residency.model_management.rules.machine import in_use

    if force:
        gc.collect()
    empty_cache_of(in_use(current.machine(), current.options()).kind, torch)


def empty_cache_of(kind: str, torch: Any) -> None:
    """Empty torch's cache on a machine of this `kind` (see `Machine`)."""
    if kind in ("cuda", "rocm"):
        if torch.cuda.is_initialized():  # else this would create a context, which takes memory
            torch.cuda.empty_cache()
            torch.cuda.ipc_collect()
    elif kind in ("xpu", "npu", "mlu", "mps"):
        getattr(torch, kind).empty_cache()
