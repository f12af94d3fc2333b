"""OpenCL devices: which there are, their context and queue, and whether one was lost.

`OpenCLDevice` is the one context and queue of a device, for tensors and for shared virtual memory.

A device that stops working is noticed at the first error; from then on every use raises
DeviceLost with the reason. Data on it is gone, data on the host is not.
"""

from __future__ import annotations

import contextlib
import functools
import os
import threading
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pyopencl as cl

from holdfast.base.errors import Absent, BadInput, HoldfastError, OutOfMemory, Unsupported
from holdfast.base.threads import register_at_fork
from holdfast.base.units import format_bytes
from holdfast.topology.probes.opencl import devices_of

_KINDS = ("gpu", "accelerator", "cpu")  # in the order they are numbered
_WORK_FAILED = cl.status_code.EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST
_OUT_OF_MEMORY = (
    cl.status_code.MEM_OBJECT_ALLOCATION_FAILURE,
    cl.status_code.OUT_OF_RESOURCES,
    cl.status_code.OUT_OF_HOST_MEMORY,
    cl.status_code.INVALID_BUFFER_SIZE,
)


class DeviceLost(Unsupported):
    """A device stopped working; the data on it is gone."""


def status(exc: cl.Error) -> str:
    """The function and the status by name: "clSVMAlloc: OUT_OF_RESOURCES"."""
    code: Any = exc.code
    return f"{exc.routine}: {cl.status_code.to_string(code, 'status %d')}"


@contextlib.contextmanager
def translate_errors(what: str, *, size: int | None = None) -> Iterator[None]:
    """Turn pyopencl's errors in the block into Unsupported, or OutOfMemory if `size` was wanted.

    `what` completes "cannot ..." in the text.
    """
    try:
        yield
    except cl.Error as exc:
        text = f"cannot {what}: OpenCL says {status(exc)}"
        error: HoldfastError = Unsupported(text, expected="a device and a driver in working order")
        if size is not None and exc.code in _OUT_OF_MEMORY:
            error = OutOfMemory(
                text,
                expected=f"a device with {format_bytes(size)} to give",
                hint="a smaller size, or freeing something first",
            )
        raise error from exc


@dataclass(eq=False)
class OpenCLDevice:
    """An opened device, with its context and queue: `opencl:0` is the first."""

    index: int
    device: Any
    context: Any
    queue: Any
    kind: str
    pid: int = field(default_factory=os.getpid)
    lost: str | None = None  # why it was lost
    usable: bool = True  # not lost, and opened by this process
    held: weakref.WeakSet[Any] = field(default_factory=weakref.WeakSet)  # shared virtual memory
    lock: QueueLock = field(init=False)

    def __post_init__(self) -> None:
        self.lock = QueueLock(self)
        register_at_fork(after_in_child=functools.partial(_disable_in_child, weakref.ref(self)))

    @property
    def name(self) -> str:
        """The name that pools and tensors use."""
        return f"opencl:{self.index}"

    @property
    def total_bytes(self) -> int:
        """The memory that the device reports."""
        return self.device.global_mem_size

    @property
    def held_bytes(self) -> int:
        """Bytes of the shared virtual memory that is allocated on it."""
        return sum(backing.length for backing in list(self.held))

    @property
    def is_host(self) -> bool:
        """Whether its memory is that of the host."""
        return self.kind == "cpu"

    def __repr__(self) -> str:
        return f"<{self.name}: {self.device.name.strip()}>"

    @contextlib.contextmanager
    def translate_errors(self, what: str) -> Iterator[None]:
        """Turns OpenCL's errors in the block into ours: DeviceLost if the device was lost."""
        self.check()
        try:
            with translate_errors(what):
                yield
        except Unsupported as exc:
            self.check_after(exc)
            raise

    def check(self) -> None:
        """Raises DeviceLost if the device was lost, Unsupported in a forked process."""
        if self.pid != os.getpid():
            raise _fork_error()
        if self.lost is not None:
            raise DeviceLost(
                f"{self.name} ({self.device.name.strip()}) is lost, with the data that was on "
                f"it: {self.lost}",
                expected="a device and a driver in working order",
                hint="start again, or go on with what is on the host (HOLDFAST_ENGINE=numpy)",
            )

    def check_after(self, exc: BaseException) -> None:
        """After an OpenCL error: test whether the device still works. Raises DeviceLost."""
        if not self.usable or not isinstance(exc.__cause__, cl.Error):
            return
        try:
            cl.enqueue_marker(self.queue).wait()
            # Failed work leaves garbage in its outputs.
            if exc.__cause__.code != _WORK_FAILED:
                return
        except cl.Error:
            pass
        self.lost, self.usable = exc.args[0], False
        try:
            self.check()
        except DeviceLost as lost:
            raise lost from exc


