"""Launching kernels on a device's queue, and markers in it.

Threads may launch concurrently: one sets all arguments and queues before the next does. A launch
does not wait, and arrays may be dropped at once: their memory is reused only by later work of the
same queue. A forked process cannot launch.
"""

from __future__ import annotations

import os
from typing import Any

import numpy
import pyopencl as cl

from holdfast.compute.engines.opencl.runtime import late_builds
from holdfast.compute.engines.opencl.runtime.array import Array
from holdfast.compute.engines.opencl.runtime.engine_protocol import CLEngine
from holdfast.memory.resources import opencl_devices
from holdfast.memory.resources.opencl_devices import translate_errors


def launch(
    engine: CLEngine, kernel: Any, size: tuple[int, ...], group: Any, args: tuple[Any, ...]
) -> None:
    """Queue a kernel; see `OpenCLEngine.launch`."""
    place = engine.place
    if place.pid != os.getpid():
        opencl_devices.open_device(engine.index)  # raises: the device belongs to the parent process
    with place.lock:
        memories = engine.memories
        memories.launches = now = memories.launches + 1
        values: list[Any] = []
        for arg in args:
            if type(arg) is not Array:
                values.append(arg)
                continue
            memory = arg.memory
            if memory.host is not None:
                _bring_and_launch(engine, kernel, size, group, args)
                return
            memory.used = now
            values.append(memory.buffer)
            values.append(memory.start + arg.offset)
        try:
            try:
                is_known = (size, group) in kernel.launched
            except AttributeError:
                is_known = _prepare(kernel, args)
            kernel.set_args(*values)
            if is_known:
                cl.enqueue_nd_range_kernel(place.queue, kernel, size, group)
            else:
                late_builds.launch_first(place, kernel, size, group)
        except cl.Error:
            with translate_errors(f"run {kernel.function_name} on {place.name}"):
                raise


def _bring_and_launch(engine: CLEngine, kernel: Any, size: Any, group: Any, args: Any) -> None:
    """Launch with all arrays on the device; none can be evicted meanwhile. Raises NotHere."""
    with engine.memories.on_device([arg.memory for arg in args if type(arg) is Array]):
        launch(engine, kernel, size, group, args)


def _prepare(kernel: Any, args: tuple[Any, ...]) -> bool:
    """Declare the argument dtypes of a kernel, so that setting all arguments at once is fast.

    Returns False: the kernel was not launched before.
    """
    kinds: list[Any] = []
    for arg in args:
        if type(arg) is Array:
            kinds += None, numpy.uint64
        elif type(arg) is int:
            kinds.append(numpy.int64)
        elif type(arg) is float:
            kinds.append(numpy.float32)
        else:
            kinds.append(getattr(arg, "dtype", None))
    kernel.set_scalar_arg_dtypes(kinds)
    kernel.launched = set()  # sizes and group sizes; variants compiled for them: see `late_builds`
    kernel.variants = set()
    return False


class Marker:
    """An event in the queue of a device."""

    def __init__(self, place: opencl_devices.OpenCLDevice) -> None:
        self._place = place
        with place.lock, translate_errors(f"mark a moment on {place.name}"):
            self._event: Any = cl.enqueue_marker(place.queue)
            place.queue.flush()

    def wait(self) -> None:
        """Return when all earlier work is done. Raises DeviceLost."""
        with self._place.translate_errors(f"wait for the work of {self._place.name}"):
            self._event.wait()

    def is_done(self) -> bool:
        return self._event.command_execution_status == cl.command_execution_status.COMPLETE

    def time_ns(self) -> int:
        """When that was, in nanoseconds of the device's clock."""
        self.wait()
        return self._event.profile.end
