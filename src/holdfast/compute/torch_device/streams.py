"""Streams and events of a device that computes in order: what was asked for is done.

Covers: one stream, events that measure, waiting.
Promise: `elapsed_time` is the time that passed between two records, measured; nothing is ever left
to wait for.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

import torch

from holdfast.compute.torch_device.errors import Refused
from holdfast.compute.torch_device.places import place
from holdfast.compute.torch_device.storage import DEVICE


class Event:
    """A moment in the work of the device."""

    def __init__(
        self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False
    ) -> None:
        if interprocess:
            raise Refused(
                "events of the device stay in their process", expected="interprocess=False"
            )
        self.enable_timing = enable_timing
        self._moment_ns: int = 0  # not recorded

    def record(self, stream: Stream | None = None) -> None:
        """Note the moment: all work that was asked for before it is done."""
        self._moment_ns = time.perf_counter_ns()

    def wait(self, stream: Stream | None = None) -> None:
        """Let what is asked for from now on come after the event: it does."""

    def query(self) -> bool:
        """Whether the work before the event is done: it is."""
        return True

    def synchronize(self) -> None:
        """Wait until the work before the event is done."""

    def elapsed_time(self, end_event: Event) -> float:
        """Milliseconds from this event to a later one. Raises Refused where one has no time."""
        for event in (self, end_event):
            if not event.enable_timing or not event._moment_ns:
                raise Refused(
                    "cannot measure: an event has no time",
                    expected="two events that were made with enable_timing=True and recorded",
                )
        return (end_event._moment_ns - self._moment_ns) / 1e6


class Stream:
    """The order in which the device works: every stream is the one there is."""

    stream_id = 0

    def __init__(self, device: Any = None, priority: int = 0) -> None:
        self.device = torch.device(DEVICE, place(device))
        self.priority = priority

    def record_event(self, event: Event | None = None) -> Event:
        """An event at this moment."""
        event = event or Event()
        event.record(self)
        return event

    def wait_event(self, event: Event) -> None:
        """Let what follows come after an event: it does."""

    def wait_stream(self, stream: Stream) -> None:
        """Let what follows come after what another stream was asked for: it does."""

    def query(self) -> bool:
        """Whether all work is done: it is."""
        return True

    def synchronize(self) -> None:
        """Wait until all work is done."""

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream)

    def __hash__(self) -> int:
        return hash((DEVICE, self.stream_id))

    def __repr__(self) -> str:
        return f"<torch.{DEVICE}.Stream device={self.device}>"


_stream = Stream()


def current_stream(device: Any = None) -> Stream:
    """The stream of the device."""
    place(device)
    return _stream


def default_stream(device: Any = None) -> Stream:
    """The stream of the device."""
    return current_stream(device)


def set_stream(stream: Stream | None) -> None:
    """Work in a stream from now on: there is one."""


@contextlib.contextmanager
def stream(stream: Stream | None) -> Iterator[None]:
    """Within the block, work in a stream: there is one."""
    yield


def synchronize(device: Any = None) -> None:
    """Wait until the device is done: it is when a call returns."""
    place(device)
