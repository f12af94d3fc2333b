from __future__ import annotations

import _thread
import base64
import json
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from holdfast.pipeline.output import timeline as module
from holdfast.pipeline.output.timeline import LIMIT, Sample, StageSpan, StepMark, Timeline
from holdfast.pipeline.output.timeline_page import format_time, render
from tests.memory import browser

HOSTILE = (
    "</script><script>alert('x')</script> & \"quotes\" <!-- 灯台 🌊 \udcff \0 \x1b $title $data"
)


class Machine:
    """A clock and memory that a test sets; `run` lets time pass and a sampler look at it."""

    def __init__(self, device: bool = False) -> None:
        self.now_s, self.host, self.device = 100.0, 1000, 10 if device else None
        self.timeline = Timeline(
            lambda: self.device, host_bytes=lambda: self.host, clock_s=lambda: self.now_s
        )

    def run(self, duration_s: float, host: int | None = None, device: int | None = None) -> None:
        """The memory is in use in the middle of the time, and is free again at its end."""
        before = self.host, self.device
        self.now_s += duration_s / 2
        self.host = self.host if host is None else host
        self.device = self.device if device is None else device
        self.timeline._read()
        self.now_s += duration_s / 2
        self.host, self.device = before


def _whole_run() -> Machine:
    machine = Machine(device=True)
    timeline = machine.timeline
    machine.run(1)
    timeline.mark("text", 0, 1)
    machine.run(2, host=5000)
    timeline.mark("text", 1, 1)
    machine.run(1, host=9000)
    timeline.mark("denoise", 0, 2)
    machine.run(4, device=700)
    timeline.mark("denoise", 1, 2)
    machine.run(6, device=900)
    timeline.mark("denoise", 2, 2)
    timeline.mark("decode", 0, None)
    machine.run(2, host=7000)
    with timeline:
        pass
    return machine


# ---- recording


def test_stages_know_their_times_steps_and_peaks() -> None:
    assert _whole_run().timeline.stages == (
        StageSpan("text", 1.0, 3.0, 1, 1, (2000.0,), 5000, 10),
        StageSpan("denoise", 4.0, 14.0, 2, 2, (4000.0, 6000.0), 1000, 900),
        StageSpan("decode", 14.0, 16.0, 0, None, (), 7000, 10),
    )


def test_events_tell_the_peak_since_the_one_before() -> None:
    events = _whole_run().timeline.events
    assert events[1] == StepMark(3.0, "text", 1, 1, 5000, 10)
    assert [(e.peak_host_bytes, e.peak_device_bytes) for e in events] == [
        (1000, 10),
        (5000, 10),
        (9000, 10),
        (1000, 700),
        (1000, 900),
        (1000, 10),
    ]


def test_a_recording_goes_to_json() -> None:
    timeline = _whole_run().timeline
    document = json.loads(json.dumps(timeline.to_dict()))
    assert document["duration_s"] == 16.0
    assert (document["peak_host_bytes"], document["peak_device_bytes"]) == (9000, 900)
    assert document["stages"][0]["step_ms"] == [2000.0]
    assert document["events"][0]["stage"] == "text"
    assert document["samples"][0] == {"at_s": 0.5, "host_bytes": 1000, "device_bytes": 10}


def test_a_stage_without_a_beginning_begins_where_the_last_ended() -> None:
    machine = Machine()
    machine.run(1, host=2000)
    machine.timeline.mark("text", 1, None)
    machine.run(3, host=3000)
    machine.timeline.mark("denoise", 2, 4)
    machine.run(1, host=4000)
    assert machine.timeline.stages == (
        StageSpan("text", 0.0, 1.0, 1, None, (1000.0,), 2000, None),
        StageSpan("denoise", 1.0, 5.0, 2, 4, (1500.0,), 4000, None),
    )


