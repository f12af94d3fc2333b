from __future__ import annotations

import base64
import hashlib
import json
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.base.errors import BadInput
from holdfast.memory.profile.page import ASSETS, page, write
from holdfast.memory.profile.recording import Event, Frame, Kind, MemoryPlace, Recording
from tests.memory import samples
from tests.memory.browser import Opened, browser, missing, opened
from tests.memory.samples import MB, MS
from tests.needs import needs

in_a_browser = [pytest.mark.browser, needs(missing())]


def _data(text: str) -> bytes:
    found = re.search(r'<script type="application/octet-stream" id="data">([^<]*)</script>', text)
    assert found is not None
    return zlib.decompress(base64.b64decode(found[1]))


# ---- the file


def test_the_parts_of_the_page_stay_small() -> None:
    assert sum(file.stat().st_size for file in ASSETS.iterdir()) < 100_000


def test_the_page_names_no_address_of_the_network() -> None:
    assert re.findall(r"(?:https?:)?//[a-z][^\s\"']*", page(samples.few())) == []


def test_the_policy_allows_the_pages_own_style_and_script_alone() -> None:
    text = page(samples.few())
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text)
    style, script = re.search(r"<style>(.*?)</style>", text, re.S), text.rpartition("<script>")[2]
    assert policy is not None
    assert style is not None
    hashes = [
        base64.b64encode(hashlib.sha256(part.encode()).digest()).decode()
        for part in (style[1], script.partition("</script>")[0])
    ]
    assert policy[1] == (
        f"default-src 'none'; style-src 'sha256-{hashes[0]}'; script-src 'sha256-{hashes[1]}'; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )


def test_texts_of_the_recording_are_escaped() -> None:
    made = _hostile()
    text = page(made)
    assert "<img" not in text
    assert "&lt;img src=x onerror=alert(1)&gt;" in text
    assert text.count("</script>") == 2


def test_the_columns_come_out_as_they_went_in() -> None:
    data = _data(page(samples.few()))
    length = int.from_bytes(data[:4], "little")
    head, at, columns = json.loads(data[4 : 4 + length]), 4 + length, {}
    for name, width, count in head["columns"]:
        part = data[at : at + width * count]
        rows = [bytes(part[i::count]) for i in range(count)]
        columns[name] = [int.from_bytes(row, "little") for row in rows]
        at += width * count
    assert at == len(data)
    assert columns["sizes"] == [100, 30, 20]
    assert columns["begins"] == [1, 1, 2]
    assert columns["lives"] == [0, 3, 2]
    assert columns["times"] == [5 * MS, 5 * MS, 10 * MS, 5 * MS, 5 * MS, 10 * MS, 10 * MS]
    assert columns["segment_sizes"] == [4096]
    assert head["place_names"] == ["torch cpu", "pool cuda:0 (weights)"]


def test_a_clock_that_goes_back_stands_still() -> None:
    made = Recording(places_table=[MemoryPlace("pool", "cpu")], duration_ns=50)
    for time_ns in (10, 30, 20, 40):
        made.add(Event(time_ns, Kind.ALLOC, time_ns, 1, 0, 0, 0))
    data = _data(page(made))
    start = 4 + int.from_bytes(data[:4], "little")
    assert list(data[start : start + 4]) == [10, 20, 0, 10]


def test_a_page_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "no" / "a.html"
    with pytest.raises(BadInput) as caught:
        write(samples.few(), path)
    assert str(caught.value) == (
        f"cannot write {str(path)!r}: No such file or directory\n"
        "  expected: a path in a folder that exists"
    )


# ---- in a browser


def _hostile() -> Recording:
    text = "<img src=x onerror=alert(1)>"
    made = Recording(title=f"{text}</script><script>alert(2)</script>", duration_ns=100 * MS)
    made.places_table = [MemoryPlace(text, "cpu"), MemoryPlace("a", "cuda:0")]
    made.tags_table += [text]
    made.stacks_table += [(Frame(f"{text}.py", 1, f"{text}</title>"),)]
    made.add(Event(0, Kind.ALLOC, 4096, 100 * MB, 1, 0, 1))
    made.add(Event(50 * MS, Kind.ALLOC, 4096, 20 * MB, 1, 1, 0))
    made.notes.append(text)
    return made


def _two() -> Recording:
    """A large block all the time, and a smaller one above it in the second half."""
    made = Recording(title="two blocks", duration_ns=100 * MS)
    made.places_table = [MemoryPlace("torch", "cuda:0"), MemoryPlace("numpy", "cpu")]
    made.tags_table += ["weights"]
    made.stacks_table += [
        (Frame("/me/load.py", 7, "read"), Frame("/me/main.py", 1, "<module>")),
        (Frame("/me/step.py", 9, "forward"), Frame("/me/main.py", 2, "<module>")),
    ]
    made.add(Event(0, Kind.ALLOC, 1 << 40, 60 * MB, 1, 0, 1))
    made.add(Event(50 * MS, Kind.ALLOC, 1 << 41, 40 * MB, 2, 1, 0))
    return made


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with browser() as running:
        yield running


@pytest.fixture
def two(chromium: Any, tmp_path: Path) -> Iterator[Opened]:
    with opened(chromium, write(_two(), tmp_path / "two.html")) as found:
        yield found
        assert found.errors == []
        assert found.requests == [(tmp_path / "two.html").as_uri()]


@pytest.mark.slow
class TestInABrowser:
    pytestmark = in_a_browser

    def test_the_page_opens_with_the_peak(self, two: Opened) -> None:
        assert two.text("h1") == "two blocks"
        assert two.text("#tiles").startswith("peak 100 MB time of the peak 50.0 ms")
        assert two.text("#moment") == "50.0 ms · event 2 of 2 · 100 MB in 2 blocks · the peak"

    @pytest.mark.parametrize(
        ("across", "down", "size", "function", "freed"),
        [(0.8, 0.75, "60.0 MB", "read", "not while"), (0.8, 0.25, "40.0 MB", "forward", "not")],
    )
    def test_a_click_on_a_block_shows_its_stack(
        self, two: Opened, across: float, down: float, size: str, function: str, freed: str
    ) -> None:
        two.page.mouse.click(*two.at("#timeline", across, down))
        shown = two.text("#panel")
        assert shown.startswith(f"{size} close")
        assert f"innermost first {function} /me/" in shown
        assert f"freed {freed}" in shown

    def test_a_click_beside_every_block_shows_the_largest(self, two: Opened) -> None:
        two.page.mouse.click(*two.at("#timeline", 0.3, 0.2))
        assert two.text("#panel") == (
            "Largest blocks at the chosen moment 60.0 MB me/load.py:7 in read"
        )
        assert two.text("#moment") == "0.0 µs · event 1 of 2 · 60.0 MB in 1 block"

    def test_the_pointer_shows_size_and_place(self, two: Opened) -> None:
        two.page.mouse.move(*two.at("#timeline", 0.8, 0.75))
        assert two.text("#tip") == (
            "60.0 MB me/load.py:7 in read tag weights there until the end, 100.0 ms torch cuda:0"
        )
        two.page.mouse.move(*two.at("h1", 0.5, 0.5))
        assert two.page.locator("#tip").is_hidden()

    def test_filters_leave_what_they_name(self, two: Opened) -> None:
        two.page.select_option("#place", label="numpy cpu")
        assert "40.0 MB in 1 block" in two.text("#moment")
        two.page.select_option("#place", label="all places")
        two.page.select_option("#tag", label="weights")
        assert "60.0 MB in 1 block" in two.text("#moment")
        two.page.select_option("#tag", label="all tags")
        two.page.fill("#search", "STEP.py:9")
        two.page.locator("#moment", has_text="40.0 MB in 1 block").wait_for()
        two.page.fill("#search", "nothing like it")
        two.page.locator("#moment", has_text="0 B in 0 blocks").wait_for()

    def test_the_wheel_zooms_about_the_pointer_and_a_double_click_shows_all(
        self, two: Opened
    ) -> None:
        # The second block begins in the middle; zoomed in to the left of it, it is out of sight.
        two.page.mouse.move(*two.at("#timeline", 0.15, 0.5))
        for _ in range(6):
            two.page.mouse.wheel(0, -400)
            two.settle()
        two.page.mouse.click(*two.at("#timeline", 0.9, 0.3))
        assert two.text("#panel").startswith("60.0 MB close")
        two.page.mouse.dblclick(*two.at("#timeline", 0.5, 0.5))
        two.settle()
        two.page.mouse.click(*two.at("#timeline", 0.9, 0.25))
        assert two.text("#panel").startswith("40.0 MB close")

    def test_dragging_and_keys_move_the_view(self, two: Opened) -> None:
        two.page.focus("#timeline")
        for key in ("+", "+", "+", "ArrowLeft", "ArrowLeft", "ArrowLeft", "ArrowLeft"):
            two.page.keyboard.press(key)
            two.settle()
        two.page.mouse.click(*two.at("#timeline", 0.95, 0.3))
        assert two.text("#panel").startswith("60.0 MB close")
        x, y = two.at("#timeline", 0.95, 0.5)
        for _ in range(3):
            two.page.mouse.move(x, y)
            two.page.mouse.down()
            two.page.mouse.move(x - 800, y, steps=4)
            two.page.mouse.up()
            two.settle()
        two.page.mouse.click(*two.at("#timeline", 0.95, 0.25))
        assert two.text("#panel").startswith("40.0 MB close")
        two.page.keyboard.press("Escape")
        assert two.text("#panel").startswith("Largest blocks")

    def test_events_as_the_axis_give_every_event_the_same_room(self, two: Opened) -> None:
        two.page.click("#by-event")
        two.settle()
        assert two.page.get_attribute("#by-event", "aria-pressed") == "true"
        assert two.page.get_attribute("#timeline", "aria-label").startswith(
            "Bytes alive over events"
        )

    def test_the_address_space_has_a_map_of_each_place(self, two: Opened) -> None:
        two.page.click("#tab-segments")
        two.settle()
        assert two.text("#maps") == (
            "torch cuda:0 60.0 MB used of 60.0 MB spanned by 1 range "
            "numpy cpu 40.0 MB used of 40.0 MB spanned by 1 range"
        )
        two.page.mouse.click(*two.at(".map:last-child canvas", 0.5, 0.3))
        assert two.text("#panel").startswith("40.0 MB close")

    def test_holes_in_what_was_reserved_are_counted(self, chromium: Any, tmp_path: Path) -> None:
        made = Recording(
            title="holes", duration_ns=9 * MS, places_table=[MemoryPlace("pool", "cpu")]
        )
        made.add(Event(0, Kind.RESERVE, 0, 100 * MB, 0, 0, 0))
        for start_mb in (10, 40, 80):
            made.add(Event(MS, Kind.ALLOC, start_mb * MB, 10 * MB, 0, 0, 0))
        with opened(chromium, write(made, tmp_path / "a.html")) as found:
            found.page.click("#tab-segments")
            found.settle()
            assert found.text("#maps") == (
                "pool cpu 30.0 MB used of 100 MB reserved in 1 range · 70.0 MB free between "
                "blocks, largest hole 30.0 MB · fragmentation 57 %"
            )

    def test_the_holders_can_be_sorted_and_lead_to_their_blocks(self, two: Opened) -> None:
        two.page.click("#tab-holders")
        two.settle()
        rows = two.page.locator("#holders tbody tr")
        assert [" ".join(r.split()) for r in rows.all_inner_texts()] == [
            "me/load.py:7 in read 60.0 MB 60 % 1 60.0 MB",
            "me/step.py:9 in forward 40.0 MB 40 % 1 40.0 MB",
        ]
        two.page.click("th button[data-by=name]")
        two.page.click("th button[data-by=name]")
        assert rows.first.inner_text().startswith("me/step.py:9")
        rows.first.click()
        assert two.text("#panel").startswith("40.0 MB close")

    def test_the_flame_graph_tells_bytes_by_stack(self, two: Opened) -> None:
        two.page.click("#tab-holders")
        two.settle()
        two.page.mouse.move(*two.at("#flame", 0.3, 0.5))
        assert two.text("#tip") == "60.0 MB 60 % in 1 block me/main.py:1 in <module>"

    def test_the_strip_chooses_a_moment(self, two: Opened) -> None:
        two.page.mouse.click(*two.at("#strip", 0.2, 0.5))
        assert "60.0 MB in 1 block" in two.text("#moment")
        two.page.click("#to-peak")
        assert two.text("#moment").endswith("the peak")

    def test_markup_in_a_recording_stays_text(self, chromium: Any, tmp_path: Path) -> None:
        with opened(chromium, write(_hostile(), tmp_path / "a.html")) as found:
            found.page.on("dialog", lambda dialog: found.errors.append(dialog.message))
            found.page.mouse.move(*found.at("#timeline", 0.3, 0.7))
            found.page.mouse.click(*found.at("#timeline", 0.3, 0.7))
            assert "<img src=x onerror=alert(1)>.py:1" in found.text("#panel")
            for tab in ("segments", "holders"):
                found.page.click(f"#tab-{tab}")
                found.settle()
            assert found.page.locator("img").count() == 0
            assert found.errors == []

    @pytest.mark.parametrize("made", [Recording(), Recording(title="x", duration_ns=5)], ids=len)
    def test_an_empty_recording_opens(self, made: Recording, chromium: Any, tmp_path: Path) -> None:
        with opened(chromium, write(made, tmp_path / "a.html")) as found:
            for tab in ("segments", "holders", "timeline"):
                found.page.click(f"#tab-{tab}")
                found.settle()
            assert found.text("#tiles").startswith("peak 0 B")
            assert found.errors == []

    def test_a_damaged_page_says_so_and_still_shows_its_text(
        self, chromium: Any, tmp_path: Path
    ) -> None:
        path = tmp_path / "a.html"
        path.write_text(re.sub(r'(id="data">)[^<]{40}', r"\1", page(_two())))
        with opened(chromium, path) as found:
            assert found.text("#message").startswith("The recording cannot be shown: ")
            assert "peak 100 MB in 2 blocks" in found.text("#words")

    @pytest.mark.parametrize("scheme", ["light", "dark"])
    @pytest.mark.parametrize("width", [390, 1600])
    def test_every_view_fits_the_width(
        self, width: int, scheme: str, chromium: Any, tmp_path: Path
    ) -> None:
        path = write(samples.unet(2), tmp_path / "a.html")
        with opened(chromium, path, width=width, color_scheme=scheme) as found:
            for tab in ("timeline", "segments", "holders"):
                found.page.click(f"#tab-{tab}")
                found.settle()
                assert found.page.evaluate("document.documentElement.scrollWidth") <= width
            assert found.errors == []

    def test_the_drawing_has_the_colours_of_its_blocks(self, chromium: Any, tmp_path: Path) -> None:
        with opened(chromium, write(_two(), tmp_path / "a.html")) as found:
            pixel = """([x, y]) => {
                const c = document.getElementById('timeline'), pen = c.getContext('2d');
                return [...pen.getImageData(c.width * x, c.height * y, 1, 1).data] }"""
            below, above = (found.page.evaluate(pixel, [0.8, down]) for down in (0.75, 0.25))
            beside = found.page.evaluate(pixel, [0.3, 0.3])
            assert below[3] == above[3] == 255
            assert below != above
            assert beside[3] == 0

    @pytest.mark.slow
    def test_a_quarter_of_a_million_events_are_drawn(self, chromium: Any, tmp_path: Path) -> None:
        path = write(samples.many(250_000), tmp_path / "a.html")
        with opened(chromium, path, width=1600, height=1000) as found:
            assert found.timings()["events"] == 250_000
            found.page.mouse.move(*found.at("#timeline", 0.5, 0.5))
            for _ in range(5):
                found.page.mouse.wheel(0, -300)
                found.settle()
            found.page.mouse.click(*found.at("#timeline", 0.5, 0.9))
            assert "Python stack, innermost first" in found.text("#panel")
            assert found.errors == []
            print({name: round(value, 1) for name, value in found.timings().items()})
