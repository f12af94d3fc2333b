"""Streams and events of a device that computes in order: one stream for each device.

`elapsed_time` is measured between two records. NumPy computes at once; with an engine that queues
its work, events are markers in its queue, and waiting waits.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

import torch

from holdfast.compute.torch_device.api import engine_choice
from holdfast.compute.torch_device.api.current_device import device, device_index, set_device
from holdfast.compute.torch_device.errors import Refused
from holdfast.compute.torch_device.storage.tensor_bridge import DEVICE


class Event:
    """A marker in the work of the device."""

    def __init__(
        self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False
    ) -> None:
        if interprocess:
            raise Refused(
                "events of the device stay in their process", expected="interprocess=False"
            )
        self.enable_timing = enable_timing
        self._moment_ns: int = 0  # not recorded
        self._marker: Any = None  # in the queue of an engine that has one
        self._clock: Any = None  # events of the same engine can be compared

    def record(self, stream: Stream | None = None) -> None:
        """Mark the end of the work submitted so far."""
        engine = _engine(None if stream is None else stream.device)
        self._clock, self._marker = engine, None if engine is None else engine.marker()
        self._moment_ns = time.perf_counter_ns()

    def wait(self, stream: Stream | None = None) -> None:
        """Make work submitted from now on wait for the event."""
        if self._marker is not None and _engine(stream and stream.device) is not self._clock:
            self._marker.wait()  # its own device works in order

    def query(self) -> bool:
        """Whether the work before the event is done."""
        return self._marker is None or self._marker.is_done()

    def synchronize(self) -> None:
        """Wait until the work before the event is done."""
        if self._marker is not None:
            self._marker.wait()

    def elapsed_time(self, end_event: Event) -> float:
        """Milliseconds from this event to a later one. Raises Refused if one was not timed."""
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
    """The engine whose queue a device works through; None where calls return when done."""
    index = device_index(device)
    return None if engine_choice.engine() == engine_choice.HOST else engine_choice.engine_on(index)


class Stream:
    """The one stream of a device: all streams of a device are the same."""

    stream_id = 0

    def __init__(self, device: Any = None, priority: int = 0) -> None:
        self.device = torch.device(DEVICE, device_index(device))
        self.priority = priority

    def record_event(self, event: Event | None = None) -> Event:
        """Record an event now."""
        event = event or Event()
        event.record(self)
        return event

    def wait_event(self, event: Event) -> None:
        """Make work that follows wait for an event."""
        event.wait(self)

    def wait_stream(self, stream: Stream) -> None:
        """Make this stream wait for `stream`."""
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


default_stream = current_stream


def set_stream(stream: Stream | None) -> None:
    """Make the device of a stream the current one."""
    if stream is not None:
        set_device(stream.device)


@contextlib.contextmanager
def stream(stream: Stream | None) -> Iterator[None]:
    """Make the device of a stream the current one within the block."""
    with device(-1 if stream is None else stream.device):
        yield


def synchronize(device: Any = None) -> None:
    """Wait until all work of a device is done."""
    engine = _engine(device)
    if engine is not None:
        engine.synchronize()