def test_a_stage_that_comes_again_is_there_again() -> None:
    machine = Machine()
    for _ in range(2):
        for done in range(3):
            machine.timeline.mark("denoise", done, 2)
            machine.run(1)
    assert [(s.start_s, s.end_s, s.steps) for s in machine.timeline.stages] == [
        (0, 2, 2),
        (3, 5, 2),
    ]


def test_a_run_without_events_has_no_stages() -> None:
    machine = Machine()
    machine.run(1)
    assert machine.timeline.stages == ()
    assert machine.timeline.events == ()


# ---- memory


def test_an_hour_stays_below_the_limit_and_keeps_its_peaks() -> None:
    machine = Machine(device=True)
    for moment in range(36_000):
        machine.run(0.1, host=10**9 if moment == 20_001 else None, device=moment % 777)
        if moment == 30_000:
            machine.timeline.mark("denoise", 0, 1)
    samples = machine.timeline.samples
    assert LIMIT / 3 < len(samples) <= LIMIT
    assert all(one.at_s < other.at_s for one, other in pairwise(samples))
    peak = machine.timeline.peak_host
    assert peak is not None
    assert peak.host_bytes == 10**9
    assert peak.at_s == pytest.approx(2000.15, abs=4)
    assert machine.timeline.peak_device is not None
    assert machine.timeline.peak_device.device_bytes == 776
    assert machine.timeline.stages[0].peak_host_bytes == 1000


def test_a_million_events_do_not_make_a_million_samples() -> None:
    machine = Machine()
    for done in range(5_000):
        machine.now_s += 10
        machine.timeline.mark("load", done, None)
    assert len(machine.timeline.samples) <= LIMIT


def test_memory_is_read_while_the_run_works() -> None:
    before_s = time.perf_counter()
    with Timeline() as timeline:
        while len(timeline.samples) < 5 and time.perf_counter() - before_s < 60:
            time.sleep(0.01)
    most_s = time.perf_counter() - before_s
    samples = timeline.samples
    assert 5 <= len(samples) <= 2 + most_s / module.FIRST_INTERVAL_S
    assert all(sample.host_bytes and sample.host_bytes > 2**20 for sample in samples)
    assert all(sample.device_bytes is None for sample in samples)
    assert samples[-1].at_s <= timeline.duration_s <= most_s


def test_the_device_can_be_named_once_it_is_known() -> None:
    with Timeline(host_bytes=lambda: 7) as timeline:
        timeline.mark("load", 0, 1)
        timeline.device_bytes = lambda: 5
        timeline.mark("load", 1, 1)
    assert timeline.stages[0].peak_device_bytes == 5


def test_a_driver_that_fails_does_not_end_the_run() -> None:
    def broken() -> int:
        raise RuntimeError("driver shutting down")

    with Timeline(broken, host_bytes=lambda: 7) as timeline:
        timeline.mark("text", 0, 1)
    assert {(s.host_bytes, s.device_bytes) for s in timeline.samples} == {(7, None)}


