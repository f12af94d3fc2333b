"""The memory profiler: record, then ask.

    with memory_profiler.record() as r:
        ...
    print(r.report().summary())
    r.save("step.html")

or, over a whole program, `enable_memory_profiling()` and `memory_profiler.get_report()` whenever.

Covers: which recording is meant.  Leaves to others: recording (record), adding up (report),
drawing (timeline, page).
Promise: asking changes nothing; a recording that runs goes on.
"""

from __future__ import annotations

import contextlib
from array import array
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from holdfast.base.errors import Misuse
from holdfast.base.offering import offer_once
from holdfast.memory.record import Recorder
from holdfast.memory.recording import COLUMNS, SUFFIX, Event, Kind, Recording
from holdfast.memory.report import Report
from holdfast.memory.timeline import Timeline


class Recorded:
    """One stretch of recording, running or over; of a recorder that runs on, a part."""

    def __init__(self, recorder: Recorder, start_ns: int = 0) -> None:
        self._recorder = recorder
        self._start_ns = start_ns
        self._kept: Recording | None = None

    @property
    def running(self) -> bool:
        """Whether it still records."""
        return self._kept is None and self._recorder.running

    @property
    def recording(self) -> Recording:
        """What was recorded; while it runs, a copy of what is there so far."""
        if self._kept is not None:
            return self._kept
        whole = self._recorder.so_far()
        return since(whole, self._start_ns) if self._start_ns else whole

    def end(self) -> None:
        """This is all of it, also where the recorder runs on."""
        self._kept = self.recording

    def report(self) -> Report:
        """Who took how much."""
        return Report(self.recording)

    def timeline(self) -> Timeline:
        """Memory over time."""
        return Timeline(self.recording)

    def save(self, path: Path | str) -> Path:
        """Write it: to .hfmem the recording itself, to .html, .png and so on what it shows."""
        if Path(path).suffix == SUFFIX:
            return self.recording.save(path)
        return self.timeline().save(path)


class MemoryProfiler:
    """Records memory, and remembers the last recording."""

    def __init__(self) -> None:
        self._last: Recorded | None = None
        self._enabled: Recorder | None = None

    @contextlib.contextmanager
    def record(self, **options: Any) -> Iterator[Recorded]:
        """Record what happens inside the block; `options` are those of `Recorder`.

        While this profiler records already, the block is a part of that, and blocks that were
        there before begin with it. Raises Misuse where options are given then.
        """
        outer = self._last
        if outer is not None and outer.running and not options:
            recorded = Recorded(outer._recorder, outer._recorder.now_ns())
            stop = recorded.end
        else:
            recorder = Recorder(**options)
            recorder.start()
            recorded, stop = Recorded(recorder), recorder.stop
        self._last = recorded
        try:
            yield recorded
        finally:
            stop()

    @property
    def enabled(self) -> bool:
        """Whether `enable` has it record now."""
        return self._enabled is not None and self._enabled.running

    def enable(self, enabled: bool = True, **options: Any) -> None:
        """Record from now on, or stop; what was recorded stays to be asked for."""
        if enabled and not self.enabled:
            recorder = Recorder(**options)
            recorder.start()
            self._enabled, self._last = recorder, Recorded(recorder)
        elif not enabled and self._enabled is not None:
            recorder, self._enabled = self._enabled, None
            recorder.stop()

    def get_report(self) -> Report:
        """The report of the recording that runs, or of the last one. Raises Misuse without one."""
        return self._newest().report()

    def get_timeline(self) -> Timeline:
        """The same as a timeline."""
        return self._newest().timeline()

    def _newest(self) -> Recorded:
        if self._last is None:
            raise Misuse(
                "nothing was recorded yet",
                expected="a recording that runs or has run",
                hint="enable_memory_profiling(), or `with memory_profiler.record():`",
            )
        return self._last


def since(recording: Recording, start_ns: int) -> Recording:
    """The part of a recording from `start_ns` on; what was there before begins with it."""
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
    first = max(0, bisect_left(times, start_ns) - 1)  # the last one before is the first of the part
    return array("q", [max(0, time - start_ns) for time in times[first:]]), values[first:]


memory_profiler = MemoryProfiler()


def enable_memory_profiling(enabled: bool = True, **options: Any) -> None:
    """Record memory from now on, or stop: `memory_profiler` has the report."""
    offer_once()
    memory_profiler.enable(enabled, **options)
