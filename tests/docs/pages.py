"""The pages of the documentation as tests read them, and files of results.

Promise: `changed` shows a page with other text to everything that reads it here, and nothing is
written.
"""

from __future__ import annotations

import contextlib
import functools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
LANGUAGES = ("zh-TW", "zh-CN")
_CHANGED: dict[str, str] = {}
_READ: set[str] = set()


def pages() -> list[Path]:
    """Every page that people read: the README and docs/, in all languages."""
    return [*sorted(ROOT.glob("README*.md")), *sorted((ROOT / "docs").glob("**/*.md"))]


def originals() -> list[Path]:
    """Those that are not translations."""
    return [page for page in pages() if not page.stem.endswith(LANGUAGES)]


def text_of(name: str) -> str:
    """A page, by its path in the repository."""
    _READ.add(name)
    return _CHANGED[name] if name in _CHANGED else (ROOT / name).read_text(encoding="utf-8")


def run_of(name: str) -> Any:
    """A file of benchmarks/results."""
    return json_of(f"benchmarks/results/{name}")


@functools.cache
def json_of(name: str) -> Any:
    """A JSON file, by its path in the repository; read once, so not to be changed."""
    return json.loads((ROOT / name).read_text(encoding="utf-8"))


@contextlib.contextmanager
def changed(name: str, text: str) -> Iterator[None]:
    """Inside, a page has this text."""
    _CHANGED[name] = text
    try:
        yield
    finally:
        del _CHANGED[name]


@contextlib.contextmanager
def watched() -> Iterator[set[str]]:
    """Which pages are read inside."""
    _READ.clear()
    found: set[str] = set()
    yield found
    found |= _READ
