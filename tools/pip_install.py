"""Install packages with pip: one line and a bar; the output of pip only if it fails.

Usage: python tools/pip_install.py TITLE PIP-ARGUMENT...
"""

from __future__ import annotations

import itertools
import re
import subprocess
import sys
import time
from pathlib import Path

_WIDTH = 30
_NAMED = re.compile(r"^\s*(?:Collecting|Requirement already satisfied:) ([\w.-]+)")


def main(title: str, *arguments: str) -> int:
    """Run `pip install`; returns its exit status."""
    command = [sys.executable, "-m", "pip", "install", "--disable-pip-version-check", "--no-color"]
    begin, output, left = time.monotonic(), list[str](), named_packages(arguments)
    total = len(left)
    with subprocess.Popen(
        [*command, "--progress-bar=off", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as pip:
        assert pip.stdout is not None
        for line in pip.stdout:
            output.append(line)
            if found := _NAMED.match(line):
                left.discard(normalize(found[1]))
                show(title, total - len(left), total, found[1])
            elif line.startswith("Installing"):
                show(title, total, total, "installing")
    show("", 0, 0, "")
    if pip.returncode:
        sys.stderr.writelines(output)
        print(f"set-up: {title}: pip failed", file=sys.stderr)
    else:
        print(f"set-up: {title} ({time.monotonic() - begin:.0f} s)")
    return pip.returncode


def named_packages(arguments: tuple[str, ...]) -> set[str]:
    """The packages in requirement files, and in files that these include."""
    names: set[str] = set()
    for flag, file in itertools.pairwise(arguments):
        if flag != "-r":
            continue
        for line in Path(file).read_text(encoding="utf-8").splitlines():
            if line.startswith("-r "):
                names |= named_packages(("-r", str(Path(file).parent / line[3:].strip())))
            elif line.strip() and not line.startswith("#"):
                names.add(normalize(re.split(r"[\[=<>~ ]", line, maxsplit=1)[0]))
    return names


def normalize(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def show(title: str, done: int, total: int, now: str) -> None:
    """The bar, on a terminal; an empty title clears it."""
    if not sys.stdout.isatty():
        return
    bar = "#" * (_WIDTH * done // total if total else 0)
    text = f"set-up: {title} [{bar:<{_WIDTH}}] {now[:24]}" if title else ""
    print(f"\r\033[K{text}", end="", flush=True)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
