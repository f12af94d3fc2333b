"""Context and queue of an OpenCL device, and the translation of pyopencl's errors."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pyopencl as cl

from holdfast.base.errors import HoldfastError, OutOfMemory, Unsupported
from holdfast.base.units import format_bytes
from holdfast.topology import OpenclDevice

_OUT_OF_MEMORY = (
    cl.status_code.MEM_OBJECT_ALLOCATION_FAILURE,
    cl.status_code.OUT_OF_RESOURCES,
    cl.status_code.OUT_OF_HOST_MEMORY,
    cl.status_code.INVALID_BUFFER_SIZE,
)


@dataclass
class Runtime:
    """An OpenCL device with a context, a queue and the memory taken from it."""

    device: OpenclDevice
    context: Any
    queue: Any
    _held: weakref.WeakSet[Any] = field(default_factory=weakref.WeakSet)

    @property
    def held_bytes(self) -> int:
        """Bytes of the live allocations on the device."""
        return sum(backing.length for backing in list(self._held))

    @property
    def is_host(self) -> bool:
        """Whether its memory is that of the host."""
        return self.device.kind == "cpu"

    @property
    def migrates_svm(self) -> bool:
        """Whether it has clEnqueueSVMMigrateMem (OpenCL 2.1)."""
        return version_of(self.device) >= (2, 1)

    def hold(self, backing: Any) -> None:
        """Count the `length` bytes of an allocation."""
        self._held.add(backing)

    def release(self, backing: Any) -> None:
        """Stop counting an allocation. A second call does nothing."""
        self._held.discard(backing)


def version_of(device: OpenclDevice) -> tuple[int, int]:
    """The OpenCL version of a device, (0, 0) if unknown."""
    words = (device.version or "").split()  # "OpenCL 3.0 vendor's text"
    major, _, minor = (words[1] if len(words) > 1 else "").partition(".")
    return (int(major), int(minor)) if major.isdecimal() and minor.isdecimal() else (0, 0)


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
        raise _translate(what, exc, size) from exc


def _translate(what: str, exc: cl.Error, size: int | None) -> HoldfastError:
    text = f"cannot {what}: OpenCL says {status(exc)}"
    if size is not None and exc.code in _OUT_OF_MEMORY:
        return OutOfMemory(
            text,
            expected=f"a device with {format_bytes(size)} to give",
            hint="a smaller size, or freeing something first",
        )
    return Unsupported(text, expected="a device and a driver in working order")


def start(device: OpenclDevice) -> Runtime:
    """Make a context and a queue on a device. Raises Unsupported."""
    _, platform, number = device.id.split(":")
    with translate_errors(f"use {device.id} ({device.name})"):
        handle = cl.get_platforms()[int(platform)].get_devices()[int(number)]
        context = cl.Context([handle])
        return Runtime(device, context, cl.CommandQueue(context))
