"""Record one run: when each stage and step ended, memory of process and device over time.

Recording never fails a run and always ends with the block. It keeps at most `LIMIT` samples by
merging neighbours, and no peak gets lost.
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
    """Peak memory in the short interval that begins at `at_s`."""

    at_s: float
    host_bytes: int | None
    device_bytes: int | None


@dataclass(frozen=True, slots=True)
class StepMark:
    """`done` of `total` steps of a stage were finished; peaks are since the previous mark."""

    at_s: float
    stage: str
    done: int
    total: int | None
    peak_host_bytes: int | None
    peak_device_bytes: int | None


@dataclass(frozen=True, slots=True)
class StageSpan:
    """A stage from its begin to its end.

    `step_ms` has an entry for each mark: the time of that step, or the mean of several that were
    reported at once.
    """

    name: str
    start_s: float
    end_s: float
    steps: int
    total: int | None
    step_ms: tuple[float, ...]
    peak_host_bytes: int | None
    peak_device_bytes: int | None


class Timeline(contextlib.AbstractContextManager["Timeline"]):
    """Record while the block runs; `device_bytes` returns the memory in use on the device.

    Both callables must be quick. An exception counts as None for that sample.
    """

    def __init__(
        self,
        device_bytes: Callable[[], int | None] | None = None,
        *,
        host_bytes: Callable[[], int | None] | None = None,
        clock_s: Callable[[], float] = time.perf_counter,
    ) -> None:
        process = psutil.Process()
        self.device_bytes = device_bytes  # may be set later, once the device is known
        self._host_bytes = host_bytes or (lambda: process.memory_info().rss)
        self._clock_s, self._start_s = clock_s, clock_s()
        self._end_s: float | None = None
        self._team, self._lock, self._stopped = Team(), threading.Lock(), threading.Event()
        self._width_s = FIRST_INTERVAL_S  # closer samples are merged
        self._events: list[StepMark] = []
        self._samples: list[Sample] = []
        self._since = Sample(0.0, None, None)  # peaks since the last mark

    def __enter__(self) -> Timeline:
        self._read()
        try:
            with contextlib.suppress(RuntimeError):  # no thread available: marks still sample
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
        """Mark `done` of `total` steps of `stage` as finished; 0 is its begin."""
        now = self._read()
        with self._lock:
            most, self._since = self._since, now
            self._events.append(
                StepMark(now.at_s, stage, done, total, most.host_bytes, most.device_bytes)
            )

    def _watch(self) -> None:
        """Sample until stopped, or until the main thread is gone."""
        owner = threading.main_thread()
        while not self._stopped.wait(min(self._width_s, LAST_INTERVAL_S)) and owner.is_alive():
            self._read()

    def _now_s(self) -> float:
        return self._clock_s() - self._start_s

    def _read(self) -> Sample:
        with self._lock:
            now = Sample(self._now_s(), _ask(self._host_bytes), _ask(self.device_bytes))
            self._since = _merge_two(self._since, now)
            self._samples[-1:] = _merge([*self._samples[-1:], now], self._width_s)
            while len(self._samples) > LIMIT:
                self._width_s *= 2
                self._samples = _merge(self._samples, self._width_s)
            return now

    @property
    def duration_s(self) -> float:
        """Seconds from begin to end, or to now."""
        return self._now_s() if self._end_s is None else self._end_s

    @property
    def events(self) -> tuple[StepMark, ...]:
        """All marks."""
        return tuple(self._events)

    @property
    def samples(self) -> tuple[Sample, ...]:
        """Memory over time; the interval grows with the length of the run."""
        with self._lock:
            return tuple(self._samples)

    @property
    def stages(self) -> tuple[StageSpan, ...]:
        """Stages computed from the marks; a repeated stage is listed again."""
        with self._lock:
            events, since, end_s = list(self._events), self._since, self.duration_s
        events.append(StepMark(end_s, "", 0, None, since.host_bytes, since.device_bytes))
        last = len(events) - 1
        pairs = [*pairwise(events[:last])]
        starts = [b.stage != a.stage or b.done < a.done for a, b in pairs]
        firsts = [i for i, starts_here in enumerate([True, *starts]) if starts_here and i < last]
        return tuple(_stage(events, i, after) for i, after in pairwise([*firsts, last]))

    @property
    def peak_host(self) -> Sample | None:
        """The sample with the highest memory of the process."""
        return self._peak("host_bytes")

    @property
    def peak_device(self) -> Sample | None:
        """The sample with the highest memory of the device."""
        return self._peak("device_bytes")

    def _peak(self, of: str) -> Sample | None:
        known = [sample for sample in self.samples if getattr(sample, of) is not None]
        return max(known, key=lambda sample: getattr(sample, of), default=None)

    def to_dict(self) -> dict[str, Any]:
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
    except Exception:  # noqa: BLE001  a driver can raise anything; the run must go on
        return None


def max_known(*values: int | None) -> int | None:
    """The maximum of the known values, or None."""
    return max((value for value in values if value is not None), default=None)


def _merge_two(one: Sample, other: Sample) -> Sample:
    return Sample(
        one.at_s,
        max_known(one.host_bytes, other.host_bytes),
        max_known(one.device_bytes, other.device_bytes),
    )


def _merge(samples: list[Sample], width_s: float) -> list[Sample]:
    """Merge to at most one sample per `width_s`, keeping the peaks."""
    groups = groupby(samples, key=lambda sample: sample.at_s // width_s)
    return [functools.reduce(_merge_two, group) for _, group in groups]


def _stage(events: list[StepMark], first: int, after: int) -> StageSpan:
    """The stage of the marks `first` to `after`, exclusive."""
    begin, last, following = events[first], events[after - 1], events[after]
    before_s = events[first - 1].at_s if first else 0.0
    start_s = before_s if begin.done else begin.at_s
    finished = last.done == last.total
    end_s = last.at_s if finished or following.done else following.at_s
    own = events[first + (begin.done == 0) : after + (following.done == 0 and not finished)]
    marks = [(start_s, 0), *((event.at_s, event.done) for event in events[first:after])]
    return StageSpan(
        name=begin.stage,
        start_s=start_s,
        end_s=end_s,
        steps=last.done,
        total=last.total,
        step_ms=tuple((t - s) * 1000 / (n - m) for (s, m), (t, n) in pairwise(marks) if n > m),
        peak_host_bytes=max_known(*(event.peak_host_bytes for event in own)),
        peak_device_bytes=max_known(*(event.peak_device_bytes for event in own)),
    )
