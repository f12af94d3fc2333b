"""Pages in other languages say what their originals say: the same figures, code and results."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from pathlib import Path

import pytest

from tests.docs.pages import LANGUAGES, ROOT, originals, pages

TRANSLATIONS = [page for page in pages() if page not in originals()]


def named(page: Path) -> str:
    """A page's path, for the names of tests."""
    return page.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("page", TRANSLATIONS, ids=named)
def test_a_translation_has_the_figures_of_its_original(page: Path) -> None:
    assert _numbers(page) == _numbers(_original(page))


@pytest.mark.parametrize("page", TRANSLATIONS, ids=named)
def test_a_translation_has_the_code_of_its_original(page: Path) -> None:
    pairs = itertools.zip_longest(_code(page), _code(_original(page)))
    assert [pair for pair in pairs if pair[0] != pair[1]] == []


@pytest.mark.parametrize("page", TRANSLATIONS, ids=named)
def test_a_translation_links_to_what_its_original_links_to(page: Path) -> None:
    links = re.compile(r"\]\((?:\.\./)*(benchmarks/results/[^)]+)\)")
    found, wanted = (
        Counter(links.findall(one.read_text(encoding="utf-8"))) for one in (page, _original(page))
    )
    assert found == wanted


def _original(page: Path) -> Path:
    language = next(name for name in LANGUAGES if page.stem.endswith(name))
    return page.with_name(page.name.replace(f".{language}.md", ".md"))


def _code(page: Path) -> list[str]:
    """The blocks of a page without comments, which are translated."""
    blocks = re.findall(r"^```(?:\w*)\n(.*?)^```", page.read_text(encoding="utf-8"), re.S | re.M)
    return [
        "\n".join(line for line in (_uncommented(one) for one in block.splitlines()) if line)
        for block in blocks
    ]


def _uncommented(line: str) -> str:
    return re.sub(r"(?:^|\s+)#(?!\w*\[).*$", "", line).rstrip()


def _numbers(page: Path) -> Counter[str]:
    """Numbers with decimals, and whole ones of two digits and more, outside of code and links."""
    text = re.sub(
        r"^```.*?^```|<!--.*?-->|`[^`\n]+`|\]\([^)]*\)",
        " ",
        page.read_text(encoding="utf-8"),
        flags=re.S | re.M,
    )
    found = re.findall(r"\d+(?:[.,]\d+)*", text)
    return Counter(number for number in found if len(number) > 1)
