"""The memory profiler: record, then ask."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest

from holdfast.base.errors import Misuse
from holdfast.memory.profile.profiler import (
    MemoryProfiler,
    enable_memory_profiling,
    memory_profiler,
)
from holdfast.memory.profile.recording import Lifetime, Recording
from holdfast.memory.profile.report import Report
from holdfast.memory.profile.timeline import Timeline


@pytest.fixture
def profiler():
    made = MemoryProfiler()
    yield made
    made.enable(False)


def of_numpy(recording: Recording) -> list[Lifetime]:
    """Pools of other tests may have blocks too."""
    places = recording.places_table
    return [b for b in recording.lifetimes() if places[b.place].source == "numpy"]


def largest(report: Report) -> int:
    return max(block.size for block in of_numpy(report.recording))


def total(report: Report) -> int:
    return sum(block.size for block in of_numpy(report.recording))


def test_a_block_of_code_can_be_recorded_and_asked_about(profiler, tmp_path):
    with profiler.record(title="step") as recorded:
        kept = np.empty(1_234_567, np.uint8)
        assert recorded.running
    assert not recorded.running
    assert recorded.recording.title == "step"
    assert largest(recorded.report()) == 1_234_567
    assert "1.2 MB" in recorded.report().summary()
    assert isinstance(recorded.timeline(), Timeline)
    assert Recording.load(recorded.save(tmp_path / "step.hfmem")) == recorded.recording
    page = recorded.save(tmp_path / "step.html")
    assert page.read_text().startswith("<!DOCTYPE html>")
    del kept


def test_the_report_is_of_the_last_recording(profiler):
    for size in (10_000, 20_000):
        with profiler.record():
            kept = np.empty(size, np.uint8)
    assert largest(profiler.get_report()) == 20_000
    assert profiler.get_timeline().recording is profiler.get_report().recording
    del kept


def test_while_it_is_enabled_the_report_is_of_what_is_there_so_far(profiler):
    profiler.enable()
    first = np.empty(10_000, np.uint8)
    assert largest(profiler.get_report()) == 10_000
    second = np.empty(20_000, np.uint8)
    assert largest(profiler.get_report()) == 20_000
    profiler.enable(False)
    third = np.empty(30_000, np.uint8)
    assert largest(profiler.get_report()) == 20_000
    del first, second, third


def test_enabling_twice_goes_on_and_disabling_twice_does_nothing(profiler):
    profiler.enable()
    kept = np.empty(10_000, np.uint8)
    profiler.enable()
    assert largest(profiler.get_report()) == 10_000
    profiler.enable(False)
    profiler.enable(False)
    assert not profiler.enabled
    del kept


def test_an_error_inside_the_block_leaves_the_recording(profiler):
    with contextlib.suppress(ZeroDivisionError), profiler.record():
        np.empty(10_000, np.uint8)
        1 / 0  # noqa: B018
    assert total(profiler.get_report()) == 10_000


def test_inside_an_enabled_profiler_a_block_is_a_part_of_its_recording(profiler):
    profiler.enable()
    early, gone = np.empty(10_000, np.uint8), np.empty(11_000, np.uint8)
    del gone
    with profiler.record() as part:
        inside = np.empty(20_000, np.uint8)
        del early
    after = np.empty(30_000, np.uint8)
    found = {life.size: life for life in of_numpy(part.recording)}
    assert set(found) == {10_000, 20_000}
    assert found[10_000].start_ns == 0 < found[20_000].start_ns
    assert found[10_000].end_ns is not None
    assert max(part.recording.times_ns) <= part.recording.duration_ns
    times, values = part.recording.series["rss"]
    assert len(times) == len(values) >= 2
    assert times[0] == 0
    assert profiler.enabled
    assert total(profiler.get_report()) == 30_000  # of the part: it is the last recording
    del inside, after


def test_options_cannot_be_changed_for_a_part(profiler):
    profiler.enable()
    with (
        pytest.raises(Misuse, match=r"^memory is being recorded already"),
        profiler.record(depth=1),
    ):
        pass


@pytest.mark.parametrize("ask", ["get_report", "get_timeline"])
def test_asking_before_anything_was_recorded_says_what_to_call(profiler, ask):
    with pytest.raises(Misuse) as caught:
        getattr(profiler, ask)()
    assert str(caught.value) == (
        "nothing was recorded yet\n"
        "  expected: a recording that runs or has run\n"
        "  try: enable_memory_profiling(), or `with memory_profiler.record():`"
    )


def test_the_function_of_the_specification_is_the_profiler_of_the_process():
    enable_memory_profiling()
    try:
        assert memory_profiler.enabled
    finally:
        enable_memory_profiling(False)
    assert not memory_profiler.enabled
