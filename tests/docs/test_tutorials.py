"""Every tutorial does what it says: its blocks run as a reader runs them (see reading.py)."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs import reading

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs/tutorials"
PAGES = sorted(page for page in FOLDER.glob("*.md") if ".zh-" not in page.name)
READER = ROOT / "tests/docs/reading.py"


def read(page: str, folder: Path, *options: str) -> str:
    """Do all of a page in a fresh folder, in a fresh process; what the reader says at the end."""
    command = [sys.executable, str(READER), str(FOLDER / page), *options]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_flux_in_6_gb_does_what_it_says(tmp_path: Path) -> None:
    assert read("flux-in-6-gb.md", tmp_path) == said("flux-in-6-gb.md")


@pytest.mark.slow
def test_where_did_my_memory_go_does_what_it_says(tmp_path: Path) -> None:
    assert read("where-did-my-memory-go.md", tmp_path) == said("where-did-my-memory-go.md")


@pytest.mark.slow
@pytest.mark.xla
def test_a_tpu_port_in_25_lines_does_what_it_says(tmp_path: Path) -> None:
    assert read("a-tpu-port-in-25-lines.md", tmp_path) == said("a-tpu-port-in-25-lines.md")


@pytest.mark.slow
@pytest.mark.opencl
def test_no_cuda_does_what_it_says(tmp_path: Path, kept_kernels: None) -> None:
    assert read("no-cuda-the-opencl-device.md", tmp_path) == said("no-cuda-the-opencl-device.md")


@pytest.mark.slow
def test_numa_servers_does_what_it_says(tmp_path: Path) -> None:
    assert read("numa-servers.md", tmp_path) == said("numa-servers.md")


def said(page: str) -> str:
    """The last line of a reader who has left out nothing but what is marked."""
    found = list(reading.blocks((FOLDER / page).read_text()))
    run = [
        block
        for block in found
        if block.kind in ("python", "sh")
        and not block.text.startswith(reading.NOT_RUN)
        and not reading.FILE.match(block.text)
    ]
    return f"{page}: {len(run)} blocks did what the page says\n"


def test_the_port_has_the_lines_of_its_title() -> None:
    text = (FOLDER / "a-tpu-port-in-25-lines.md").read_text()
    (port,) = re.findall(r"```python\n# pixart_port\.py\n(.*?)```", text, re.DOTALL)
    assert port.count("\n") <= 25


# ---- the reader himself


def otherwise(tmp_path: Path, text: str) -> str:
    """What he says of a page that is not true."""
    page = tmp_path / "page.md"
    page.write_text(text)
    command = [sys.executable, str(READER), str(page)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stdout == ""
    return done.stderr


PRINTS = "```python\nprint('3 pages of 4.0 KB')\n```\n\n"


def test_a_page_that_shows_another_text_is_found(tmp_path: Path) -> None:
    assert otherwise(tmp_path, f"{PRINTS}```text\n9 sheets of 512 MB\n```\n") == (
        "page.md:6: it prints\n3 pages of 4.0 KB\n\nand not\n9 sheets of 512 MB\n\n"
    )


def test_numbers_count_where_the_page_says_so(tmp_path: Path) -> None:
    shown = f"{PRINTS}```text\n9 pages of 512 MB\n```\n"
    page = tmp_path / "page.md"
    page.write_text(shown)
    assert read(str(page), tmp_path) == "page.md: 1 blocks did what the page says\n"
    exact = shown.replace("```text", "<!-- test: exact -->\n```text")
    assert otherwise(tmp_path, exact).startswith("page.md:7: it prints\n3 pages of 4.0 KB\n")


def test_a_command_that_fails_and_a_text_of_nothing_are_found(tmp_path: Path) -> None:
    assert otherwise(tmp_path, "```sh\necho no; exit 3\n```\n") == (
        "page.md:2: it ends with 3 instead of 0\nno\n\n"
    )
    text = "```sh\n# not run by the tests: needs a TPU\nfalse\n```\n\n```text\nyes\n```\n"
    assert otherwise(tmp_path, text) == (
        "page.md:7: a text that nothing before it has printed, and that is no sample\n"
    )


def test_every_tutorial_is_run_by_some_test() -> None:
    tests = [Path(__file__), ROOT / "tests/comfyui/test_tutorial.py"]
    text = "".join(test.read_text() for test in tests)
    assert [page.name for page in PAGES if f'read("{page.name}"' not in text] == []
    assert len(PAGES) == 6
