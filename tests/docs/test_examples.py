"""What the pages show works: examples run, commands, targets and extras are there."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from holdfast.cli.main import COMMANDS
from tests.docs.pages import ROOT, json_of, originals, pages, text_of

PAGES = [*pages(), ROOT / "CONTRIBUTING.md"]
# Blocks of a tutorial follow one another, so a test of their own runs them: tests/docs/reading.py.
EXAMPLES = [
    pytest.param(block, id=f"{page.stem}-{number}")
    for page in (*originals(), ROOT / "CONTRIBUTING.md")
    if page.parent.name != "tutorials"
    for number, block in enumerate(re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL))
]


def named(page: Path) -> str:
    """A page's path, for the names of tests."""
    return page.relative_to(ROOT).as_posix()


@pytest.mark.slow
@pytest.mark.parametrize("example", EXAMPLES)
def test_every_python_example_runs(example: str, tmp_path: Path) -> None:
    (tmp_path / "benchmarks").symlink_to(ROOT / "benchmarks")  # as in a clone
    done = subprocess.run(
        [sys.executable, "-c", example], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_the_source_that_a_page_shows_is_what_its_example_prints(tmp_path: Path) -> None:
    ((example, shown),) = re.findall(
        r"```python\n([^`]*?\"show\": True[^`]*?)```\n\n```\n(.*?)```",
        text_of("docs/torch-device.md"),
        re.DOTALL,
    )
    file = tmp_path / "example.py"  # a file, so that the source can quote its lines
    file.write_text(example)
    done = subprocess.run([sys.executable, str(file)], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == shown.strip()


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_every_command_that_a_page_shows_exists(page: Path) -> None:
    shown = set(re.findall(r"(?:^|`)holdfast (\w+)", page.read_text(), re.MULTILINE))
    assert shown <= set(COMMANDS)


def test_every_make_target_that_a_page_shows_exists() -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    shown = {
        t for page in PAGES for t in re.findall(r"(?:^|`)make ([\w-]+)", page.read_text(), re.M)
    }
    assert shown <= targets


def test_the_readme_lists_every_extra() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    rows = set(re.findall(r"^\| `(\w+)` \|", text_of("README.md"), re.MULTILINE))
    assert set(project["optional-dependencies"]) <= rows


def test_the_torch_devices_page_says_which_versions_work_and_what_passes() -> None:
    from holdfast.compute.torch_device import torch_requirements

    text = " ".join(text_of("docs/torch-device.md").split())
    assert (
        f"It needs {torch_requirements.WORKS}; the tests run with {torch_requirements.RECOMMENDED}."
        in text
    )
    passes = json_of("tests/contract/passes_device.json")
    assert (
        f"Of 677 OpInfos {len(passes['device'])} pass, and {len(passes['native'])} where falling "
        f"back is refused; of 114 ModuleInfos {len(passes['native modules'])} pass without falling "
        "back."
    ) in text


def test_as_many_overloads_are_native_as_the_torch_devices_page_says() -> None:
    from holdfast.compute.torch_device.dispatch.coverage import coverage

    rows = coverage()
    text = " ".join(text_of("docs/torch-device.md").split())
    assert f"about {round(len(rows), -2)} *overloads*" in text
    assert "About nine of ten overloads are native." in text
    assert round(10 * sum(row.way == "native" for row in rows) / len(rows)) == 9
