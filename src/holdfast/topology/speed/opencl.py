"""Copies between host and device through OpenCL, for GPUs that torch cannot use.

Runs in a child process (see isolate).
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pyopencl as cl

from holdfast.topology.speed.copies import near_node, time_copies

COPY_BYTES = 64 * 2**20


def copies(device: str, node: int | None, cpus: list[int]) -> list[dict[str, Any]]:
    """GB/s for each mode and direction between a device ("opencl:0:0") and memory of `node`."""
    _, platform, number = device.split(":")
    selected = cl.get_platforms()[int(platform)].get_devices()[int(number)]
    with near_node(node, cpus):
        context = cl.Context([selected])
        queue = cl.CommandQueue(context)

        def copy(*ends: Any) -> None:
            cl.enqueue_copy(queue, *ends).wait()

        there: Any = cl.Buffer(context, cl.mem_flags.READ_WRITE, COPY_BYTES)
        pinned, pageable = _pinned_array(context, queue), np.ones(COPY_BYTES, np.uint8)
        return [
            row
            for mode, here in (("pinned", pinned), ("pageable", pageable))
            for row in time_copies(
                mode, COPY_BYTES, partial(copy, there, here), partial(copy, here, there)
            )
        ]


def _pinned_array(context: Any, queue: Any) -> np.ndarray:
    """Host memory allocated by the runtime, which is pinned where possible."""
    flags = cl.mem_flags.READ_WRITE | cl.mem_flags.ALLOC_HOST_PTR
    buffer = cl.Buffer(context, flags, COPY_BYTES)
    access: Any = cl.map_flags.READ | cl.map_flags.WRITE
    kind: Any = np.uint8
    array, _ = cl.enqueue_map_buffer(queue, buffer, access, 0, (COPY_BYTES,), kind)
    array.fill(1)
    return array
