"""Builds and first launches on runtimes that compile in a thread of their own, such as PoCL.

PoCL generates and links the code for a work-group size when a kernel is first launched with it, in
its own thread. The linker starts with the process's `environ`. If Python sets a variable meanwhile,
that array may move, and PoCL aborts the process.
So on such a runtime each build, and the first launch of each variant of a kernel, completes before
any other Python code runs: the GIL is held until the device is done. Later launches only check that
the variant was launched before.
"""

from __future__ import annotations

import ctypes
import functools
import gc
import operator
from collections.abc import Callable
from typing import Any

import pyopencl as cl
from pyopencl import _cl

from holdfast.memory.resources.opencl_devices import OpenCLDevice

_PLATFORMS = ("Portable Computing Language",)
_LARGE_GRID = 65535  # PoCL compiles another variant for grids at least this wide
_MOST_SIZES = 4096  # remembered per kernel


@functools.cache
def builds_late(device: Any) -> bool:
    """Whether a device's runtime compiles when a kernel is launched."""
    return device.platform.name.strip() in _PLATFORMS


def launch_first(place: OpenCLDevice, kernel: Any, size: tuple[int, ...], group: Any) -> None:
    """Launch with a size that is not in `kernel.launched`; wait if that compiles a variant."""
    enqueue = functools.partial(cl.enqueue_nd_range_kernel, place.queue, kernel, size, group)
    # Without a group size the driver derives one from the size.
    variant = group or size, max(size) >= _LARGE_GRID
    if variant in kernel.variants or not builds_late(place.device):
        enqueue()
    else:
        place.queue.finish()  # earlier work may take long; other threads run meanwhile
        finish_at_once(place, enqueue)
        kernel.variants.add(variant)
    if len(kernel.launched) >= _MOST_SIZES:
        kernel.launched.clear()
    kernel.launched.add((size, group))


def finish_at_once(place: OpenCLDevice, enqueue: Callable[[], Any]) -> Any:
    """Call `enqueue`, which is not Python code, and wait; no other Python thread runs meanwhile.

    Returns the result of `enqueue`. The interpreter switches threads between two bytecodes; `map`
    runs none between the two calls.
    """
    finish = functools.partial(_opencl().clFinish, ctypes.c_void_p(place.queue.int_ptr))
    is_collecting = gc.isenabled()
    gc.disable()  # finalizers are Python code
    try:
        result, _ = map(operator.call, (enqueue, finish))
    finally:
        if is_collecting:
            gc.enable()
    place.queue.finish()  # raises the error that the first call returned
    return result


def build(program: Any, options: list[str]) -> bool:
    """Build a program; no other Python thread runs meanwhile. False if it failed."""
    handle, words = ctypes.c_void_p(program.int_ptr), " ".join(options).encode()
    return _opencl().clBuildProgram(handle, 0, None, words, None, None) == cl.status_code.SUCCESS


@functools.cache
def _opencl() -> Any:
    """The OpenCL library that pyopencl loaded; its functions keep the GIL."""
    return ctypes.PyDLL(_cl.__file__)
