from __future__ import annotations

import base64
import hashlib
import json
import re
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from holdfast.memory.profile import page as memory_page
from holdfast.residency.recording.journal import NOT_ARRIVED, THERE_BEFORE, Entry
from holdfast.residency.recording.page import (
    ASSETS,
    Stay,
    find_stays,
    make_section,
    render_fragment,
    render_page,
)
from tests.memory import samples
from tests.memory.browser import browser, missing
from tests.needs import needs

MB = 10**6
HOSTILE = "<img src=x onerror=alert(1)>"
in_a_browser = [pytest.mark.browser, pytest.mark.slow, needs(missing())]


def passes(count: int = 3, layers: int = 8) -> list[Entry]:
    """Passes of one layer a millisecond; even layers stay, odd ones come too late."""
    made = [Entry("keep", f"blocks.{i}.weight", 4 * MB, 0.0, 0.0) for i in range(0, layers, 2)]
    for number in range(count):
        start = number * layers
        made.append(Entry("pass", "forward", 0, start, start + layers))
        for i in range(1, layers, 2):
            name, at = f"blocks.{i}.weight", float(start + i)
            made.append(Entry("copy", name, 15 * MB, at - 1.0, at + 0.5))
            made.append(Entry("stall", name, 0, at, at + 0.5, NOT_ARRIVED))
            made.append(Entry("stay", name, 15 * MB, at + 0.5, at + 1.0))
    end = float(count * layers)
    made.append(Entry("demand", "odd", 2 * MB, end - 1, end - 1))
    made.append(Entry("evict", "blocks.0.weight", 4 * MB, end / 2, end / 2, "the budget shrank"))
    return made


def _data(text: str) -> dict[str, Any]:
    found = re.search(r'class="hf-data">([^<]*)</script>', text)
    assert found is not None
    return json.loads(zlib.decompress(base64.b64decode(found[1])))


# ---- what was where


def test_kept_weights_stay_until_they_are_evicted_or_the_recording_ends() -> None:
    made = [
        Entry("keep", "a", 5, 1.0, 1.0),
        Entry("keep", "b", 6, 2.0, 2.0),
        Entry("evict", "a", 5, 4.0, 4.0, "why"),
        Entry("keep", "a", 5, 6.0, 6.0),
        Entry("pass", "forward", 0, 0.0, 9.0),
    ]
    assert find_stays(made) == [
        Stay("", "a", 5, 1.0, 4.0, kept=True),
        Stay("", "b", 6, 2.0, 9.0, kept=True),
        Stay("", "a", 5, 6.0, 9.0, kept=True),
    ]


def test_weights_of_the_same_name_in_two_modules_are_two() -> None:
    made = [Entry("keep", "a", 5, 1.0, 1.0, "", module) for module in ("M", "N")]
    made.append(Entry("evict", "a", 5, 4.0, 4.0, "why", "M"))
    assert [(s.module, s.end_ms) for s in find_stays(made)] == [("M", 4.0), ("N", 4.0)]
    data = _data(render_fragment(made))
    assert [row[:2] for row in data["rows"]] == [["M", "a"], ["N", "a"]]


def test_streamed_weights_stay_as_long_as_the_journal_says() -> None:
    assert find_stays([Entry("stay", "a", 5, 1.0, 4.0)]) == [Stay("", "a", 5, 1.0, 4.0, kept=False)]


# ---- the text


def test_the_columns_come_out_as_they_went_in() -> None:
    data = _data(render_fragment([Entry("keep", "z.weight", 9, 2.0, 2.0), *passes(1, 2)]))
    assert (data["from_ns"], data["length_ns"]) == (0, 2_000_000)
    names = [row[1] for row in data["rows"]]
    assert names == ["blocks.0.weight", "blocks.1.weight", "z.weight"]
    assert data["copy"] == {"step": [0], "length": [1_500_000], "row": [1], "nbytes": [15 * MB]}
    assert data["stall"]["length"] == [500_000]
    assert data["texts"][data["stall"]["reason"][0]] == "the link was busy"
    assert sorted(data["stay"]["kept"]) == [0, 1, 1]


