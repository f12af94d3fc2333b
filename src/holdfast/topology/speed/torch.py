"""Copies between host and GPU through torch, with pinned and pageable memory.

Runs in a child process (see isolate), so that the caller gets no device context.
"""

from __future__ import annotations

import contextlib
import time
from typing import Any

import torch

from holdfast.topology import numa

COPY_BYTES = 256 * 2**20
_REPEATS = 5


def copies(device: str, node: int | None, cpus: list[int]) -> list[dict[str, Any]]:
    """GB/s for each mode and direction between `device` and memory of `node` (None: anywhere)."""
    with contextlib.ExitStack() as stack:
        if node is not None:
            stack.enter_context(numa.running_on(cpus))
            stack.enter_context(numa.allocating_on([node]))
        there = torch.empty(COPY_BYTES, dtype=torch.uint8, device=device)
        results = []
        for mode in ("pinned", "pageable"):
            here = torch.empty(COPY_BYTES, dtype=torch.uint8, pin_memory=mode == "pinned").fill_(1)
            results.append(_row(mode, "to_device", _best_gb_s(there, here, device)))
            results.append(_row(mode, "from_device", _best_gb_s(here, there, device)))
        return results


def _row(mode: str, direction: str, rate: float) -> dict[str, Any]:
    return {"mode": mode, "direction": direction, "bandwidth_gb_s": round(rate, 2)}


def _best_gb_s(target: torch.Tensor, source: torch.Tensor, device: str) -> float:
    module = getattr(torch, torch.device(device).type)
    times = []
    for _ in range(_REPEATS + 1):  # the first one warms up
        module.synchronize()
        start = time.perf_counter()
        target.copy_(source, non_blocking=True)
        module.synchronize()
        times.append(time.perf_counter() - start)
    return COPY_BYTES / min(times[1:]) / 1e9
