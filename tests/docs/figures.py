"""Finds every figure of a page.

Covers: which numbers are figures, their units, the files of results that each may come from.
Leaves to others: the values of those files (results), finding a figure among them (lookup), which
numbers are no measurement (not_measured.toml).
Promise: a place in the text that is found is where the number stands in the page.

In a section that links to results every number is a figure. Elsewhere those with a unit of time,
speed or comparison are. Left out are blocks of code, which show what a program is given or prints,
and what names a row or a column of a table.
"""

from __future__ import annotations

import functools
import itertools
import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
RULES = Path(__file__).parent / "not_measured.toml"

# Unit -> what it measures, and how much of that one is.
UNITS = {
    "ns": ("time", 1e-9),
    "µs": ("time", 1e-6),
    "ms": ("time", 1e-3),
    "s": ("time", 1.0),
    "microseconds": ("time", 1e-6),
    "milliseconds": ("time", 1e-3),
    "seconds": ("time", 1.0),
    "second": ("time", 1.0),
    "minutes": ("time", 60.0),
    "minute": ("time", 60.0),
    "微秒": ("time", 1e-6),
    "毫秒": ("time", 1e-3),
    "秒": ("time", 1.0),
    "分鐘": ("time", 60.0),
    "分钟": ("time", 60.0),
    "MB/s": ("rate", 1e6),
    "GB/s": ("rate", 1e9),
    "GiB/s": ("rate", 2.0**30),
    "GFLOPS": ("work", 1e9),
    "TFLOPS": ("work", 1e12),
    "%": ("ratio", 0.01),
    "×": ("ratio", 1.0),
    "times": ("ratio", 1.0),
    "倍": ("ratio", 1.0),
    "KB": ("bytes", 1e3),
    "MB": ("bytes", 1e6),
    "GB": ("bytes", 1e9),
    "TB": ("bytes", 1e12),
    "KiB": ("bytes", 2.0**10),
    "MiB": ("bytes", 2.0**20),
    "GiB": ("bytes", 2.0**30),
}
_UNIT = "|".join(re.escape(unit) for unit in sorted(UNITS, key=len, reverse=True))
_NUMBER = re.compile(
    r"(?<![\w.])(?P<number>[-+−]?\d+(?:,\d{3})*(?:\.\d+)?(?:e[-+]?\d+)?)(?![\d²³]|\.\d)"
    rf"(?:\s?(?P<unit>{_UNIT})(?![A-Za-z/\d]))?(?![A-Za-z])"
)
_IN_HEAD = re.compile(rf"(?<!\d )(?<![\w.'’])({_UNIT})(?=$|[\s,)|])")
_RESULT = re.compile(r"\]\((?:\.\./)*benchmarks/results/([\w.-]+\.json)\)")
_CODE = re.compile(r"^[ \t]*```.*?^[ \t]*```[ \t]*$", re.DOTALL | re.MULTILINE)
_PARAGRAPH = re.compile(r"(?:^[ \t]*\S.*\n?)+", re.MULTILINE)
_NOT_TEXT = (
    _CODE,
    re.compile(r"<!--.*?-->", re.DOTALL),
    re.compile(r"`[^`\n]+(?:\n[^`\n]+)?`"),
    re.compile(r"(?<=\])\([^)\s]+\)"),  # where a link leads to
    re.compile(r"https?://\S+"),
    re.compile(r"^(?:#+ )?\d+\. ", re.MULTILINE),  # of a list or a chapter
)


@dataclass(frozen=True)
class Figure:
    """A number of a page that somebody measured."""

    page: str
    line: int
    text: str  # as it is shown, with its unit
    start: int  # where the number is in the page
    end: int
    value: float
    step: float  # one of its last digit
    unit: str | None  # its own, or that of its column
    near: tuple[str, ...]  # the units of the figures before and after it in its paragraph
    results: tuple[str, ...]  # the files it comes from: its paragraph's, or those named last
    section: tuple[str, ...]  # all files that its section links to
    table: int | None  # where its table begins
    row: int = 0
    column: int = 0

    def __str__(self) -> str:
        return f"{self.page}:{self.line}: {self.text} in {', '.join(self.results) or 'no results'}"