def test_rows_come_in_the_order_of_use_where_it_is_given() -> None:
    made = [Entry("keep", name, 5, 1.0, 1.0, "", "M") for name in "abc"]
    data = _data(render_fragment(made, order=[("M", "c"), ("M", "gone"), ("M", "a")]))
    assert [row[1] for row in data["rows"]] == ["c", "a", "b"]


def test_what_was_kept_before_is_there_from_the_start() -> None:
    before = Entry("keep", "a.weight", 7, 0.0, 0.0, THERE_BEFORE)
    data = _data(render_fragment([before, Entry("pass", "forward", 0, 0.0, 3.0)]))
    assert data["rows"] == [["", "a.weight", 7, 0]]
    assert data["stay"]["length"] == [3_000_000]


def test_nothing_recorded_makes_a_page_too() -> None:
    assert "There were no stalls." in render_page([])


def test_the_parts_of_the_picture_stay_small() -> None:
    assert sum(file.stat().st_size for file in ASSETS.iterdir()) < 50_000


def test_the_page_names_no_address_of_the_network() -> None:
    assert re.findall(r"(?:https?:)?//[a-z][^\s\"']*", render_page(passes())) == []


def test_the_policy_allows_the_pages_own_style_and_script_alone() -> None:
    text, made = render_page(passes()), make_section(passes())
    style, script = (
        base64.b64encode(hashlib.sha256(part.encode()).digest()).decode()
        for part in (made.style, made.script)
    )
    assert f"<style>{made.style}</style>" in text
    assert f"<script>{made.script}</script>" in text
    assert (
        f"default-src 'none'; style-src 'sha256-{style}'; script-src 'sha256-{script}'; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    ) in text


def test_texts_of_the_entries_are_escaped() -> None:
    made = [
        Entry("stall", f"{HOSTILE}.weight", 0, 0.0, 5.0, HOSTILE, HOSTILE),
        Entry("evict", HOSTILE, 0, 1.0, 1.0, f"</script>{HOSTILE}"),
    ]
    text = render_page(made, title=f"</title>{HOSTILE}")
    assert "<img" not in text
    assert text.count("</script>") == 2
    assert "&lt;img src=x onerror=alert(1)&gt;" in text


def test_the_longest_stalls_come_first_in_the_table() -> None:
    made = [Entry("stall", f"blocks.{i}.w", 0, i, i + 0.01 * (i + 1), "why") for i in range(30)]
    names = re.findall(r'data-end="\d+">([^<]*)<', render_page(made))
    assert names == [f"blocks.{i}.w" for i in range(29, 9, -1)]


def test_a_report_of_memory_has_the_section_only_when_it_is_given() -> None:
    made = make_section(passes(), title="streaming")
    without = memory_page.page(samples.few())
    report = memory_page.page(samples.few(), [made])
    assert "hf-residency" not in without
    assert report.count('<section class="more" aria-label="residency">') == 1
    for part in (made.style, made.script):
        digest = base64.b64encode(hashlib.sha256(part.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in report
        assert f"'sha256-{digest}'" not in without


def test_two_sections_bring_their_script_once() -> None:
    made = make_section(passes())
    report = memory_page.page(samples.few(), [made, made])
    assert report.count(f"<script>{made.script}</script>") == 1
    assert report.count('<div class="hf-residency">') == 2


# ---- in a browser


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with browser() as running:
        yield running


class Shown:
    """A page with the picture, and what it complained about."""

    def __init__(self, tab: Any) -> None:
        self.tab = tab
        self.errors: list[str] = []
        self.root = tab.locator(".hf-residency").first
        self.canvas = tab.locator(".hf-canvas").first

    def view(self) -> tuple[int, int]:
        self.settle()
        return int(self.root.get_attribute("data-from")), int(self.root.get_attribute("data-to"))

    def settle(self) -> None:
        self.tab.evaluate(
            "() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"
        )

    def at(self, part: float, y: float) -> tuple[float, float]:
        """A point of the plot: part of the time that is shown, pixels from the top."""
        box = self.canvas.bounding_box()
        left = 138
        return box["x"] + left + part * (box["width"] - left - 10), box["y"] + y

    def tip(self, part: float, y: float) -> str:
        self.tab.mouse.move(*self.at(part, y))
        return self.tab.locator(".hf-tip").first.inner_text()

    def colour(self, part: float, y: float) -> list[int]:
        x, _ = self.at(part, y)
        left = x - self.canvas.bounding_box()["x"]
        return self.canvas.evaluate(
            "(canvas, [x, y]) => [...canvas.getContext('2d').getImageData(x, y, 1, 1).data]",
            [left, y],
        )


@contextmanager
def shown(running: Any, path: Path, text: str, **options: Any) -> Iterator[Shown]:
    path.write_text(text, encoding="utf-8")
    context = running.new_context(viewport={"width": 1300, "height": 1000}, **options)
    context.set_default_timeout(240_000)  # the machine may be busy
    context.set_offline(True)
    tab = context.new_page()
    found = Shown(tab)
    tab.on("console", lambda m: found.errors.append(m.text) if m.type == "error" else None)
    tab.on("pageerror", lambda error: found.errors.append(str(error)))
    tab.goto(path.as_uri())
    tab.locator(":is([data-state=drawn], [data-state=failed])").first.wait_for()
    yield found
    assert found.errors == []
    context.close()


PASS, COMPUTE, LINK, MARKS, MAP = 30, 70, 120, 166, 240  # pixels from the top


@pytest.mark.parametrize("scheme", ["light", "dark"])
class TestInABrowser:
    pytestmark = in_a_browser

    def test_every_row_is_drawn(self, chromium: Any, tmp_path: Path, scheme: str) -> None:
        with shown(
            chromium, tmp_path / "a.html", render_page(passes()), color_scheme=scheme
        ) as seen:
            assert seen.root.get_attribute("data-state") == "drawn"
            assert seen.view() == (0, 24_000_000)
            standing, computing = seen.colour(1.25 / 24, COMPUTE), seen.colour(0.5 / 24, COMPUTE)
            assert standing != computing
            empty = seen.colour(1.75 / 24, LINK)
            assert seen.colour(1.25 / 24, LINK) != empty
            assert seen.colour(0.5 / 24, PASS) != empty
            kept, gone = seen.colour(0.3, 190), seen.colour(0.7, 190)
            assert kept != gone

    def test_the_pointer_tells_what_is_under_it(
        self, chromium: Any, tmp_path: Path, scheme: str
    ) -> None:
        with shown(
            chromium, tmp_path / "a.html", render_page(passes()), color_scheme=scheme
        ) as seen:
            assert seen.tip(1.25 / 24, LINK).splitlines() == [
                "blocks.1.weight",
                "15.0 MB at 10.0 GB/s",
                "over the link in 1.50 ms",
                "at 1.25 ms",
            ]
            assert seen.tip(1.25 / 24, COMPUTE).splitlines() == [
                "stalled for 500 µs",
                "waiting for blocks.1.weight",
                "the link was busy",
                "at 1.25 ms",
            ]
            assert "the budget shrank" in seen.tip(0.5, MARKS)
            assert "loaded on demand, 2.0 MB" in seen.tip(23 / 24, MARKS)
            assert "blocks.0.weight\n4.0 MB, stays on the device" in seen.tip(0.3, 188)
            assert seen.tip(0.1, PASS).startswith("forward 1\n8.00 ms")

    def test_wheel_and_drag_and_keys_move_about(
        self, chromium: Any, tmp_path: Path, scheme: str
    ) -> None:
        with shown(
            chromium, tmp_path / "a.html", render_page(passes()), color_scheme=scheme
        ) as seen:
            seen.tab.mouse.move(*seen.at(0.5, LINK))
            seen.tab.mouse.wheel(0, -300)
            start, end = seen.view()
            assert end - start < 24_000_000 * 0.4
            assert start < 12_000_000 < end
            seen.tab.mouse.down()
            seen.tab.mouse.move(*seen.at(0.75, LINK), steps=4)
            seen.tab.mouse.up()
            assert seen.view()[0] < start
            seen.canvas.focus()
            seen.tab.keyboard.press("Escape")
            assert seen.view() == (0, 24_000_000)
            seen.tab.keyboard.press("+")
            nearer = seen.view()
            assert nearer[1] - nearer[0] == 15_000_000
            seen.tab.keyboard.press("ArrowLeft")
            assert seen.view()[0] < nearer[0]
            seen.tab.keyboard.press("Escape")
            seen.tab.keyboard.press("n")
            start, end = seen.view()
            assert start <= 1_000_000 < 1_500_000 <= end < 8_000_000
            status = seen.tab.locator(".hf-status").text_content()
            assert status == "stalled for 500 µs, waiting for blocks.1.weight, the link was busy"

    def test_a_row_of_the_table_shows_its_stall(
        self, chromium: Any, tmp_path: Path, scheme: str
    ) -> None:
        with shown(
            chromium, tmp_path / "a.html", render_page(passes()), color_scheme=scheme
        ) as seen:
            seen.tab.locator(".hf-stalls button").nth(5).click()
            start, end = seen.view()
            assert end - start < 8_000_000
            assert start < 11_250_000 < end


@pytest.mark.browser
@pytest.mark.slow
@needs(missing())
def test_the_section_is_drawn_inside_of_the_report_of_memory(chromium: Any, tmp_path: Path) -> None:
    report = memory_page.page(samples.few(), [make_section(passes(), title="streaming")])
    with shown(chromium, tmp_path / "a.html", report) as seen:
        assert seen.root.get_attribute("data-state") == "drawn"
        assert seen.tab.locator("#app").is_visible()
        assert seen.tab.locator("section.more h2").inner_text() == "streaming"
        seen.canvas.scroll_into_view_if_needed()
        assert "15.0 MB at 10.0 GB/s" in seen.tip(1.25 / 24, LINK)


@pytest.mark.browser
@pytest.mark.slow
@needs(missing())
def test_fifty_thousand_entries_are_added_up_by_pixel(chromium: Any, tmp_path: Path) -> None:
    made = passes(count=520, layers=64)
    assert len(made) > 50_000
    with shown(chromium, tmp_path / "a.html", render_page(made)) as seen:
        # Rows of the map and the pixels of the lanes: far less than there are entries.
        assert int(seen.root.get_attribute("data-drawn")) < 40_000
        seen.tab.mouse.move(*seen.at(0.5, LINK))
        for _ in range(12):
            seen.tab.mouse.wheel(0, -300)
        start, end = seen.view()
        assert end - start < 2_000_000
        assert int(seen.root.get_attribute("data-drawn")) < 100
        assert "GB/s" in seen.tip(0.5, LINK)


@pytest.mark.browser
@pytest.mark.slow
@needs(missing())
def test_hostile_names_are_shown_as_they_are(chromium: Any, tmp_path: Path) -> None:
    made = [
        Entry("copy", HOSTILE, MB, 0.0, 5.0, "", HOSTILE),
        Entry("pass", HOSTILE, 0, 0.0, 5.0, HOSTILE, HOSTILE),
    ]
    with shown(chromium, tmp_path / "a.html", render_page(made, title=HOSTILE)) as seen:
        assert seen.tip(0.5, LINK).startswith(HOSTILE)
        assert seen.tab.locator("img").count() == 0
