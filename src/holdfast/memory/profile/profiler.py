"""The memory profiler: record, then ask.

    with memory_profiler.record() as r:
        ...
    print(r.report().summary())
    r.save("step.html")

or, over a whole program, `enable_memory_profiling()` and `memory_profiler.get_report()` at any
time. Reports change nothing; a running recording goes on.
"""

from __future__ import annotations

import contextlib
from array import array
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from holdfast.base.announce import offer_once
from holdfast.base.errors import Misuse
from holdfast.memory.profile.recorder import Recorder
from holdfast.memory.profile.recording import COLUMNS, SUFFIX, Event, Kind, Recording
from holdfast.memory.profile.report import Report
from holdfast.memory.profile.timeline import Timeline


class ProfiledSpan:
    """One span of a recording, running or over; it may be a part of a recorder's whole time."""

    def __init__(self, recorder: Recorder, start_ns: int = 0) -> None:
        self._recorder = recorder
        self._start_ns = start_ns
        self._kept: Recording | None = None

    @property
    def running(self) -> bool:
        return self._kept is None and self._recorder.running

    @property
    def recording(self) -> Recording:
        """What was recorded; while it runs, a copy of what there is so far."""
        if self._kept is not None:
            return self._kept
        whole = self._recorder.so_far()
        return since(whole, self._start_ns) if self._start_ns else whole

    def end(self) -> None:
        """End the span here, even if the recorder goes on."""
        self._kept = self.recording

    def report(self) -> Report:
        return Report(self.recording)

    def timeline(self) -> Timeline:
        return Timeline(self.recording)

    def save(self, path: Path | str) -> Path:
        """Write the recording (.hfmem), its page (.html) or a picture (.png, .svg, .pdf)."""
        if Path(path).suffix == SUFFIX:
            return self.recording.save(path)
        return self.timeline().save(path)


class MemoryProfiler:
    """Records memory, and keeps the last recording."""

    def __init__(self) -> None:
        self._last: ProfiledSpan | None = None
        self._enabled: Recorder | None = None

    @contextlib.contextmanager
    def record(self, **options: Any) -> Iterator[ProfiledSpan]:
        """Record the `with` block; `options` are those of `Recorder`.

        If this profiler records already, the block is a part of that recording, and older blocks
        count as allocated at its start. Raises Misuse if options are passed then.
        """
        outer = self._last
        if outer is not None and outer.running and not options:
            span = ProfiledSpan(outer._recorder, outer._recorder.now_ns())
            stop = span.end
        else:
            recorder = Recorder(**options)
            recorder.start()
            span, stop = ProfiledSpan(recorder), recorder.stop
        self._last = span
        try:
            yield span
        finally:
            stop()

    @property
    def enabled(self) -> bool:
        """Whether `enable` started a recording that still runs."""
        return self._enabled is not None and self._enabled.running

    def enable(self, enabled: bool = True, **options: Any) -> None:
        """Start or stop recording; what was recorded stays available."""
        if enabled and not self.enabled:
            recorder = Recorder(**options)
            recorder.start()
            self._enabled, self._last = recorder, ProfiledSpan(recorder)
        elif not enabled and self._enabled is not None:
            recorder, self._enabled = self._enabled, None
            recorder.stop()

    def get_report(self) -> Report:
        """The report of the running or last recording. Raises Misuse if there is none."""
        return self._newest().report()

    def get_timeline(self) -> Timeline:
        """The same as a timeline."""
        return self._newest().timeline()

    def _newest(self) -> ProfiledSpan:
        if self._last is None:
            raise Misuse(
                "nothing was recorded yet",
                expected="a recording that runs or has run",
                hint="enable_memory_profiling(), or `with memory_profiler.record():`",
            )
        return self._last


def since(recording: Recording, start_ns: int) -> Recording:
    """The part of a recording from `start_ns` on; older blocks count as allocated at its start."""
    part = replace(
        recording,
        started_s=recording.started_s + start_ns / 1e9,
        duration_ns=recording.duration_ns - start_ns,
        series={name: _series_since(one, start_ns) for name, one in recording.series.items()},
        **{name: array(code) for name, code in COLUMNS.items()},
    )
    there: dict[tuple[int, int], Event] = {}
    later = []
    for event in recording.events():
        if event.time_ns >= start_ns:
            later.append(event._replace(time_ns=event.time_ns - start_ns))
        elif event.kind >= Kind.RESERVE:
            part.add(event._replace(time_ns=0))
        elif event.kind == Kind.ALLOC:
            there[event.place, event.address] = event._replace(time_ns=0)
        else:
            there.pop((event.place, event.address), None)
    for event in (*there.values(), *later):
        part.add(event)
    return part


def _series_since(
    series: tuple[array[int], array[int]], start_ns: int
) -> tuple[array[int], array[int]]:
    times, values = series
    first = max(0, bisect_left(times, start_ns) - 1)  # with the last sample before it
    return array("q", [max(0, time - start_ns) for time in times[first:]]), values[first:]


memory_profiler = MemoryProfiler()


def enable_memory_profiling(enabled: bool = True, **options: Any) -> None:
    """Start or stop recording memory; `memory_profiler` has the report."""
    offer_once()
    memory_profiler.enable(enabled, **options)
