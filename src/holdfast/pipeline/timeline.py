"""A recording of one run.

Covers: when each stage and step ended, memory of this process and of the device over time.
Leaves to others: what the stages are (progress), a page that shows it (timeline_page).
Promise: recording never makes a run fail and is over when the block is left, come what may; it
keeps at most `LIMIT` samples and loses no peak.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import Any

import psutil

from holdfast.base.codec import encode
from holdfast.base.threads import Team

LIMIT = 2000
FIRST_INTERVAL_S, LAST_INTERVAL_S = 0.02, 0.1


@dataclass(frozen=True, slots=True)
class Sample:
    """Memory in use: the most of the short time that begins at `at_s`."""

    at_s: float
    host_bytes: int | None
    device_bytes: int | None


@dataclass(frozen=True, slots=True)
class Event:
    """`done` of `total` steps of a stage were over; the peaks are since the event before."""

    at_s: float
    stage: str
    done: int
    total: int | None
    peak_host_bytes: int | None
    peak_device_bytes: int | None


@dataclass(frozen=True, slots=True)
class Stage:
    """A stage from its beginning to its end.

    `step_ms` has an entry for each event of progress: the time of that step, or the mean of several
    that were reported at once.
    """

    name: str
    start_s: float
    end_s: float
    steps: int
    total: int | None
    step_ms: tuple[float, ...]
    peak_host_bytes: int | None
    peak_device_bytes: int | None


# ---- recording


class Timeline(contextlib.AbstractContextManager["Timeline"]):
    """Record while the block runs; `device_bytes` tells what the device has in use.

    Both callables have to return soon. One that fails gives None for that moment.
    """

    def __init__(
        self,
        device_bytes: Callable[[], int | None] | None = None,
        *,
        host_bytes: Callable[[], int | None] | None = None,
        clock_s: Callable[[], float] = time.perf_counter,
    ) -> None:
        process = psutil.Process()
        self.device_bytes = device_bytes  # may be given later, once the device is known
        self._host_bytes = host_bytes or (lambda: process.memory_info().rss)
        self._clock_s, self._start_s = clock_s, clock_s()
        self._end_s: float | None = None
        self._team, self._lock, self._stopped = Team(), threading.Lock(), threading.Event()
        self._width_s = FIRST_INTERVAL_S  # samples nearer than this become one
        self._events: list[Event] = []
        self._samples: list[Sample] = []
        self._since = Sample(0.0, None, None)  # the most since the last event

    def __enter__(self) -> Timeline:
        self._read()
        try:
            with contextlib.suppress(RuntimeError):  # no thread to be had: events still sample
                self._team.start(self._watch)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        try:
            self._team.__exit__()
        finally:
            self._read()
            self._end_s = self._now_s()

    def mark(self, stage: str, done: int, total: int | None = None) -> None:
        """Note that `done` of `total` steps of `stage` are over; 0 says that it begins."""
        now = self._read()
        with self._lock:
            most, self._since = self._since, now
            self._events.append(
                Event(now.at_s, stage, done, total, most.host_bytes, most.device_bytes)
            )

    def _watch(self) -> None:
        """Until told to stop, or until nobody is left who could tell."""
        owner = threading.main_thread()
        while not self._stopped.wait(min(self._width_s, LAST_INTERVAL_S)) and owner.is_alive():
            self._read()

    def _now_s(self) -> float:
        return self._clock_s() - self._start_s

    def _read(self) -> Sample:
        with self._lock:
            now = Sample(self._now_s(), _ask(self._host_bytes), _ask(self.device_bytes))
            self._since = _most(self._since, now)
            self._samples[-1:] = _merged([*self._samples[-1:], now], self._width_s)
            while len(self._samples) > LIMIT:
                self._width_s *= 2
                self._samples = _merged(self._samples, self._width_s)
            return now

    @property
    def duration_s(self) -> float:
        """From the beginning to the end, or to now."""
        return self._now_s() if self._end_s is None else self._end_s

    @property
    def events(self) -> tuple[Event, ...]:
        """Every call of `mark`."""
        return tuple(self._events)

    @property
    def samples(self) -> tuple[Sample, ...]:
        """Memory over time, the closer the shorter the run was."""
        with self._lock:
            return tuple(self._samples)

    @property
    def stages(self) -> tuple[Stage, ...]:
        """What the events say about each stage; one that comes again is there again."""
        with self._lock:
            events, since, end_s = list(self._events), self._since, self.duration_s
        events.append(Event(end_s, "", 0, None, since.host_bytes, since.device_bytes))
        last = len(events) - 1
        firsts = [i for i in range(last) if i == 0 or _begins(events[i - 1], events[i])]
        return tuple(_stage(events, i, after) for i, after in pairwise([*firsts, last]))

    @property
    def peak_host(self) -> Sample | None:
        """When this process had most in memory."""
        known = [sample for sample in self.samples if sample.host_bytes is not None]
        return max(known, key=lambda sample: sample.host_bytes or 0, default=None)

    @property
    def peak_device(self) -> Sample | None:
        """When the device had most in use."""
        known = [sample for sample in self.samples if sample.device_bytes is not None]
        return max(known, key=lambda sample: sample.device_bytes or 0, default=None)

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        host, device = self.peak_host, self.peak_device
        return {
            "duration_s": self.duration_s,
            "peak_host_bytes": host and host.host_bytes,
            "peak_device_bytes": device and device.device_bytes,
            "stages": encode(self.stages),
            "events": encode(self.events),
            "samples": encode(self.samples),
        }


def _ask(source: Callable[[], int | None] | None) -> int | None:
    try:
        return source() if source else None
    except Exception:  # noqa: BLE001  a driver can raise anything, and the run goes on
        return None


def most_of(*values: int | None) -> int | None:
    """The largest of those that are known."""
    return max((value for value in values if value is not None), default=None)


def _most(one: Sample, other: Sample) -> Sample:
    return Sample(
        one.at_s,
        most_of(one.host_bytes, other.host_bytes),
        most_of(one.device_bytes, other.device_bytes),
    )


def _merged(samples: list[Sample], width_s: float) -> list[Sample]:
    """At most one sample for each `width_s`, which has the peaks of those it stands for."""
    groups = groupby(samples, key=lambda sample: sample.at_s // width_s)
    return [functools.reduce(_most, group) for _, group in groups]


def _begins(before: Event, event: Event) -> bool:
    return event.stage != before.stage or event.done < before.done


def _stage(events: list[Event], first: int, after: int) -> Stage:
    """The stage that has the events from `first` up to `after`, which is the next one's first."""
    begin, last, following = events[first], events[after - 1], events[after]
    before_s = events[first - 1].at_s if first else 0.0
    start_s = before_s if begin.done else begin.at_s
    finished = last.done == last.total
    end_s = last.at_s if finished or following.done else following.at_s
    own = events[first + (begin.done == 0) : after + (following.done == 0 and not finished)]
    marks = [(start_s, 0), *((event.at_s, event.done) for event in events[first:after])]
    return Stage(
        name=begin.stage,
        start_s=start_s,
        end_s=end_s,
        steps=last.done,
        total=last.total,
        step_ms=tuple((t - s) * 1000 / (n - m) for (s, m), (t, n) in pairwise(marks) if n > m),
        peak_host_bytes=most_of(*(event.peak_host_bytes for event in own)),
        peak_device_bytes=most_of(*(event.peak_device_bytes for event in own)),
    )
