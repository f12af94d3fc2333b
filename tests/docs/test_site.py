"""The documentation site: built strictly, read from the file system with the network cut off."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from tests.docs.pages import ROOT
from tests.memory.browser import browser, missing
from tests.needs import needs
from tools import docs_benchmarks, docs_errors, docs_reference

pytestmark = pytest.mark.slow
TIME_LIMIT_S = 500  # the machine may be busy


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built as `make docs` does it, with no way out for whoever would fetch something."""
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)],
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1", "https_proxy": "http://127.0.0.1:9"},
        capture_output=True,
        text=True,
        timeout=TIME_LIMIT_S,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    return folder


def html(site: Path) -> list[Path]:
    """Every page of it."""
    return sorted(path for path in site.rglob("*.html") if path.name != "404.html")


class Seen(HTMLParser):
    """What a page has: anchors, where links lead, what the browser loads for it."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value for name, value in attrs if value is not None}
        if "id" in found:
            self.ids.add(found["id"])
        if tag == "a" and "href" in found:
            self.links.append(found["href"])
        elif "src" in found:
            self.loaded.append(found["src"])
        elif tag == "link" and found.get("rel") != "canonical":
            self.loaded.append(found.get("href", ""))


@pytest.fixture(scope="module")
def seen(site: Path) -> dict[Path, Seen]:
    return {path: Seen(path) for path in html(site)}


def test_every_page_of_docs_is_in_the_site(site: Path) -> None:
    pages = (ROOT / "docs").glob("**/*.md")
    there = {path.relative_to(site).as_posix() for path in html(site)}
    wanted = {page.relative_to(ROOT / "docs").with_suffix(".html").as_posix() for page in pages}
    assert wanted - there == set()
    assert {"repository/index.html", "repository/CONTRIBUTING.html"} <= there  # README is an index


def test_pages_load_nothing_from_other_hosts(seen: dict[Path, Seen]) -> None:
    loaded = {link for page in seen.values() for link in page.loaded}
    assert [link for link in sorted(loaded) if "://" in link or link.startswith("//")] == []


def test_every_link_of_the_site_leads_to_a_file_and_an_anchor_that_are_there(
    site: Path, seen: dict[Path, Seen]
) -> None:
    lost = []
    for page, found in seen.items():
        for link in (*found.links, *found.loaded):
            path, _, anchor = link.partition("#")
            if "://" in link or link.startswith(("mailto:", "data:")) or not link:
                continue
            target = (page.parent / path.partition("?")[0]).resolve() if path else page
            target = target / "index.html" if target.is_dir() else target
            known = seen.get(target)
            if not target.is_file() or (anchor and known is not None and anchor not in known.ids):
                lost.append(f"{page.relative_to(site)}: {link}")
    assert lost == []


@pytest.mark.parametrize("module", docs_reference.modules(), ids=lambda module: module.name)
def test_the_reference_shows_every_name_of_a_module(
    module: docs_reference.Module, seen: dict[Path, Seen], site: Path
) -> None:
    page = site / module.uri.replace(".md", ".html")
    text = page.read_text(encoding="utf-8")
    shown = {name.rpartition(".")[2] for name in seen[page].ids}
    shown |= {name.rpartition(".")[2] for name in re.findall(r"<code>([\w.]+)</code>", text)}
    assert len(module.public) > 0
    assert [name for name in module.public if name not in shown] == []


def test_the_reference_has_every_module_of_the_specification() -> None:
    layers = ("topology", "memory", "compute", "torch", "residency", "xla", "pipeline")
    nodes = ("svm", "tensor", "xla", "residency", "memory")
    wanted = {"holdfast", *(f"holdfast.{name}" for name in layers)}
    wanted |= {f"holdfast.nodes.{name}" for name in nodes}
    assert wanted <= {module.name for module in docs_reference.modules()}


def test_names_that_load_on_first_use_are_in_the_reference() -> None:
    import holdfast
    from holdfast import residency

    known = {module.name: set(module.public) for module in docs_reference.modules()}
    assert known["holdfast"] == set(holdfast._LAYER_OF)
    assert known["holdfast.residency"] == {*residency.__all__, *residency._MODULE_OF}


def test_the_benchmarks_page_has_a_part_for_each_file(site: Path) -> None:
    text = (site / "benchmarks.html").read_text(encoding="utf-8")
    files = docs_benchmarks.files()
    assert len(files) > 20
    for path in files:
        assert f'id="{path.stem}"' in text
        assert f'href="repository/benchmarks/results/{path.name}"' in text
        copy = site / "repository" / "benchmarks" / "results" / path.name
        assert copy.read_bytes() == path.read_bytes()


def test_the_benchmarks_page_shows_the_values_of_the_files(site: Path) -> None:
    text = (site / "benchmarks.html").read_text(encoding="utf-8")
    for path in docs_benchmarks.files():
        (table,) = docs_benchmarks.read(path).tables
        part = text.partition(f'id="{path.stem}"')[2].partition("<h3")[0]
        shown = re.findall(r"<td[^>]*>([^<]*)</td>", part)
        wanted = [docs_benchmarks.figure(row) for row in table.rows if row.value is not None]
        assert len(wanted) > 1
        assert set(wanted) <= set(shown)


def test_the_errors_page_is_up_to_date() -> None:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
    done = subprocess.run(
        [sys.executable, "-m", "tools.docs_errors", "--print"],
        cwd=ROOT,
        env=clean | {"HOLDFAST_BUILD_DIR": str(ROOT / ".cache" / "build")},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == docs_errors.PAGE.read_text(
        encoding="utf-8"
    )  # python -m tools.docs_errors


def test_the_language_of_a_page_is_said_and_can_be_changed(site: Path) -> None:
    english, chinese = (
        (site / "tutorials" / f"flux-in-6-gb{end}.html").read_text(encoding="utf-8")
        for end in ("", ".zh-TW")
    )
    assert '<html lang="en"' in english
    assert '<html lang="zh-TW"' in chinese
    assert 'href="flux-in-6-gb.zh-CN.html" hreflang="zh-CN"' in english
    assert 'href="flux-in-6-gb.html" hreflang="en"' in chinese
    home = (site / "errors.html").read_text(encoding="utf-8")
    assert 'href="repository/README.zh-TW.html" hreflang="zh-TW"' in home


# ---- in Chromium, from the file system


class Tab:
    """A page of a browser without a network, and what it asked for and complained about."""

    def __init__(self, page: Any) -> None:
        self.page = page
        self.asked: list[str] = []
        self.errors: list[str] = []
        page.on("request", lambda request: self.asked.append(request.url))
        page.on("console", lambda m: self.errors.append(m.text) if m.type == "error" else None)
        page.on("pageerror", lambda error: self.errors.append(str(error)))

    def found(self, words: str) -> str:
        """What searching for something shows."""
        query = self.page.locator("[data-md-component=search-query]")
        query.fill(words)
        query.press("End")  # the search listens to keys
        first = self.page.locator(".md-search-result__item").first
        first.wait_for()
        return first.inner_text()


@pytest.fixture(scope="module")
def tab() -> Iterator[Tab]:
    with browser() as running:
        context = running.new_context(viewport={"width": 1300, "height": 900})
        context.set_offline(True)
        yield Tab(context.new_page())


@pytest.mark.browser
@needs(missing())
def test_every_page_opens_without_a_network_and_without_a_complaint(site: Path, tab: Tab) -> None:
    for path in html(site):
        tab.page.goto(path.as_uri(), wait_until="load")
        assert tab.page.locator("h1").first.inner_text().strip()
    assert [url for url in tab.asked if not url.startswith(("file:", "data:", "about:"))] == []
    assert tab.errors == []


@pytest.mark.browser
@needs(missing())
@pytest.mark.parametrize(
    ("words", "shown"),
    [("autobalance", "autobalance"), ("UseAfterFree", "UseAfterFree"), ("記憶體", "記憶體")],
)
def test_search_finds_words_from_the_file_system(
    site: Path, tab: Tab, words: str, shown: str
) -> None:
    tab.page.goto((site / "index.html").as_uri(), wait_until="load")
    assert shown.casefold() in tab.found(words).casefold()
    assert tab.errors == []
