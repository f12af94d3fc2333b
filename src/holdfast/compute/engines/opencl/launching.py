"""Putting kernels on a device's queue, and moments in its work.

Covers: arguments of a kernel, bringing memory back that had made room, markers.
Leaves to others: which kernel (`programs`), where memory is (`memory`), the queue (memory.opencl),
the first launch on a runtime that then builds (`late_builds`).
Promise: several threads may launch: who has the turn sets all arguments and queues before the next
does. Nothing is waited for, and arrays may be dropped at once: their memory goes to whoever comes
behind them on the queue. In a process that was forked a launch is refused.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import numpy
import pyopencl as cl

from holdfast.compute.engines.opencl import late_builds
from holdfast.compute.engines.opencl.array import Array
from holdfast.memory import opencl
from holdfast.memory.svm.opencl_runtime import said

if TYPE_CHECKING:
    from holdfast.compute.engines.opencl.engine import OpenCLEngine


def launch(
    engine: OpenCLEngine, kernel: Any, size: tuple[int, ...], group: Any, args: tuple[Any, ...]
) -> None:
    """Queue a kernel; see `OpenCLEngine.launch`."""
    place = engine.place
    if place.pid != os.getpid():
        opencl.place(engine.index)  # which says what is wrong
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
                _brought(engine, kernel, size, group, args)
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
            with said(f"run {kernel.function_name} on {place.name}"):
                raise


def _brought(engine: OpenCLEngine, kernel: Any, size: Any, group: Any, args: Any) -> None:
    """Launch with all arrays on the device, and none that leaves for another. Raises NotHere."""
    with engine.memories.used([arg.memory for arg in args if type(arg) is Array]):
        launch(engine, kernel, size, group, args)


def _prepare(kernel: Any, args: tuple[Any, ...]) -> bool:
    """Declare the dtypes of a kernel's arguments: setting them all at once is then quick.

    False: it was not launched before.
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
    kernel.launched = set()  # sizes and group sizes, and what was built for them: `late_builds`
    kernel.variants = set()
    return False


class Marker:
    """A moment in the work of a device."""

    def __init__(self, place: opencl.Place) -> None:
        self._place = place
        with place.lock, said(f"mark a moment on {place.name}"):
            self._event: Any = cl.enqueue_marker(place.queue)
            place.queue.flush()

    def wait(self) -> None:
        """Return when all work before it is done. Raises DeviceLost."""
        with self._place.noticing(f"wait for the work of {self._place.name}"):
            self._event.wait()

    def is_done(self) -> bool:
        """Whether all work before it is done."""
        return self._event.command_execution_status == cl.command_execution_status.COMPLETE

    def time_ns(self) -> int:
        """When that was, by the device's clock."""
        self.wait()
        return self._event.profile.end
