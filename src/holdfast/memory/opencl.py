"""OpenCL devices as places for memory: which there are, context and queue, a device that is lost.

Covers: devices and their numbers, the turn on a queue, devices that are lost, processes that fork.
Leaves to others: memory of a device (opencl_resources), shared virtual memory (svm), computing.
Promise: a device that stopped working is noticed at the first error, and refused from then on with
what happened: numbers on it are gone, those on the host are not.
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

from holdfast.base.errors import Absent, BadInput, Unsupported
from holdfast.memory.svm.opencl_runtime import said

_KINDS = ("gpu", "accelerator", "cpu")  # in the order they are numbered
_WORK_FAILED = cl.status_code.EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST


class DeviceLost(Unsupported):
    """A device stopped working; the numbers that were on it are gone."""


@dataclass(eq=False)
class Place:
    """A device in use: `opencl:0` is the first."""

    index: int
    device: Any
    context: Any
    queue: Any
    kind: str
    pid: int = field(default_factory=os.getpid)
    lost: str | None = None  # what happened
    usable: bool = True  # neither lost nor another process's
    lock: Turn = field(init=False)

    def __post_init__(self) -> None:
        self.lock = Turn(self)
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=functools.partial(_leave, weakref.ref(self)))

    @property
    def name(self) -> str:
        """How pools and tensors call it."""
        return f"opencl:{self.index}"

    @property
    def total_bytes(self) -> int:
        """The memory that the device says it has."""
        return self.device.global_mem_size

    def __repr__(self) -> str:
        return f"<{self.name}: {self.device.name.strip()}>"

    @contextlib.contextmanager
    def noticing(self, what: str) -> Iterator[None]:
        """OpenCL's errors in the block become ours: DeviceLost where the device is."""
        self.check()
        try:
            with said(what):
                yield
        except Unsupported as exc:
            self.look(exc)
            raise

    def check(self) -> None:
        """Raises DeviceLost after the device was, Unsupported in a process that was forked."""
        if self.pid != os.getpid():
            raise _forked()
        if self.lost is not None:
            raise DeviceLost(
                f"{self.name} ({self.device.name.strip()}) is lost, with the numbers that were on "
                f"it: {self.lost}",
                expected="a device and a driver in working order",
                hint="start again, or go on with what is on the host (HOLDFAST_ENGINE=numpy)",
            )

    def look(self, exc: BaseException) -> None:
        """After an error of OpenCL: see whether the device still works. Raises DeviceLost."""
        if not self.usable or not isinstance(exc.__cause__, cl.Error):
            return
        try:
            cl.enqueue_marker(self.queue).wait()
            # Work that failed leaves numbers behind that nobody computed.
            if exc.__cause__.code != _WORK_FAILED:
                return
        except cl.Error:
            pass
        self.lost, self.usable = exc.args[0], False
        try:
            self.check()
        except DeviceLost as lost:
            raise lost from exc


class Turn:
    """The turn on a device's queue: one thread at a time, and nobody once the device is lost."""

    __slots__ = ("_lock", "_place")

    def __init__(self, place: Place) -> None:
        self._lock = threading.RLock()
        self._place = place

    def acquire(self, blocking: bool = True) -> bool:
        """Take the turn, whatever the device is like."""
        return self._lock.acquire(blocking)

    def release(self) -> None:
        """Give it to the next."""
        self._lock.release()

    def __enter__(self) -> None:
        self._lock.acquire()
        if not self._place.usable:
            self._lock.release()
            self._place.check()

    def __exit__(self, kind: Any, exc: BaseException | None, _: Any) -> None:
        try:
            if kind is Unsupported and exc is not None:
                self._place.look(exc)
        finally:
            self._lock.release()


def _leave(reference: weakref.ref[Place]) -> None:
    """In the child of a fork: drivers do not survive it, and a thread may have had the turn."""
    place = reference()
    if place is not None:
        place.usable = False
        place.lock = Turn(place)


def _forked() -> Unsupported:
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
    """Every device of every platform, GPUs first. Raises Absent where there is none.

    Raises Unsupported in a process that was forked after that: drivers do not survive it.
    """
    pid, found = _devices()
    if pid != os.getpid():
        raise _forked()
    return found


@functools.cache
def _devices() -> tuple[int, tuple[Any, ...]]:
    """The process that asked first, and what it was told."""
    hint = "install the GPU vendor's OpenCL driver, or PoCL: apt install pocl-opencl-icd"
    expected = "an OpenCL 1.2 platform with a device"
    try:
        platforms = cl.get_platforms()
    except cl.Error as exc:
        raise Absent("no OpenCL platform is here", expected=expected, hint=hint) from exc
    if not platforms:
        raise Absent("no OpenCL platform is here", expected=expected, hint=hint)
    found = [device for platform in platforms for device in _devices_of(platform)]
    if not found:
        names = ", ".join(repr(platform.name) for platform in platforms)
        raise Absent(
            f"the OpenCL platforms here have no device: {names}", expected=expected, hint=hint
        )
    found.sort(key=lambda device: _KINDS.index(kind_of(device)))
    return os.getpid(), tuple(found)


def _devices_of(platform: Any) -> list[Any]:
    try:
        return platform.get_devices()
    except cl.Error:  # DEVICE_NOT_FOUND: some drivers are installed without their hardware
        return []


def device(index: int = 0) -> Any:
    """The device `opencl:index`, which is not started. Raises Absent or BadInput."""
    found = devices()
    count = len(found)
    if not 0 <= index < count:
        raise BadInput(
            f"there is no device opencl:{index}",
            expected="opencl:0" if count == 1 else f"opencl:0 to opencl:{count - 1}",
            hint="holdfast device shows every OpenCL device",
        )
    return found[index]


def place(index: int = 0) -> Place:
    """The device `opencl:index` in use. Raises Absent, BadInput, or Unsupported after a fork."""
    device(index)
    return _place(index)


class Described(NamedTuple):
    """A device in words and numbers."""

    name: str  # "opencl:0"
    device: str
    platform: str
    kind: str
    memory_bytes: int
    units: int


def described() -> list[Described]:
    """What there is, without using it. Raises Absent where there is nothing."""
    return [
        Described(
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
def _place(index: int) -> Place:
    device = devices()[index]
    with said(f"use opencl:{index} ({device.name.strip()})"):
        context = cl.Context([device])
        queue = cl.CommandQueue(context, device, cl.command_queue_properties.PROFILING_ENABLE)
    return Place(index, device, context, queue, kind_of(device))
