"""Copies between host and device through OpenCL, for GPUs that torch cannot use.

Runs in a child process (see isolate).
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pyopencl as cl

from holdfast.topology import numa

COPY_BYTES = 64 * 2**20
_REPEATS = 5


def copies(device: str, node: int | None, cpus: list[int]) -> list[dict[str, Any]]:
    """GB/s for each mode and direction between a device ("opencl:0:0") and memory of `node`."""
    _, platform, number = device.split(":")
    selected = cl.get_platforms()[int(platform)].get_devices()[int(number)]
    with contextlib.ExitStack() as stack:
        if node is not None:
            stack.enter_context(numa.running_on(cpus))
            stack.enter_context(numa.allocating_on([node]))
        context = cl.Context([selected])
        queue = cl.CommandQueue(context)
        there: Any = cl.Buffer(context, cl.mem_flags.READ_WRITE, COPY_BYTES)
        hosts: dict[str, Any] = {
            "pinned": _pinned(context, queue),
            "pageable": np.ones(COPY_BYTES, np.uint8),
        }
        return [
            {
                "mode": mode,
                "direction": direction,
                "bandwidth_gb_s": _best_gb_s(
                    lambda ends=ends: cl.enqueue_copy(queue, *ends).wait()
                ),
            }
            for mode, here in hosts.items()
            for direction, ends in (("to_device", (there, here)), ("from_device", (here, there)))
        ]


def _pinned(context: Any, queue: Any) -> np.ndarray:
    """Host memory allocated by the runtime, which is pinned where possible."""
    flags = cl.mem_flags.READ_WRITE | cl.mem_flags.ALLOC_HOST_PTR
    buffer = cl.Buffer(context, flags, COPY_BYTES)
    access: Any = cl.map_flags.READ | cl.map_flags.WRITE
    kind: Any = np.uint8
    array, _ = cl.enqueue_map_buffer(queue, buffer, access, 0, (COPY_BYTES,), kind)
    array.fill(1)
    return array


def _best_gb_s(copy: Callable[[], object]) -> float:
    times = []
    for _ in range(_REPEATS + 1):  # the first one warms up
        start = time.perf_counter()
        copy()
        times.append(time.perf_counter() - start)
    return round(COPY_BYTES / min(times[1:]) / 1e9, 2)