def figures(page: Path, text: str | None = None) -> list[Figure]:
    """Every figure of a page, in order; `text` stands in for what is in the file."""
    text = page.read_text(encoding="utf-8") if text is None else text
    name = page.relative_to(ROOT).as_posix()
    shown = _blanked(name, text)
    found = []
    for part in _parts(text):
        head = text[part.begin : part.end].partition("\n")[0].split("|") if part.is_table else []
        matches = list(_NUMBER.finditer(shown, part.begin, part.end))
        for place, match in enumerate(matches):
            row = shown.rfind("\n", 0, match.start()) + 1
            column = shown.count("|", row, match.start()) if head else 0
            if head and (row == part.begin or column == 1):
                continue
            unit = match["unit"] or _head_unit(head, column)
            if part.results or (unit is not None and UNITS[unit][0] != "bytes"):
                near = _near(matches, place)
                found.append(_figure(name, text, match, unit, near, part, row, column))
    return found


def _figure(
    name: str,
    text: str,
    match: re.Match[str],
    unit: str | None,
    near: tuple[str, ...],
    part: Part,
    row: int,
    column: int,
) -> Figure:
    value, step = number(match["number"])
    return Figure(
        page=name,
        line=text.count("\n", 0, match.start()) + 1,
        text=" ".join(match[0].split()),
        start=match.start("number"),
        end=match.end("number"),
        value=value,
        step=step,
        unit=unit,
        near=near,
        results=part.results,
        section=part.section,
        table=part.begin if part.is_table else None,
        row=row,
        column=column,
    )


def _near(matches: list[re.Match[str]], place: int) -> tuple[str, ...]:
    before = [match["unit"] for match in matches[:place] if match["unit"]]
    after = [match["unit"] for match in matches[place + 1 :] if match["unit"]]
    return tuple(dict.fromkeys((*before[-1:], *after[:1])))


def number(shown: str) -> tuple[float, float]:
    """The number, and one of its last digit."""
    plain = shown.replace(",", "").replace("−", "-")
    digits, _, exponent = plain.partition("e")
    return float(plain), 10.0 ** (int(exponent or 0) - len(digits.partition(".")[2]))


def _blanked(page: str, text: str) -> str:
    """The text with blanks for all that holds no figures; every place stays where it is."""
    for pattern in (*_NOT_TEXT, *rules(page)):
        text = pattern.sub(lambda match: re.sub(r"[^\n|]", " ", match[0]), text)
    return text


@functools.cache
def rules(page: str) -> tuple[re.Pattern[str], ...]:
    """What is no measurement on that page; a translation has the rules of its original."""
    found = tomllib.loads(RULES.read_text(encoding="utf-8"))["not_measured"]
    original = re.sub(r"\.zh-(?:TW|CN)\.md$", ".md", page)
    return tuple(
        re.compile(re.sub(r"(?<!\\) ", r"\\s+", pattern))
        for rule in found
        if original in rule.get("pages", [original])
        for pattern in rule["match"]
    )


@dataclass(frozen=True)
class Part:
    """A paragraph or a table, and the results it comes from."""

    begin: int
    end: int
    is_table: bool
    results: tuple[str, ...]
    section: tuple[str, ...]


def _parts(text: str) -> Iterator[Part]:
    """All of a page but code. A part without a link comes from the files that were named last."""
    plain = _CODE.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)
    starts = [0, *(match.start() for match in re.finditer(r"^#+ ", plain, re.MULTILINE))]
    for begin, end in itertools.pairwise([*starts, len(text)]):
        spans = [match.span() for match in _PARAGRAPH.finditer(plain, begin, end)]
        linked = [tuple(dict.fromkeys(_RESULT.findall(plain[a:b]))) for a, b in spans]
        section = tuple(dict.fromkeys(itertools.chain(*linked)))
        now: tuple[str, ...] = next((names for names in linked if names), ())
        for (start, stop), names in zip(spans, linked, strict=True):
            now = names or now
            yield Part(start, stop, plain[start] == "|", now, section)


def _head_unit(head: list[str], column: int) -> str | None:
    """The unit of a cell that has none itself: that of its column, else of its table's corner."""
    if not 1 < column < len(head):
        return None
    units = (_IN_HEAD.search(head[place]) for place in (column, 1))
    return next((unit[1] for unit in units if unit is not None), None)
