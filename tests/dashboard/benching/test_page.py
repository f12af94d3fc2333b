"""The report as a page and as Markdown: whole, self-contained, and safe with any text."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from holdfast.dashboard.bench import phrases
from holdfast.dashboard.bench.comparing import compare
from holdfast.dashboard.bench.document import Absentee, Machine, Row, Table
from holdfast.dashboard.bench.markdown import markdown
from holdfast.dashboard.bench.page import page
from holdfast.dashboard.bench.reading import read
from tests.memory.browser import browser, missing
from tests.needs import needs

from .made_up import HERE, TABLE, report

RESULTS = Path(__file__).parents[3] / "benchmarks" / "results"
EVIL = '<script>alert("x")</script> & | `a`\n</svg>'
VOID = {"meta", "rect", "path", "circle"}


class Outline(HTMLParser):
    """Elements, texts and addresses of a page; every element is closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []
        self.texts: list[str] = []
        self.kinds: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        found = dict(attrs)
        assert not {"src", "href", "style", "onload", "onclick"} & found.keys()
        self.kinds += (found.get("class") or "").split()
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def test_the_page_has_every_figure_its_ratio_and_its_spread() -> None:
    found = Outline(page(report()))
    for text in ("2.00 ms", "1.50×", "0.50×", "1.90 to 2.10", "does not start", "torch 2.13.0"):
        assert text in found.texts
    assert HERE.about in found.texts
    assert "2026-11-16 18:00 UTC" in found.texts
    assert found.seen.count("svg") == 2
    assert {"ours", "peer", "spread", "win", "loss"} <= set(found.kinds)


def test_the_page_runs_nothing_and_asks_for_nothing() -> None:
    text = page(report())
    found = Outline(text)
    assert not {"script", "link", "img", "iframe"} & set(found.seen)
    assert "default-src 'none'" in text
    assert "http" not in text.replace("http-equiv", "")


def test_texts_of_a_report_are_never_markup() -> None:
    rows = (
        Row(EVIL, "holdfast", 1.0, "ms", EVIL, ours=True),
        Row(EVIL, EVIL, 2.0, EVIL.replace("\n", ""), EVIL),
    )
    table = Table(EVIL, EVIL, rows=rows, absent=(Absentee(EVIL, EVIL),))
    failed = Table("bad", state="failed", reason=EVIL)
    made = report(table, failed, machine=Machine(EVIL, EVIL, 1, (EVIL,)))
    found = Outline(page(made, compare(made, made)))
    assert "script" not in found.seen
    text = markdown(made, compare(made, made))
    assert not re.search(r"(?<!\\)[<`]", text)
    for block in text.split("\n\n"):
        if block.startswith("| "):
            assert len({len(re.findall(r"(?<!\\)\|", line)) for line in block.splitlines()}) == 1


def test_what_has_no_results_is_named_with_its_reason() -> None:
    tables = (
        TABLE,
        Table("svm", state="failed", reason="ValueError: no"),
        Table("residency", state="not run", reason="torch sees no CUDA or ROCm device here"),
    )
    for text in (page(report(*tables)), markdown(report(*tables))):
        assert "failed: ValueError: no" in text
        assert "not run: torch sees no CUDA or ROCm device here" in text


def test_peers_that_are_missing_are_named_with_the_way_to_get_them() -> None:
    made = report(replace(TABLE, absent=(Absentee("tinygrad", "pip install tinygrad"),)))
    assert "Not installed here, so not measured: tinygrad (pip install tinygrad)." in page(made)
    assert "not measured: tinygrad (pip install tinygrad)." in markdown(made)


def test_a_comparison_shows_both_figures_the_noise_and_a_verdict() -> None:
    slower = replace(TABLE.rows[0], value=4.0, low=3.9, high=4.1)
    new = report(replace(TABLE, rows=(slower, *TABLE.rows[1:])), machine=Machine("x · 9 GB"))
    compared = compare(report(), new)
    found = Outline(page(None, compared))
    for text in ("2.00 ms", "4.00 ms", "2.00×", "15 %", "worse", "the same within noise"):
        assert text in found.texts
    assert any(text.startswith("DIFFERENT MACHINES") for text in found.texts)
    assert (
        "| pool | pair, 4 KB | holdfast | 2.00 ms | 4.00 ms | 2.00× | 15 % | worse |"
        in markdown(None, compared)
    )


@pytest.mark.parametrize("file", sorted(RESULTS.glob("*.json")), ids=lambda file: file.stem)
def test_every_committed_result_can_be_shown(file: Path) -> None:
    found = read(file)
    assert "svg" in Outline(page(found)).seen
    assert markdown(found).count("\n| ") > len(found.tables[0].rows)


@pytest.mark.parametrize(
    ("value", "unit", "words"),
    [
        (0.13661, "ms", "0.137 ms"),
        (1.5, "ms", "1.50 ms"),
        (12.34, "s", "12.3 s"),
        (4931.2, "ns", "4,931 ns"),
        (1.057e6, "B", "1.1 MB"),
        (0.0, "", "0"),
        (3e-5, "x", "3.00e-05 x"),
        (None, "ms", "–"),
    ],
)
def test_figures_have_three_digits_that_count(value: Any, unit: str, words: str) -> None:
    assert phrases.figure(value, unit) == words


@pytest.mark.browser
@pytest.mark.slow
@needs(missing())
def test_a_browser_shows_it_light_dark_and_narrow_without_a_complaint(tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    file.write_text(page(read(RESULTS / "opencl-cpu.json")))
    looks = []
    with browser() as running:
        for scheme, width in (("light", 1120), ("dark", 1120), ("light", 400)):
            context = running.new_context(
                viewport={"width": width, "height": 900}, color_scheme=scheme, offline=True
            )
            tab = context.new_page()
            said: list[str] = []
            asked: list[str] = []
            tab.on("console", lambda message, said=said: said.append(message.text))
            tab.on("pageerror", lambda error, said=said: said.append(str(error)))
            tab.on("request", lambda request, asked=asked: asked.append(request.url))
            tab.goto(file.as_uri())
            assert tab.locator("svg rect.ours").count() == 13
            bar = tab.locator("svg rect.ours").first.bounding_box()
            assert bar is not None
            assert bar["width"] > 10
            sizes = tab.locator("html").evaluate("e => [e.scrollWidth, e.clientWidth]")
            assert sizes[0] <= sizes[1]  # only the plots scroll sideways
            looks.append(tab.locator("body").evaluate("e => getComputedStyle(e).backgroundColor"))
            assert (said, asked) == ([], [file.as_uri()])
            context.close()
    assert looks[0] != looks[1]