def test_a_run_without_a_thread_to_be_had_is_recorded_by_its_events(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refused(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refused)
    with Timeline(host_bytes=lambda: 7) as timeline:
        timeline.mark("text", 0, 1)
    assert timeline.stages[0].peak_host_bytes == 7


# ---- the sampler ends


@pytest.mark.parametrize("exception", [None, ValueError, KeyboardInterrupt, SystemExit])
def test_the_sampler_is_over_when_the_block_is_left(exception: type[BaseException] | None) -> None:
    before = threading.active_count()

    def run() -> None:
        with Timeline():
            assert threading.active_count() == before + 1
            if exception:
                raise exception

    if exception:
        with pytest.raises(exception):
            run()
    else:
        run()
    assert threading.active_count() == before


def test_ctrl_c_while_the_sampler_works_waits_for_it() -> None:
    before = threading.active_count()
    inside = threading.Event()

    def slow() -> int:
        inside.set()
        time.sleep(0.05)
        return 1

    def run() -> None:
        with Timeline(slow):
            inside.clear()
            inside.wait()
            _thread.interrupt_main()
            time.sleep(5)

    with pytest.raises(KeyboardInterrupt):
        run()
    assert threading.active_count() == before


def test_ctrl_c_while_the_sampler_starts_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    before = threading.active_count()
    real = module.Team.start

    def interrupted(self: module.Team, *arguments: object) -> None:
        real(self, *arguments)
        raise KeyboardInterrupt

    monkeypatch.setattr(module.Team, "start", interrupted)
    with pytest.raises(KeyboardInterrupt):
        Timeline().__enter__()
    assert threading.active_count() == before


def test_a_recording_that_is_never_left_does_not_keep_the_program_alive() -> None:
    program = "from holdfast.pipeline.output.timeline import Timeline\nTimeline().__enter__()"
    subprocess.run([sys.executable, "-W", "error", "-c", program], check=True, timeout=300)


# ---- the page


class Page(HTMLParser):
    """Checks that every element is closed, and collects what a test asks for."""

    EMPTY = ("meta", "img")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.scripts: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in self.EMPTY:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        (self.scripts if self.open[-1:] == ["script"] else self.words).append(data)

    def count(self, tag: str) -> int:
        return sum(name == tag for name, _ in self.tags)

    @property
    def data(self) -> dict[str, Any]:
        return json.loads(self.scripts[0])


def test_the_page_shows_tiles_stages_and_settings() -> None:
    page = render(_whole_run().timeline, {"prompt": "a lighthouse", "steps": 2, "negative": None})
    words = " ".join(Page(page).words)
    for text in ("16.00 s", "5.00 s", "between stages", "62 %", "a lighthouse", "negative"):
        assert text in words


def test_the_script_gets_the_numbers() -> None:
    machine = _whole_run()
    data = Page(render(machine.timeline, {})).data
    (panel,) = data["panels"]
    assert panel["stages"] == [
        {"name": "text", "from_s": 1.0, "to_s": 3.0},
        {"name": "denoise", "from_s": 4.0, "to_s": 14.0},
        {"name": "decode", "from_s": 14.0, "to_s": 16.0},
    ]
    assert data["marks"][1] == [3.0, "text", 1, 1]
    assert panel["at_s"][0] == 0.5
    assert [layer["nbytes"][0] for layer in panel["layers"]] == [1000, 10]


def test_the_page_asks_no_network() -> None:
    page = render(_whole_run().timeline, {"prompt": "x"}, picture_png=b"PNG")
    links = [v for _, attrs in Page(page).tags for k, v in attrs.items() if k in ("src", "href")]
    assert links == ["data:,", "data:image/png;base64," + base64.b64encode(b"PNG").decode()]
    assert "default-src 'none'" in page
    assert re.findall(r"https?://[^\"]*", page) == ["http://www.w3.org/2000/svg"]
    assert "@import" not in page
    assert "url(" not in page


def test_every_text_is_escaped() -> None:
    machine = Machine(device=True)
    machine.timeline.mark(HOSTILE, 0, 1)
    machine.run(1)
    machine.timeline.mark(HOSTILE, 1, 1)
    settings = {"prompt": HOSTILE, HOSTILE: {HOSTILE: [HOSTILE]}, "number": 3}
    page = render(machine.timeline, settings)
    parsed, plain = Page(page), Page(render(machine.timeline, {"prompt": "x", "y": 1, "z": 1}))
    assert parsed.count("script") == plain.count("script") == 2
    assert [tag for tag, _ in parsed.tags] == [tag for tag, _ in plain.tags]
    page.encode()  # no lone surrogates
    assert "\0" not in page
    assert "<" not in parsed.scripts[0]
    assert parsed.scripts[1:] == plain.scripts[1:]
    assert parsed.data["panels"][0]["stages"] == [{"name": HOSTILE, "from_s": 0.0, "to_s": 1.0}]
    assert HOSTILE.partition("\udcff")[0] in "".join(parsed.words)


def test_a_page_without_anything_to_show_is_whole() -> None:
    data = Page(render(Machine().timeline, {})).data
    assert [layer["name"] for layer in data["panels"][0]["layers"]] == ["process"]


def test_a_page_of_very_many_steps_stays_small() -> None:
    assert len(render(_many_steps(), {})) < 300_000


def _many_steps() -> Timeline:
    machine = Machine()
    for done in range(50_000):
        machine.now_s += 0.01
        machine.timeline.mark("denoise", done, 50_000)
    return machine.timeline


@pytest.mark.parametrize(
    ("duration_s", "text"),
    [(0.0123, "12 ms"), (1.5, "1.50 s"), (59.999, "60.00 s"), (3725, "62 min 5 s")],
)
def test_times_are_written_for_people(duration_s: float, text: str) -> None:
    assert format_time(duration_s) == text


# ---- the page in a browser


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with browser.browser() as running:
        yield running


@dataclass
class Drawn:
    """What the script of a page has drawn."""

    opened: browser.Opened

    def texts(self) -> list[str]:
        return self.opened.page.locator("#app svg text").all_text_contents()

    def count(self, selector: str) -> int:
        return self.opened.page.locator(f"#app {selector}").count()


@contextmanager
def drawn(chromium: Any, path: Path, timeline: Timeline) -> Iterator[Drawn]:
    path.write_text(render(timeline, {"prompt": "x"}))
    with browser.opened(chromium, path) as opened:
        yield Drawn(opened)
        assert opened.errors == []
        assert opened.requests == [path.as_uri()]


@pytest.mark.slow
@pytest.mark.browser
@pytest.mark.skipif(browser.missing() is not None, reason=str(browser.missing()))
class TestDrawn:
    def test_the_chart_shows_stages_axes_and_peaks(self, chromium: Any, tmp_path: Path) -> None:
        with drawn(chromium, tmp_path / "a.html", _whole_run().timeline) as seen:
            assert seen.texts() == [
                *("text", "denoise", "decode"),
                *("0 B", "500 KB", "1.0 MB"),
                *(f"{at} s" for at in range(0, 17, 2)),
                *("process peak 9.0 KB", "device peak 900 B"),
            ]
            legend = seen.opened.page.locator("#app li").all_text_contents()
            assert legend == ["process, at most 9.0 KB", "device, at most 900 B"]
            seen.opened.page.mouse.move(*seen.opened.at("#app svg", 0.45, 0.5))
            tip = seen.opened.page.locator("#tip").inner_text().splitlines()
            assert tip[0].endswith(" s, denoise, step 1 of 2")
            assert tip[1:] == ["700 B  device", "1.0 KB  process"]

    def test_hostile_names_are_text(self, chromium: Any, tmp_path: Path) -> None:
        machine = Machine()
        machine.timeline.mark("<b>bold</b>", 0, 1)
        machine.run(1)
        with drawn(chromium, tmp_path / "a.html", machine.timeline) as seen:
            assert seen.texts()[0] == "<b>bold</b>"

    def test_one_sample_is_a_dot(self, chromium: Any, tmp_path: Path) -> None:
        machine = Machine()
        machine.timeline.mark("text", 0, 0)
        with drawn(chromium, tmp_path / "a.html", machine.timeline) as seen:
            assert (seen.count("circle:not(.peak)"), seen.count("circle.peak")) == (1, 1)

    def test_unknown_values_are_a_gap_in_the_line(self, chromium: Any, tmp_path: Path) -> None:
        machine = Machine()
        for host in (1, 2, None, 3, 4):
            machine.host = host
            machine.now_s += 1
            machine.timeline.mark("text", 1, None)
        assert machine.timeline.samples[2] == Sample(3.0, None, None)
        with drawn(chromium, tmp_path / "a.html", machine.timeline) as seen:
            assert seen.count("polyline") == 2

    def test_very_many_steps_are_few_marks(self, chromium: Any, tmp_path: Path) -> None:
        with drawn(chromium, tmp_path / "a.html", _many_steps()) as seen:
            assert 100 < seen.count("line.step") < 300
