"""An OpenCL device in use, and what OpenCL says in our words.

Covers: context and queue, what was taken from the device, errors.
Leaves to others: memory (opencl_tiers), which device (opencl).
Promise: no error of pyopencl leaves a `said` block; ours gives the status by its name.
"""

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
    """A device that is in use."""

    device: OpenclDevice
    context: Any
    queue: Any
    _held: weakref.WeakSet[Any] = field(default_factory=weakref.WeakSet)

    @property
    def held_bytes(self) -> int:
        """What allocations that are there took from the device."""
        return sum(backing.length for backing in list(self._held))

    @property
    def is_host(self) -> bool:
        """Whether its memory is the host's."""
        return self.device.kind == "cpu"

    @property
    def migrates_svm(self) -> bool:
        """Whether it has the call; the version reads "OpenCL 3.0 vendor's words"."""
        return version_of(self.device) >= (2, 1)

    def hold(self, backing: Any) -> None:
        """Its `length` more bytes are taken."""
        self._held.add(backing)

    def release(self, backing: Any) -> None:
        """They are not any more. A second time does nothing."""
        self._held.discard(backing)


def version_of(device: OpenclDevice) -> tuple[int, int]:
    """The version of OpenCL a device has; (0, 0) where it does not say."""
    words = (device.version or "").split()
    major, _, minor = (words[1] if len(words) > 1 else "").partition(".")
    return (int(major), int(minor)) if major.isdecimal() and minor.isdecimal() else (0, 0)


def status(exc: cl.Error) -> str:
    """Who said what, by its name: "clSVMAlloc: OUT_OF_RESOURCES"."""
    code: Any = exc.code
    return f"{exc.routine}: {cl.status_code.to_string(code, 'status %d')}"


@contextlib.contextmanager
def said(what: str, *, size: int | None = None) -> Iterator[None]:
    """OpenCL's errors in the block become ours; `size` where it is about getting memory."""
    try:
        yield
    except cl.Error as exc:
        raise _ours(what, exc, size) from exc


def _ours(what: str, exc: cl.Error, size: int | None) -> HoldfastError:
    text = f"cannot {what}: OpenCL says {status(exc)}"
    if size is not None and exc.code in _OUT_OF_MEMORY:
        return OutOfMemory(
            text,
            expected=f"a device with {format_bytes(size)} to give",
            hint="a smaller size, or freeing something first",
        )
    return Unsupported(text, expected="a device and a driver in working order")


def start(device: OpenclDevice) -> Runtime:
    """A context and a queue on a device, found again by its name. Raises Unsupported."""
    _, platform, number = device.id.split(":")
    with said(f"use {device.id} ({device.name})"):
        place = cl.get_platforms()[int(platform)].get_devices()[int(number)]
        context = cl.Context([place])
        return Runtime(device, context, cl.CommandQueue(context))
