"""Copies between host and GPU through torch, with pinned and pageable memory.

Runs in a child process (see isolate), so that the caller gets no device context.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from holdfast.topology.speed.copies import near_node, time_copies

COPY_BYTES = 256 * 2**20


def copies(device: str, node: int | None, cpus: list[int]) -> list[dict[str, Any]]:
    """GB/s for each mode and direction between `device` and memory of `node` (None: anywhere)."""
    module = getattr(torch, torch.device(device).type)

    def copy(target: torch.Tensor, source: torch.Tensor) -> None:
        target.copy_(source, non_blocking=True)
        module.synchronize()

    found = []
    with near_node(node, cpus):
        there = torch.empty(COPY_BYTES, dtype=torch.uint8, device=device)
        module.synchronize()
        for mode in ("pinned", "pageable"):
            here = torch.empty(COPY_BYTES, dtype=torch.uint8, pin_memory=mode == "pinned").fill_(1)
            to, back = partial(copy, there, here), partial(copy, here, there)
            found += time_copies(mode, COPY_BYTES, to, back)
    return found
