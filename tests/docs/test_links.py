"""Links lead somewhere: in the repository as they are written, on the site as rewritten."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.pages import ROOT, pages
from tools import docs_links

PAGES = [*pages(), ROOT / "CONTRIBUTING.md"]


def named(page: Path) -> str:
    """A page's path, for the names of tests."""
    return page.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_every_link_in_the_repository_leads_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#\s]+)", page.read_text(encoding="utf-8"))
    local = [link for link in links if "://" not in link]
    assert [link for link in local if not (page.parent / link).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_blocks_inside_of_a_list_are_indented_so_that_every_renderer_sees_them(page: Path) -> None:
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    assert re.findall(r"\n\n {1,3}\S.*|\n {1,3}```.*", text) == []


def test_a_link_between_pages_stays_and_one_out_of_docs_leads_to_a_copy() -> None:
    text = "[a](svm.md#rules), [b](../CONTRIBUTING.md) and ![c](images/residency.png)"
    assert docs_links.rewrite("memory.md", text) == (
        "[a](svm.md#rules), [b](repository/CONTRIBUTING.md) and ![c](images/residency.png)"
    )


def test_links_of_the_readme_lead_into_the_site() -> None:
    text = "[`docs`](docs/svm.md), [run](benchmarks/results/svm-cpu.json), [how](CONTRIBUTING.md)"
    assert docs_links.rewrite("repository/README.md", text) == (
        "[`docs`](../svm.md), [run](benchmarks/results/svm-cpu.json), [how](CONTRIBUTING.md)"
    )


def test_a_folder_leads_to_its_readme_and_other_hosts_are_left_alone() -> None:
    text = "[a](../training), [b](https://example.org/README.md), [c](#here), [d](no-such-file.md)"
    assert docs_links.rewrite("memory.md", text) == (
        "[a](repository/training/README.md), [b](https://example.org/README.md), [c](#here), "
        "[d](no-such-file.md)"
    )


def test_what_looks_like_a_link_inside_of_code_is_left_alone() -> None:
    text = "`[a](../README.md)`\n\n```\n[b](../README.md)\n```\n"
    assert docs_links.rewrite("memory.md", text) == text


def test_files_outside_of_docs_are_found_with_those_that_they_lead_to() -> None:
    found = docs_links.outside_docs(["docs/pipeline.md"])
    assert found["repository/training/README.md"] == ROOT / "training/README.md"
    assert found["repository/benchmarks/results/pipeline-h200.json"].is_file()
    assert all(path.is_file() for path in found.values())
