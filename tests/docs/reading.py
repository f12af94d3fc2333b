"""Does what a tutorial says, block by block, as its reader would.

    cd an/empty/folder && python .../tests/docs/reading.py .../docs/tutorials/numa-servers.md

The blocks of a page run in their order, in the current folder:

    ```python   in this one process: names carry over from block to block. A block whose first line
                is a comment with a file's name (`# train.py`) is written to that file instead.
    ```sh       by bash, which ends at the first command that fails. A block whose first line is
                `# not run by the tests: needs ...` is left out.
    ```text     what the block before has printed, its errors included. Numbers, with their units,
                addresses and bars may differ, and so may white space. `...` stands for anything
                in a line, a line of it for any lines. All other words have to be there.

Comments of the page that no reader sees change that for the block they stand before:

    <!-- test: exact -->      numbers count too
    <!-- test: sample -->     the text is from another machine or of another moment: not compared
    <!-- test: exits 1 -->    the commands end with that status
    <!-- test: run CODE -->   Python code that runs here: a set-up, or a look at what was written

`--with OLD=NEW` replaces words of the page, such as the address of a server.
Promise: the first block that does otherwise ends it, with the page's line and what was printed.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import re
import subprocess
import sys
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

NOT_RUN = "# not run by the tests: "
TIME_LIMIT_S = 500  # the machine may be busy
_BLOCK = re.compile(
    r"^<!-- test: (?P<said>.*?) ?-->$|^```(?P<kind>\w*)\n(?P<text>.*?)^```$",
    re.DOTALL | re.MULTILINE,
)
FILE = re.compile(r"# ([\w-]+\.py)\n")
_UNIT = r"(?: ?(?:[KMGT]i?B(?:/s)?|B|ns|µs|ms|s|min|h|%|x)(?![\w/]))?"
_NUMBER = re.compile(rf"0x[0-9a-f]+|[-+]?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?{_UNIT}|[█░]+")


class Otherwise(Exception):
    """The page says one thing, and another has happened."""


@dataclass(frozen=True)
class Block:
    """One block of a page, or a comment to the tests."""

    kind: str  # python, sh, text; run, exact, sample, exits for what a comment says
    text: str
    line: int  # where it begins in the page


def blocks(page: str) -> Iterator[Block]:
    """All of a page, in order; blocks of other languages are left out."""
    for found in _BLOCK.finditer(page):
        line = page.count("\n", 0, found.start()) + 1
        if found["said"] is not None:
            kind, _, text = found["said"].partition("\n" if "\n" in found["said"] else " ")
            yield Block(kind, text, line)
        elif found["kind"] in ("python", "sh", "text"):
            yield Block(found["kind"], found["text"], line + 1)


class Reader:
    """One reader of one page: what he has printed last, and the names he has defined."""

    def __init__(self, page: Path) -> None:
        self.page = page
        self.names: dict[str, Any] = {"__name__": "__main__"}
        self.printed: str | None = None  # None: there is nothing that a text could show
        self.count = 0

    def read(self, text: str) -> None:
        """Do all of it. Raises Otherwise."""
        said: Block | None = None  # the comment before
        for block in blocks(text):
            try:
                if block.kind in ("exact", "sample", "exits"):
                    said = block
                    continue
                self._do(block, said)
            except Otherwise as exc:
                raise Otherwise(f"{self.page.name}:{block.line}: {exc}") from exc
            said = None

    def _do(self, block: Block, said: Block | None) -> None:
        if block.kind == "text":
            self._compare(block.text, "compare" if said is None else said.kind)
        elif block.kind == "sh":
            self._sh(block.text, int(said.text) if said is not None else 0)
        elif block.kind in ("python", "run"):
            self._python(block)
        else:
            raise Otherwise(f"a comment to the tests that they do not know: {block.kind}")

    def _python(self, block: Block) -> None:
        file = FILE.match(block.text)
        if file is not None:
            Path(file[1]).write_text(block.text)
            return
        code = compile("\n" * (block.line - 1) + block.text, str(self.page), "exec")
        out = io.StringIO()
        try:
            with contextlib.redirect_stdout(out):
                exec(code, self.names)
        except Exception as exc:
            raise Otherwise(f"it fails\n{out.getvalue()}{traceback.format_exc()}") from exc
        if block.kind == "python":
            self.printed = out.getvalue()
            self.count += 1

    def _sh(self, text: str, status: int) -> None:
        if text.startswith(NOT_RUN):
            self.printed = None
            return
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", text],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=TIME_LIMIT_S,
            check=False,
        )
        if done.returncode != status:
            raise Otherwise(f"it ends with {done.returncode} instead of {status}\n{done.stdout}")
        self.printed = done.stdout
        self.count += 1

    def _compare(self, shown: str, how: str) -> None:
        if how == "sample":
            return
        if self.printed is None:
            raise Otherwise("a text that nothing before it has printed, and that is no sample")
        if not _pattern(shown, exact=how == "exact").fullmatch(
            _plain(self.printed, exact=how == "exact")
        ):
            raise Otherwise(f"it prints\n{self.printed}\nand not\n{shown}")
        self.printed = None


def _plain(text: str, *, exact: bool) -> str:
    """Text as it is compared: one blank for white space, # for what may differ."""
    text = text if exact else _NUMBER.sub("#", text)
    lines = (" ".join(line.split()) for line in text.splitlines())
    return "".join(f"{line}\n" for line in lines if line)


def _pattern(shown: str, *, exact: bool) -> re.Pattern[str]:
    parts = (
        r"(?:.*\n)*?" if line == "..." else re.escape(f"{line}\n").replace(r"\.\.\.", ".*")
        for line in _plain(shown, exact=exact).splitlines()
    )
    return re.compile("".join(parts))


def main() -> int:
    """Read one page; 1 and what was otherwise, if something was."""
    parser = argparse.ArgumentParser(description="Do what a tutorial says.")
    parser.add_argument("page", type=Path)
    parser.add_argument("--with", dest="pairs", action="append", default=[], metavar="OLD=NEW")
    chosen = parser.parse_args()
    text = chosen.page.read_text()
    for old, _, new in (pair.partition("=") for pair in chosen.pairs):
        text = text.replace(old, new)
    sys.path[0] = ""  # as at a prompt: files of the tutorial can be imported
    for name in ("PYTEST_ADDOPTS", "CI", "BUILD_NUMBER"):
        os.environ.pop(name, None)  # a page may run pytest, which prints otherwise with these
    os.environ["PYTHONUNBUFFERED"] = "1"  # lines come in the order in which a terminal has them
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    reader = Reader(chosen.page)
    try:
        reader.read(text)
    except Otherwise as exc:
        print(exc, file=sys.stderr)
        return 1
    print(f"{chosen.page.name}: {reader.count} blocks did what the page says")
    return 0


if __name__ == "__main__":
    sys.exit(main())
