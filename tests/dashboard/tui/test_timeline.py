from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from pathlib import Path

import pytest

from holdfast.base.errors import BadInput
from holdfast.dashboard.tui import timeline
from holdfast.dashboard.tui.session import Session
from tests.dashboard.tui.made_up import GB, machine, process, snapshot
from tests.memory import browser


def _seen() -> Session:
    seen = Session(running=lambda pid: False)
    for at in range(10):
        device = replace(process().devices[0], reserved_bytes=at * GB, used_bytes=(at + 2) * GB)
        first = process(1, name="first </script><b>", rss_bytes=at * GB, devices=(device,))
        second = process(2, name="second", rss_bytes=GB, devices=(), run=None)
        there = (first, second) if at < 5 else (first,)
        seen.add(snapshot(1000.0 + at, *there, of=machine(ram_used=20 * GB)))
    return seen


def test_a_document_stacks_processes_and_what_others_have() -> None:
    document = timeline.document(_seen())
    titles = [panel.title for panel in document.panels]
    assert titles == [
        "RAM of the machine",
        "device cuda:0",
        "1 first </script><b>: in memory pools",
        "1 first </script><b>: weights on devices",
        "2 second: in memory pools",
        "2 second: weights on devices",
    ]
    ram, device = document.panels[:2]
    assert ram.at_s == tuple(float(at) for at in range(10))
    first, second, others = (layer.nbytes for layer in ram.layers)
    assert first == tuple(at * GB for at in range(10))
    assert second == (GB,) * 5 + (None,) * 5
    assert others == tuple((20 - at - (at < 5)) * GB for at in range(10))
    assert [layer.name for layer in device.layers] == ["1 first </script><b>", "others"]
    assert device.layers[1].nbytes == (2 * GB,) * 10
    assert device.capacity_bytes == 24 * GB
    (stage,) = document.panels[2].stages
    assert (stage.name, stage.from_s, stage.to_s) == ("denoise", 0.0, 9.0)


def test_json_and_csv_hold_the_same_figures(tmp_path: Path) -> None:
    document = timeline.document(_seen())
    data = json.loads(timeline.write(document, tmp_path / "seen.json").read_text())
    assert (data["format"], data["version"], data["host"]) == ("holdfast-timeline", 1, "workshop")
    from_json = {
        (at, panel["title"], layer["name"], count)
        for panel in data["panels"]
        for layer in panel["layers"]
        for at, count in zip(panel["at_s"], layer["nbytes"], strict=True)
        if count is not None
    }
    text = timeline.write(document, tmp_path / "seen.CSV").read_text()
    head, *lines = csv.reader(io.StringIO(text))
    assert head == ["at_s", "panel", "layer", "bytes"]
    assert {(float(at), panel, layer, int(n)) for at, panel, layer, n in lines} == from_json


def test_a_name_of_another_kind_and_a_folder_that_is_not_there_are_refused(tmp_path: Path) -> None:
    document = timeline.document(_seen())
    with pytest.raises(BadInput) as caught:
        timeline.write(document, tmp_path / "seen.png")
    assert str(caught.value) == (
        "cannot save a timeline as 'seen.png'\n  expected: a name that ends in .html, .json or .csv"
    )
    path = tmp_path / "nowhere" / "seen.json"
    with pytest.raises(BadInput) as caught:
        timeline.write(document, path)
    assert str(caught.value) == (
        f"cannot write {str(path)!r}: No such file or directory\n"
        "  expected: a path in a folder that exists"
    )


def test_nothing_seen_is_nothing_to_save() -> None:
    with pytest.raises(BadInput) as caught:
        timeline.document(Session())
    assert str(caught.value) == (
        "cannot save a timeline: nothing was seen yet\n  try: wait for a look"
    )


@pytest.mark.slow
@pytest.mark.browser
@pytest.mark.skipif(browser.missing() is not None, reason=str(browser.missing()))
def test_the_page_draws_a_stack_zooms_and_asks_nobody(tmp_path: Path) -> None:
    path = timeline.write(timeline.document(_seen()), tmp_path / "seen.html")
    with browser.browser() as running, browser.opened(running, path) as opened:
        page = opened.page
        assert page.locator("section").count() == 6
        assert page.locator("section").nth(0).locator("path.layer").count() == 3
        assert "1 first </script><b>: in memory pools" in opened.text("section:nth-of-type(3) h2")
        page.mouse.move(*opened.at("section:nth-of-type(1) svg", 0.99, 0.5))
        tip = page.locator("#tip").inner_text()
        assert "9.0 GB  1 first </script><b>" in tip
        assert "20.0 GB  together" in tip
        before = page.locator("section").nth(0).locator("path.layer").first.get_attribute("d")
        page.mouse.move(*opened.at("section:nth-of-type(1) svg", 0.3, 0.5))
        page.mouse.down()
        page.mouse.move(*opened.at("section:nth-of-type(1) svg", 0.6, 0.5))
        page.mouse.up()
        after = page.locator("section").nth(0).locator("path.layer").first.get_attribute("d")
        assert after != before
        page.mouse.dblclick(*opened.at("section:nth-of-type(1) svg", 0.5, 0.5))
        again = page.locator("section").nth(0).locator("path.layer").first.get_attribute("d")
        assert again == before
        assert opened.errors == []
        assert opened.requests == [path.as_uri()]
