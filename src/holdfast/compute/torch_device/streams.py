"""Streams and events of a device that computes in order.

Covers: one stream for each device, events that measure, waiting.
Promise: `elapsed_time` is the time that passed between two records, measured. With NumPy what was
asked for is done; with an engine that queues its work, events are moments in its queue, and
waiting waits.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

import torch

from holdfast.compute.torch_device import selecting
from holdfast.compute.torch_device.errors import Refused
from holdfast.compute.torch_device.places import device, place, set_device
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
        self._marker: Any = None  # the moment in the queue of an engine that has one
        self._clock: Any = None  # whose moments it can be compared with

    def record(self, stream: Stream | None = None) -> None:
        """Note the moment: all work that was asked for before it comes before it."""
        engine = _engine(None if stream is None else stream.device)
        self._clock, self._marker = engine, None if engine is None else engine.marker()
        self._moment_ns = time.perf_counter_ns()

    def wait(self, stream: Stream | None = None) -> None:
        """Let what is asked for from now on come after the event."""
        if self._marker is not None and _engine(stream and stream.device) is not self._clock:
            self._marker.wait()  # on its own device it does

    def query(self) -> bool:
        """Whether the work before the event is done."""
        return self._marker is None or self._marker.is_done()

    def synchronize(self) -> None:
        """Wait until the work before the event is done."""
        if self._marker is not None:
            self._marker.wait()

    def elapsed_time(self, end_event: Event) -> float:
        """Milliseconds from this event to a later one. Raises Refused where one has no time."""
        for event in (self, end_event):
            if not event.enable_timing or not event._moment_ns:
                raise Refused(
                    "cannot measure: an event has no time",
                    expected="two events that were made with enable_timing=True and recorded",
                )
        if self._clock is not end_event._clock:
            raise Refused(
                "cannot measure: the events are of two devices", expected="two events of one device"
            )
        return (end_event._time_ns() - self._time_ns()) / 1e6

    def _time_ns(self) -> int:
        return self._moment_ns if self._marker is None else self._marker.time_ns()


def _engine(device: Any) -> Any:
    """The engine whose queue a device works through; None where a call returns when it is done."""
    index = place(device)
    return None if selecting.engine() == selecting.HOST else selecting.chosen(index)


class Stream:
    """The order in which a device works: every stream of it is the one there is."""

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
        """Let what follows come after an event."""
        event.wait(self)

    def wait_stream(self, stream: Stream) -> None:
        """Let what follows come after what another stream was asked for."""
        if stream.device != self.device:
            stream.synchronize()

    def query(self) -> bool:
        """Whether all work is done."""
        engine = _engine(self.device)
        return engine is None or engine.marker().is_done()

    def synchronize(self) -> None:
        """Wait until all work is done."""
        synchronize(self.device)

    def __enter__(self) -> Stream:
        self._inside = stream(self)
        self._inside.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._inside.__exit__(None, None, None)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and other.device == self.device

    def __hash__(self) -> int:
        return hash((self.device, self.stream_id))

    def __repr__(self) -> str:
        return f"<torch.{DEVICE}.Stream device={self.device}>"


def current_stream(device: Any = None) -> Stream:
    """The stream of a device."""
    return Stream(device)


def default_stream(device: Any = None) -> Stream:
    """The stream of a device."""
    return Stream(device)


def set_stream(stream: Stream | None) -> None:
    """Work in a stream from now on: its device is the current one."""
    if stream is not None:
        set_device(stream.device)


@contextlib.contextmanager
def stream(stream: Stream | None) -> Iterator[None]:
    """Within the block, work in a stream: its device is the current one."""
    with device(-1 if stream is None else stream.device):
        yield


def synchronize(device: Any = None) -> None:
    """Wait until a device is done."""
    engine = _engine(device)
    if engine is not None:
        engine.synchronize()