class QueueLock:
    """The lock of a device's queue: one thread at a time, and none once the device is lost."""

    __slots__ = ("_lock", "_place")

    def __init__(self, place: OpenCLDevice) -> None:
        self._lock = threading.RLock()
        self._place = place

    def acquire(self, blocking: bool = True) -> bool:
        """Take the lock, even if the device is lost."""
        return self._lock.acquire(blocking)

    def release(self) -> None:
        self._lock.release()

    def __enter__(self) -> None:
        self._lock.acquire()
        if not self._place.usable:
            self._lock.release()
            self._place.check()

    def __exit__(self, kind: Any, exc: BaseException | None, _: Any) -> None:
        try:
            if kind is Unsupported and exc is not None:
                self._place.check_after(exc)
        finally:
            self._lock.release()


def _disable_in_child(reference: weakref.ref[OpenCLDevice]) -> None:
    """In the child of a fork: drivers do not survive it, and another thread may hold the lock."""
    place = reference()
    if place is not None:
        place.usable = False
        place.lock = QueueLock(place)


def _fork_error() -> Unsupported:
    return Unsupported(
        "cannot use OpenCL in this process: it was forked from one that used it",
        expected="a process that starts OpenCL itself",
        hint="multiprocessing.set_start_method('spawn'), or fork before the first use",
    )


def kind_of(device: Any) -> str:
    """ "gpu", "accelerator" or "cpu"."""
    for kind, bit in (("gpu", cl.device_type.GPU), ("cpu", cl.device_type.CPU)):
        if device.type & bit:
            return kind
    return "accelerator"


def devices() -> tuple[Any, ...]:
    """Every device, GPUs first. Raises Absent if there is none, Unsupported after a fork."""
    pid, found = _devices()
    if pid != os.getpid():
        raise _fork_error()
    return found


@functools.cache
def _devices() -> tuple[int, tuple[Any, ...]]:
    hint = "install the GPU vendor's OpenCL driver, or PoCL: apt install pocl-opencl-icd"
    expected = "an OpenCL 1.2 platform with a device"
    try:
        platforms = cl.get_platforms()
    except cl.Error as exc:
        raise Absent("there is no OpenCL platform", expected=expected, hint=hint) from exc
    if not platforms:
        raise Absent("there is no OpenCL platform", expected=expected, hint=hint)
    found = [device for platform in platforms for device in devices_of(platform)]
    if not found:
        names = ", ".join(repr(platform.name) for platform in platforms)
        raise Absent(
            f"the OpenCL platforms here have no device: {names}", expected=expected, hint=hint
        )
    found.sort(key=lambda device: _KINDS.index(kind_of(device)))
    return os.getpid(), tuple(found)


def device(index: int = 0) -> Any:
    """The device `opencl:index`, not opened. Raises Absent or BadInput."""
    found = devices()
    count = len(found)
    if not 0 <= index < count:
        raise BadInput(
            f"there is no device opencl:{index}",
            expected="opencl:0" if count == 1 else f"opencl:0 to opencl:{count - 1}",
            hint="holdfast device shows every OpenCL device",
        )
    return found[index]


def open_device(index: int = 0) -> OpenCLDevice:
    """The device `opencl:index`, opened. Raises Absent, BadInput, or Unsupported after a fork."""
    device(index)
    return _open(index)


def open_by_id(identity: str) -> OpenCLDevice:
    """The device that the topology calls "opencl:0:1", opened. Raises as `open_device`."""
    _, platform, number = identity.split(":")
    known = devices()
    return open_device(known.index(cl.get_platforms()[int(platform)].get_devices()[int(number)]))


class DeviceInfo(NamedTuple):
    """Name, kind and size of a device."""

    name: str  # "opencl:0"
    device: str
    platform: str
    kind: str
    memory_bytes: int
    units: int  # compute units


def list_devices() -> list[DeviceInfo]:
    """Every device, not opened. Raises Absent if there is none."""
    return [
        DeviceInfo(
            f"opencl:{index}",
            one.name.strip(),
            one.platform.name.strip(),
            kind_of(one),
            one.global_mem_size,
            one.max_compute_units,
        )
        for index, one in enumerate(devices())
    ]


@functools.cache
def _open(index: int) -> OpenCLDevice:
    device = devices()[index]
    with translate_errors(f"use opencl:{index} ({device.name.strip()})"):
        context = cl.Context([device])
        queue = cl.CommandQueue(context, device, cl.command_queue_properties.PROFILING_ENABLE)
    return OpenCLDevice(index, device, context, queue, kind_of(device))
