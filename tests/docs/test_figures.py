"""Every figure of the pages comes from a file of results, and a wrong one would be noticed.

Three nets lie under each other: tests that put whole sentences together from the results
(test_claims_*), a scanner that finds every number that looks measured and looks it up, and the same
figures in every language (test_translations).
"""

from __future__ import annotations

import importlib
import re
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.docs.figures import ROOT, RULES, Figure, figures, number
from tests.docs.lookup import not_found
from tests.docs.pages import changed, originals, watched

ORIGINALS = originals()
MEASURED = [page for page in ORIGINALS if "benchmarks/results/" in page.read_text(encoding="utf-8")]
CLAIMS = tuple(
    f"tests.docs.test_claims_of_{what}" for what in ("models", "the_machine", "tutorials")
)


def named(page: Path) -> str:
    """A page's path, for the names of tests."""
    return page.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("page", ORIGINALS, ids=named)
def test_every_figure_comes_from_results_that_its_section_links_to(page: Path) -> None:
    assert [str(figure) for figure in not_found(figures(page))] == []


# ---- a wrong figure is noticed


@pytest.fixture(scope="module")
def claims() -> dict[str, list[Callable[[], None]]]:
    """Page -> the tests that look for whole sentences in it."""
    found: dict[str, list[Callable[[], None]]] = {}
    for module in map(importlib.import_module, CLAIMS):
        for name in (name for name in vars(module) if name.startswith("test_")):
            with watched() as read:
                getattr(module, name)()
            for page in read:
                found.setdefault(page, []).append(getattr(module, name))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("page", MEASURED, ids=named)
def test_a_digit_that_is_changed_is_noticed(
    page: Path, claims: dict[str, list[Callable[[], None]]]
) -> None:
    text = page.read_text(encoding="utf-8")
    there = figures(page)
    missed = [
        f"{figure} as {wrong[figure.start : figure.end]}"
        for figure in there
        for wrong in _wrong(text, figure)
        if not _is_noticed(page, wrong, there, figure, claims.get(named(page), []))
    ]
    assert missed == []


def _wrong(text: str, figure: Figure) -> Iterator[str]:
    """The page with the last digit of a figure changed, then with the first."""
    digits = [place for place in range(figure.start, figure.end) if text[place].isdigit()]
    for place in dict.fromkeys((digits[-1], digits[0])):
        other = str((int(text[place]) + 4) % 10)
        yield text[:place] + other + text[place + 1 :]


def _is_noticed(
    page: Path,
    wrong: str,
    there: list[Figure],
    figure: Figure,
    sentences: list[Callable[[], None]],
) -> bool:
    """Whether the figures that are looked up together are not all found, or a sentence is not."""
    value = number(wrong[figure.start : figure.end])[0]
    together = [one for one in there if _beside(one, figure)]
    if not_found(replace(one, value=value) if one is figure else one for one in together):
        return True
    with changed(named(page), wrong):
        return any(_fails(sentence) for sentence in sentences)


def _beside(one: Figure, other: Figure) -> bool:
    """Whether two figures are looked up together."""
    return one.table == other.table if other.table is not None else one.start == other.start


def _fails(sentence: Callable[[], None]) -> bool:
    try:
        sentence()
    except AssertionError:
        return True
    return False


# ---- what a figure is


def told(text: str) -> list[str]:
    """The figures of a page with this text, and whether each was found."""
    page = ROOT / "docs" / "made-up.md"
    there = figures(page, text)
    missing = not_found(there)
    return [f"{figure.text}{' is nowhere' if figure in missing else ''}" for figure in there]


RUN = "([the run](../benchmarks/results/residency-run-flux-h200.json))"


def test_a_figure_is_found_at_the_precision_it_is_shown_with() -> None:
    assert told(f"A step takes 238 ms {RUN}.\n") == ["238 ms"]
    assert told(f"A step takes 237.99 ms {RUN}.\n") == ["237.99 ms"]
    assert told(f"A step takes 237.9 ms {RUN}.\n") == ["237.9 ms"]  # by the host's clock
    assert told(f"A step takes 236.5 ms {RUN}.\n") == ["236.5 ms is nowhere"]
    assert told(f"A step takes 0.24 s {RUN}.\n") == ["0.24 s"]
    assert told(f"A step takes 238 s {RUN}.\n") == ["238 s is nowhere"]


def test_a_number_takes_its_unit_from_the_one_beside_it() -> None:
    assert told(f"A step takes 238 ms, where 233 were predicted {RUN}.\n") == ["238 ms", "233"]
    assert told(f"A step takes 238 ms, where 243 were predicted {RUN}.\n") == [
        "238 ms",
        "243 is nowhere",
    ]


def test_time_and_speed_need_results_everywhere_and_sizes_beside_results() -> None:
    assert told("It takes 5 ms, is 3 times as fast, moves 7 GB/s and needs 2 GB.\n") == [
        "5 ms is nowhere",
        "3 times is nowhere",
        "7 GB/s is nowhere",
    ]
    assert told(f"It takes 1.2 TB of 99 machines {RUN}.\n") == [
        "1.2 TB is nowhere",
        "99 is nowhere",
    ]


def test_results_of_another_section_do_not_count() -> None:
    text = f"# One\n\nA step takes 238 ms {RUN}.\n\n# Other\n\nAgain 238 ms.\n"
    assert told(text) == ["238 ms", "238 ms is nowhere"]


def test_code_addresses_and_what_names_a_row_are_no_figures() -> None:
    text = (
        f"See {RUN} and `5 ms` at https://example.org/7 ms.\n\n```\n9 ms\n```\n\n"
        "| after 3 s | 4 GB |\n|---|---|\n| with 8 steps | 5.91 GB |\n"
    )
    assert told(text) == ["5.91 GB"]


def test_a_cell_has_to_fit_into_its_row_and_its_column() -> None:
    linked = "[All](../benchmarks/results/residency-h200.json):\n\n"
    head = "| ms a step | small | middle | large |\n|---|---|---|---|\n"
    rows = "| packed | 217 | 191 | 184 |\n| not | 354 | 249 | {} |\n| other | 378 | 305 | 220 |\n"
    assert told(linked + head + rows.format(180)) == [
        *("217", "191", "184", "354", "249", "180", "378", "305", "220")
    ]
    wrong = told(linked + head + rows.format(191))  # the file has it, in another place
    assert [cell for cell in wrong if "nowhere" in cell] == ["191 is nowhere"]


# ---- what is no measurement


def test_every_rule_has_a_reason_and_is_needed() -> None:
    texts = {named(page): page.read_text(encoding="utf-8") for page in ORIGINALS}
    for rule in tomllib.loads(RULES.read_text(encoding="utf-8"))["not_measured"]:
        assert rule["why"]
        where = "\n".join(texts[name] for name in rule.get("pages", texts))
        for pattern in rule["match"]:
            assert re.search(re.sub(r"(?<!\\) ", r"\\s+", pattern), where), pattern


def test_what_a_test_works_out_names_a_test_that_is_there() -> None:
    there = {name for module in CLAIMS for name in vars(importlib.import_module(module))}
    rules: list[dict[str, Any]] = tomllib.loads(RULES.read_text(encoding="utf-8"))["not_measured"]
    worked_out = [rule["why"].split()[-1] for rule in rules if "worked out by" in rule["why"]]
    assert len(worked_out) > 3
    assert set(worked_out) <= there
